"""A user's own network as a backbone: ``--backbone my_module:build``, or ``--backbone path/to/file.py:build``.

``build`` is a function, or a class, that returns a ``torch.nn.Module`` from images ``[image, channel, height, width]``
to one vector an image. It may take the shape of an image, ``(channel, height, width)``, first; what else it takes has
defaults. A parameter whose default can be typed is a setting of the backbone; others, such as a class, keep theirs.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

import torch
from torch import nn

from mlpip_bench.nn.backbone import InputShape
from mlpip_bench.nn.network import NetworkBackbone
from mlpip_bench.nn.weights import NetworkSettings, load_strictly, read_weights
from mlpip_bench.utils.choices import OWN_NORM, NormMode
from mlpip_bench.utils.errors import TrialError, UserError, one_line
from mlpip_bench.utils.places import object_at
from mlpip_bench.utils.process_state import no_end
from mlpip_bench.utils.settings import field_types

_TYPED = (bool, int, float, str, tuple, Path, type(None))
"""What values of settings are."""

_OF_EVERY_NETWORK = tuple(field_types(NetworkSettings))
"""Settings that the suite adds."""


class OwnNetwork(NetworkBackbone):
    """A network of somebody's own; :func:`own_backbone` makes the class of each.

    Attributes:
        build: what returns the network.
        place: where it is, as it was given.
    """

    build: ClassVar[Callable[..., Any]]
    place: ClassVar[str]
    takes_shape: ClassVar[bool]
    _tried: ClassVar[set[tuple[InputShape, Any, NormMode]]]

    @classmethod
    def check(cls, input_shape: InputShape, settings: Any) -> None:
        """Refuse a network that cannot be built, does not take such images, or sees more than one of them at a time."""
        cls._try(input_shape, settings, OWN_NORM)

    @classmethod
    def check_norm(cls, input_shape: InputShape, settings: Any, norm: NormMode) -> None:
        """Refuse batch norm that the suite's normalization cannot stand for."""
        cls._try(input_shape, settings, norm)

    @classmethod
    def _try(cls, input_shape: InputShape, settings: Any, norm: NormMode) -> None:
        tried = input_shape, settings, norm
        if tried in cls._tried:
            return
        building = input_shape, settings, OWN_NORM  # what is built is checked
        cls._tried |= {tried, building}
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                network = cls(input_shape, settings, norm)
                if norm != "transductive":
                    network._check_alone()
        except BaseException as error:
            cls._tried -= {tried, building}
            if isinstance(error, TrialError):  # nothing is being tried yet
                raise UserError(str(error)) from error
            raise

    @property
    def title(self) -> str:
        """Its place."""
        return self.place

    def build_network(self) -> nn.Module:
        """What the user's function returns, with the weights of a file if there is one."""
        chosen = {name: value for name, value in vars(self.settings).items() if name not in _OF_EVERY_NETWORK}
        try:
            with no_end():
                network = type(self).build(*([self.input_shape] if self.takes_shape else []), **chosen)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever somebody's code raises
            raise UserError(f"{self.place} must build a network; it raises {one_line(error)}.") from error
        if not isinstance(network, nn.Module):
            raise UserError(f"{self.place} must return a torch.nn.Module; it returns a {type(network).__name__}.")
        if self.settings.weights is not None:
            load_strictly(network, read_weights(self.settings.weights), str(self.settings.weights))
        return network

    def load_weights(self, path: Path) -> None:
        """Nothing is left to do: they are those of the user's network, before its batch norm became the run's."""

    @torch.no_grad()
    def _check_alone(self) -> None:
        support, query = (torch.rand(1, 3, *self.input_shape) for _ in range(2))
        self.eval()
        before = query.clone()
        kept = {name: buffer.clone() for name, buffer in self.network[0].named_buffers()}
        _, statistics = self.forward(support)
        together, again = (self.forward(query, statistics)[0] for _ in range(2))
        if not torch.equal(query, before):
            raise UserError(f"a backbone must leave its images as they are; {self.place} changes them in place.")
        now = dict(self.network[0].named_buffers())
        if moved := [n for n in now if n not in kept or not torch.equal(now[n], kept[n])]:
            raise UserError(
                f"a backbone must stay as it is at test; {self.place} changes {', '.join(moved)} when it is asked. "
                "Leave that to training (self.training)."
            )
        others = [query[:, point : point + 1].clone() for point in range(query.shape[1])]
        alone = torch.cat([self.forward(image, statistics)[0] for image in others], dim=1)
        backward = self.forward(query.flip(1), statistics)[0].flip(1)
        if not together.isfinite().all():
            raise UserError(f"features must be numbers; those of {self.place} are NaN or infinite at images in [0, 1].")
        if not torch.allclose(together, again, rtol=1e-3, atol=1e-4):
            raise UserError(
                f"features of an image must be the same at each pass at test; those of {self.place} are drawn anew. "
                "Leave noise to training (self.training), or to dropout layers."
            )
        if not all(torch.allclose(together, other, rtol=1e-3, atol=1e-4) for other in (alone, backward)):
            raise UserError(
                "features of an image must not depend on the others of its batch, or accuracy depends on how many are "
                f"asked at once (transductive); those of {self.place} do. Use layers that see one image, or batch "
                "norm, which becomes the run's norm."
            )


@functools.cache
def own_backbone(place: str) -> type[OwnNetwork]:
    """The class of a user's own network.

    Args:
        place: ``module:function`` or ``path/to/file.py:function``.

    Raises:
        UserError: it is not there, or cannot be a backbone.
    """
    build = object_at(place, "--backbone")
    if not callable(build):
        raise UserError(
            f"--backbone takes a function that returns a network; {place} is of type {type(build).__name__}."
        )
    takes_shape, settings = _settings(build, place)
    members = {
        "__doc__": inspect.getdoc(build) or f"A network of {place}.",
        "reference": f"none: {place}",
        "build": staticmethod(build),
        "place": place,
        "takes_shape": takes_shape,
        "Settings": settings,
        "_tried": set(),
    }
    return type("OwnNetwork", (OwnNetwork,), members)


def _settings(build: Callable[..., Any], place: str) -> tuple[bool, type]:
    """Whether a function takes the shape of an image, and a class of its other parameters and of the suite's."""
    try:
        parameters = list(inspect.signature(build).parameters.values())
        hints = get_type_hints(build.__init__ if isinstance(build, type) else build)  # type: ignore[misc]
    except (NameError, TypeError, ValueError) as error:
        raise UserError(f"the parameters of {place} must be readable: {one_line(error)}.") from error
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    takes_shape = bool(named) and named[0].default is named[0].empty
    others = []
    for parameter in named[1:] if takes_shape else named:
        if parameter.default is parameter.empty:
            raise UserError(
                f"{place} may take the shape of an image, and then parameters with defaults; {parameter.name} has "
                "none. Give it one, or wrap the function in one of your own."
            )
        if parameter.name in _OF_EVERY_NETWORK:
            raise UserError(
                f"{', '.join(_OF_EVERY_NETWORK)} are settings of every network of your own; {place} has a parameter "
                f"{parameter.name}. Rename it."
            )
        if isinstance(parameter.default, _TYPED):
            others.append(parameter)
    made = dataclasses.make_dataclass(
        "Settings",
        [(p.name, hints.get(p.name, type(p.default)), dataclasses.field(default=p.default)) for p in others],
        bases=(NetworkSettings,),
        frozen=True,
        namespace={"may_bring_weights": True},
    )
    return takes_shape, made
