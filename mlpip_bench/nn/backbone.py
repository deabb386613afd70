"""The interface of a backbone: inputs to features, shared by all methods of a run."""

from __future__ import annotations

import abc
import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mlpip_bench.nn import accelerator
from mlpip_bench.nn.normalization import Normalization, Statistics
from mlpip_bench.nn.weights import NOTHING, NetworkSettings, Outside, load_strictly, read_weights
from mlpip_bench.tasks.batch import TaskBatch
from mlpip_bench.utils.choices import DEFAULT_NORM, NORM_MODES, NormMode
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.numerics import backbone_autocast
from mlpip_bench.utils.settings import as_json

InputShape: TypeAlias = tuple[int, int, int]
"""``(channel, height, width)`` of an image; ``(dimension, 1, 1)`` of a vector."""

_Features: TypeAlias = tuple[Tensor, Statistics]


class Backbone(abc.ABC, nn.Module):  # in the order in which higher patches modules
    """h_theta: the inputs of each task to features.

    A plugin subclasses this and registers an entry point in the group ``mlpip_bench.backbones``.

    Args:
        input_shape: of one input.
        settings: an instance of ``Settings``.
        norm: normalization mode, the same for all methods.
        dropout: whether the method wants activations dropped in training, at the backbone's own rate.

    Attributes:
        reference: where the network comes from.
        Settings: frozen dataclass of the backbone's own settings, with defaults; one of
            :class:`~mlpip_bench.nn.weights.NetworkSettings` may be given weights, and be frozen.
        learns: whether it has parameters.
        normalizes: whether there is anything that the norm of a run changes.
        own_norm: whether it has ordinary batch norm, as networks of plain torch layers do: statistics of a batch in
            training, running averages at test. A run may ask for it, and pre-training does.
        features: dimension of h(x); set in ``__init__``.
    """

    reference: ClassVar[str]
    Settings: ClassVar[type] = NetworkSettings
    learns: ClassVar[bool] = True
    normalizes: ClassVar[bool] = True
    own_norm: ClassVar[bool] = False
    features: int

    def __init__(self, input_shape: InputShape, settings: Any, norm: NormMode, *, dropout: bool = False) -> None:
        super().__init__()
        self.check(input_shape, settings)
        self.input_shape, self.settings, self.norm_mode, self.dropout = input_shape, settings, norm, dropout
        self._kept: dict[tuple[int, ...], tuple[_Features, tuple[object, ...]]] | None = None  # see features_once
        self._pass: _OnePass | None = None  # see features_in_one_pass

    @classmethod
    def check(cls, input_shape: InputShape, settings: Any) -> None:
        """Refuse settings that do not go with a shape of inputs, before any work; the default refuses none.

        Raises:
            UserError: what the rule is, what came, what to do.
        """

    @classmethod
    def check_norm(cls, input_shape: InputShape, settings: Any, norm: NormMode) -> None:
        """Refuse a norm that the network cannot have, before any work; the default refuses none.

        Raises:
            UserError: what the rule is, what came, what to do.
        """

    @classmethod
    def pretrained(cls, settings: Any) -> Outside | None:
        """What its parameters were trained on before, somewhere else; None where they are initial ones."""
        if not isinstance(settings, NetworkSettings):
            return None
        if settings.weights is not None:
            return Outside.of(settings.weights, settings.trained_on)
        return Outside(settings.trained_on) if settings.trained_on not in ("", NOTHING) else None

    def load_weights(self, path: Path) -> None:
        """Set all parameters and buffers to those of a file.

        Raises:
            UserError: it cannot be read, or does not fit.
        """
        weights = read_weights(path)
        try:
            load_strictly(self, weights, str(path))
        except UserError as error:
            raise UserError(
                f"{error} They are what state_dict() of the whole backbone has, under the same settings and the same "
                f"norm (here {self.norm_mode})."
            ) from error

    def train(self, mode: bool = True) -> Self:
        """A frozen network stays as it is at test, whatever the method around it does."""
        return super().train(mode and not is_frozen(self.settings))

    @abc.abstractmethod
    def forward(
        self,
        x: Float[Tensor, "task point channel height width"],
        support: Statistics | None = None,
    ) -> tuple[Float[Tensor, "task point feature"], Statistics]:
        """Features of each task's inputs.

        Args:
            x: inputs; images in [0, 1].
            support: statistics of the support set; None where ``x`` is the support set.

        Returns:
            Features, and the support set's normalization statistics: one entry for each
            :class:`~mlpip_bench.nn.normalization.Normalization`, in the order of ``modules()``.
        """

    def prepare(self, device: torch.device) -> None:
        """Do what the first pass on a device would take long for, such as compiling loops: before a clock runs."""

    def forward_both(self, support_x: Tensor, query_x: Tensor) -> tuple[_Features, _Features]:
        """Features of support sets and queries, each with the moments that :meth:`move_averages` takes.

        A network that can do more than one after the other in less time overrides it; the numbers are the same.
        """
        features, statistics = self.forward(support_x)
        return (features, statistics), self.forward(query_x, statistics)

    def move_averages(self, statistics: Statistics) -> None:
        """Move the running averages of all layers, in training and where there are such: once a pass over a batch."""
        layers = [layer for layer in self.modules() if isinstance(layer, Normalization)] if self.training else []
        if layers and layers[0].mode == "running":
            for layer, moments in zip(layers, statistics, strict=True):
                layer.move_averages(moments)

    def __call__(self, x: Tensor, support: Statistics | None = None, *, track: bool = True) -> _Features:
        """Features, computed once where :func:`features_once` says so.

        Args:
            x: inputs of all tasks of a batch.
            support: as of :meth:`forward`.
            track: whether this pass may move running averages; not where it is one of many over a batch.
        """
        if self._kept is None or torch.is_grad_enabled():
            computed = self._compute(x, support) if self._pass is None else self._pass.features(x, support)
            if track:
                self.move_averages(computed[1])
            return computed
        made_of = (x, support, *self.parameters())
        key = tuple(map(id, made_of))  # the objects are kept, so that no other gets the id of one
        if key not in self._kept:
            self._kept[key] = (self._compute(x, support), made_of)
        return self._kept[key][0]

    def _compute(self, x: Tensor, support: Statistics | None) -> _Features:
        """Features in the type of the inputs, whatever the precision within."""
        with backbone_autocast(x.device):
            features, statistics = super().__call__(x, support)
        return features.to(x.dtype), statistics


