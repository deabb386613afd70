"""Backbones that are networks of plain torch layers: a user's own, or one that is written as everybody writes it.

Two things of such a network are the suite's: batch norm, which is replaced with the norm that all methods of a run
share; and parameters with a leading task dimension, which methods that adapt the network ask for.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from mlpip_bench.nn.backbone import Backbone, InputShape
from mlpip_bench.nn.layers import channels_innermost
from mlpip_bench.nn.normalization import EPSILON, Moments, Normalization, Statistics, cat_statistics, task_statistics
from mlpip_bench.utils.choices import NormMode
from mlpip_bench.utils.errors import TrialError, UserError, one_line


class NetworkBackbone(Backbone):
    """A backbone whose network takes images ``[image, channel, height, width]``, of whatever tasks, to vectors.

    A subclass builds it, in :meth:`build_network`. Each of its batch-norm layers becomes a
    :class:`~mlpip_bench.nn.normalization.Normalization`, unless the norm is its own; layers that see one image alone,
    such as layer norm, stay as they are. Dropout layers drop where a method wants it.
    """

    own_norm = True

    def __init__(self, input_shape: InputShape, settings: Any, norm: NormMode, *, dropout: bool = False) -> None:
        super().__init__(input_shape, settings, norm, dropout=dropout)
        self._shared = _Pass()
        network = nn.Sequential(self.build_network())  # which has places for layers, if the network is one
        if norm != "own":
            self._shared.names = _with_suite_norm(network, norm, self._shared)
        for layer in network.modules():
            if isinstance(layer, _DropoutNd) and not dropout:
                layer.p = 0.0
        self.network = network
        self.features = self._count_features()  # first, since lazy layers get their parameters by it
        self._dimensions = {name: parameter.dim() for name, parameter in network.named_parameters()}

    @property
    def title(self) -> str:
        """What messages call it."""
        return type(self).__name__

    @abc.abstractmethod
    def build_network(self) -> nn.Module:
        """A network with initial parameters."""

    def forward(
        self,
        x: Float[Tensor, "task point channel height width"],
        support: Statistics | None = None,
    ) -> tuple[Float[Tensor, "task point feature"], Statistics]:
        """Features of each task's images; a task at a time where tasks have parameters of their own."""
        of_tasks = {n: p for n, p in self.network.named_parameters() if p.dim() > self._dimensions[n]}
        if not of_tasks:
            return self._pass_through(self.network, x, support)
        outputs = []
        for task in range(x.shape[0]):
            network = functools.partial(functional_call, self.network, {n: p[task] for n, p in of_tasks.items()})
            here = slice(task, task + 1)
            own = None if support is None else task_statistics(support, here)
            outputs.append(self._pass_through(network, x[here], own))
        features, statistics = zip(*outputs, strict=True)
        return torch.cat(features), cat_statistics(statistics)

    def _pass_through(
        self, network: Callable[[Tensor], Tensor], x: Tensor, support: Statistics | None
    ) -> tuple[Tensor, Statistics]:
        self._shared.begin(x.shape[0], support)
        features = network(channels_innermost(x.flatten(0, 1)))
        if not isinstance(features, Tensor) or features.shape[:1] != (x.shape[0] * x.shape[1],):
            given = tuple(features.shape) if isinstance(features, Tensor) else f"a {type(features).__name__}"
            raise TrialError(
                f"a backbone must return one tensor, [image, feature]; for {x.shape[0] * x.shape[1]} images "
                f"{self.title} returns {given}."
            )
        return features.flatten(1).unflatten(0, x.shape[:2]), self._shared.end()

    def _count_features(self) -> int:
        """By a pass of two images, which also finds out whether the network takes such images at all."""
        was_training, images = self.training, torch.zeros(1, 2, *self.input_shape)
        shape = "x".join(map(str, self.input_shape))
        try:
            with torch.no_grad():
                found = self.eval()._pass_through(self.network, images, None)[0]
        except (UserError, TrialError):
            raise
        except Exception as error:  # whatever somebody's network raises
            raise UserError(
                f"a backbone must take images of the bench's shape, {shape} (channel, height, width); "
                f"{self.title} fails at them: {one_line(error)}."
            ) from error
        self.train(was_training)
        if found.dim() != 3 or not found.shape[-1]:
            raise UserError(f"a backbone must give each image a vector; {self.title} gives nothing for {shape}.")
        return found.shape[-1]