def is_frozen(settings: Any) -> bool:
    """Whether training leaves a network with these settings as it is."""
    return isinstance(settings, NetworkSettings) and settings.frozen


class _OnePass:
    """The features of a batch's queries, kept from the pass over its support sets until they are asked for."""

    def __init__(self, backbone: Backbone, batch: TaskBatch) -> None:
        self.backbone, self.batch = backbone, batch
        self.parameters = tuple(backbone.parameters())
        self.statistics: Statistics | None = None
        self.of_queries: _Features | None = None

    def features(self, x: Tensor, support: Statistics | None) -> _Features:
        """Those of a backbone; of the support sets, or the queries, of the batch where nothing else came between."""
        support_x, query_x = self.batch.support.x, self.batch.query.x
        own = all(now is then for now, then in zip(self.backbone.parameters(), self.parameters, strict=True))
        if own and x is support_x and support is None:
            with backbone_autocast(x.device):
                (features, self.statistics), (of_queries, moments) = self.backbone.forward_both(support_x, query_x)
            self.of_queries = of_queries.to(x.dtype), moments
            return features.to(x.dtype), self.statistics
        if own and x is query_x and self.of_queries is not None and support is self.statistics:
            return self.of_queries
        return self.backbone._compute(x, support)


@contextlib.contextmanager
def features_in_one_pass(module: nn.Module, batch: TaskBatch) -> Iterator[None]:
    """Within, the features of a batch's queries are computed together with those of its support sets.

    Not on a CPU, which is faster a task at a time; and not under other parameters than the module's own.
    """
    used = accelerator.usable(batch.support.x) and batch.support.x.shape[2:] == batch.query.x.shape[2:]
    backbones = [part for part in module.modules() if isinstance(part, Backbone)] if used else []
    for backbone in backbones:
        backbone._pass = _OnePass(backbone, batch)
    try:
        yield
    finally:
        for backbone in backbones:
            backbone._pass = None


@contextlib.contextmanager
def features_once(module: nn.Module) -> Iterator[None]:
    """Within, and without autograd, features of one tensor of inputs under the same parameters are computed once."""
    backbones = [part for part in module.modules() if isinstance(part, Backbone)]
    for backbone in backbones:
        backbone._kept = {}
    try:
        yield
    finally:
        for backbone in backbones:
            backbone._kept = None


@dataclass(frozen=True)
class BackboneSpec:
    """A backbone with its settings, for inputs of one shape.

    Attributes:
        name: its registered name.
        plugin: the class.
        settings: an instance of the class's ``Settings``.
        input_shape: of one input.
    """

    name: str
    plugin: type[Backbone]
    settings: Any
    input_shape: InputShape
    _fitting: set[NormMode] = field(default_factory=set, init=False, repr=False, compare=False)
    """Norms under which its file of weights is known to fit."""

    @property
    def registered(self) -> str:
        """The name by which its plugin is found; empty where there is none."""
        return "" if self.plugin is NoBackbone else self.name

    @functools.cached_property
    def outside(self) -> Outside | None:
        """What its parameters were trained on before, somewhere else."""
        return self.plugin.pretrained(self.settings)

    @property
    def unfrozen(self) -> BackboneSpec:
        """The same network, as one that is trained."""
        return replace(self, settings=replace(self.settings, frozen=False)) if is_frozen(self.settings) else self

    def build(self, norm: NormMode, *, dropout: bool = False) -> Backbone:
        """A module with initial parameters, or those of the file that its settings name.

        Raises:
            UserError: the file cannot be read, or does not fit.
        """
        network = self.plugin(self.input_shape, self.settings, norm, dropout=dropout)
        if isinstance(self.settings, NetworkSettings) and self.settings.weights is not None:
            network.load_weights(self.settings.weights)
        return network.requires_grad_(False).train() if is_frozen(self.settings) else network

    def norm_used(self, asked: NormMode) -> NormMode:
        """The norm of the network where a run asks for one: the default stands for any where nothing is normalized.

        Raises:
            UserError: its own is asked for, and it brings none; or its weights do not fit.
        """
        if asked == "own" and not self.plugin.own_norm:
            raise UserError(
                f"norm own is ordinary batch norm, of a network that has it; {self.name} has none. Use another: "
                f"{', '.join(NORM_MODES)}."
            )
        self.plugin.check_norm(self.input_shape, self.settings, asked)
        used = asked if self.plugin.normalizes else DEFAULT_NORM
        if self.outside is not None and used not in self._fitting:
            with torch.random.fork_rng(devices=[]):
                self.build(used)
            self._fitting.add(used)
        return used

    @property
    def spec(self) -> dict[str, Any]:
        """All settings as JSON values, without those of every network that nobody has set."""
        usual = as_json(NetworkSettings())
        return {n: value for n, value in as_json(self.settings).items() if n not in usual or value != usual[n]}


class NoBackbone(Backbone):
    """Stands for the network of a method that brings its own, which only its name is known of."""

    reference = "none"
    own_norm = True

    def forward(self, x: Tensor, support: Statistics | None = None) -> tuple[Tensor, Statistics]:
        """Nobody asks."""
        raise NotImplementedError("a method with a network of its own does not use a run's backbone")