class _Pass:
    """What the normalized layers of a network share while images pass through it."""

    def __init__(self) -> None:
        self.names: list[str] = []  # of the layers, in the order of modules()
        self.tasks = 1
        self.support: Statistics | None = None
        self._found: dict[int, Moments] = {}

    def begin(self, tasks: int, support: Statistics | None) -> None:
        self.tasks, self.support, self._found = tasks, support, {}

    def keep(self, layer: int, moments: Moments) -> None:
        if layer in self._found:
            raise TrialError(self._rule(layer, "twice"))
        self._found[layer] = moments

    def end(self) -> Statistics:
        if unused := [layer for layer in range(len(self.names)) if layer not in self._found]:
            raise TrialError(self._rule(unused[0], "not at all"))
        found, self._found, self.support = self._found, {}, None
        return tuple(found[layer] for layer in range(len(self.names)))

    def _rule(self, layer: int, times: str) -> str:
        return (
            "each batch-norm layer of a network must be used once for an image, or its statistics are not those of one "
            f"place; {_shown(self.names[layer])} is used {times}. Use one for each place, or keep the network's own "
            "(--norm own)."
        )


class _SuiteNorm(nn.Module):
    """The suite's normalization in the place of a batch-norm layer; its scale, shift and averages are taken over."""

    def __init__(self, layer: _BatchNorm, norm: NormMode, index: int, shared: _Pass) -> None:
        super().__init__()
        self.norm = Normalization(layer.num_features, norm)
        self.index, self._shared = index, shared
        with torch.no_grad():
            if layer.affine:
                self.norm.scale.copy_(layer.weight.view(-1, 1, 1))
                self.norm.shift.copy_(layer.bias.view(-1, 1, 1))
            if norm == "running" and layer.running_mean is not None and layer.running_var is not None:
                self.norm.running_mean.copy_(layer.running_mean.view(-1, 1, 1))
                self.norm.running_variance.copy_(layer.running_var.view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """``[task * point, channel, ...]``, with up to two dimensions of positions."""
        shared = self._shared
        images = x.reshape(*x.shape, *[1] * (4 - x.dim())).unflatten(0, (shared.tasks, -1))
        support = None if shared.support is None else shared.support[self.index]
        found: tuple[Tensor, Moments] = self.norm(images, support)
        normalized, moments = found
        shared.keep(self.index, moments)
        return normalized.flatten(0, 1).reshape(x.shape)


def _with_suite_norm(network: nn.Module, norm: NormMode, shared: _Pass) -> list[str]:
    """Replace the batch-norm layers of a network; their names, in the order of ``modules()``.

    Raises:
        UserError: one that the suite's normalization cannot stand for.
    """
    layers = {id(layer): layer for layer in network.modules() if isinstance(layer, _BatchNorm)}
    places = [(name, layer) for name, layer in network.named_modules(remove_duplicate=False) if id(layer) in layers]
    made: dict[int, _SuiteNorm] = {}
    names: list[str] = []
    for name, layer in places:
        assert isinstance(layer, _BatchNorm)
        if isinstance(layer, nn.BatchNorm3d) or layer.eps != EPSILON:
            what = "three dimensions of positions" if isinstance(layer, nn.BatchNorm3d) else f"epsilon {layer.eps:g}"
            raise UserError(
                f"batch norm of a network becomes the run's norm where it has epsilon {EPSILON:g} and at most two "
                f"dimensions of positions; {_shown(name)} has {what}. Keep the network's own (--norm own)."
            )
        if id(layer) not in made:  # a layer may be in several places, which its passes will tell
            made[id(layer)] = _SuiteNorm(layer, norm, len(names), shared)
            names.append(name)
        parent, _, own = name.rpartition(".")
        setattr(network.get_submodule(parent), own, made[id(layer)])
    return names


def _shown(name: str) -> str:
    """The name of a layer as the network's owner knows it."""
    return name.removeprefix("0.")
