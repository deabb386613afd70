"""Files of weights: state dicts of torch, and safetensors."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mlpip_bench.utils.errors import UserError, cut, one_line
from mlpip_bench.utils.files import open_file, sha256_of

NOTHING = "none"
"""What initial parameters were trained on."""

_LONGEST = 200  # characters


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """Settings of every network, in addition to those of its own class.

    Attributes:
        weights: a file of them, a state dict of torch or safetensors; ``None`` for initial parameters.
        trained_on: what they saw.
        frozen: whether training leaves the network as it is, its running averages too.
    """

    weights: Path | None = None
    trained_on: str = ""
    frozen: bool = False

    may_bring_weights: ClassVar[bool] = False
    """Whether code that builds it may load weights by itself, which ``trained_on`` then says alone."""

    def __post_init__(self) -> None:
        if not self.trained_on.isprintable() or len(self.trained_on) > _LONGEST:
            raise ValueError(f"trained_on is a line of at most {_LONGEST} characters; got {cut(self.trained_on)!r}")
        if self.weights is not None and not self.trained_on.strip():
            raise ValueError("weights need trained_on, the data that they were trained on (trained_on='ImageNet-1k')")
        if self.weights is None and self.trained_on not in ("", NOTHING) and not self.may_bring_weights:
            raise ValueError(
                f"trained_on says what weights saw, and initial parameters saw nothing; got {self.trained_on!r}. Add "
                f"weights=FILE, or use trained_on={NOTHING}"
            )


@dataclass(frozen=True)
class Outside:
    """Parameters that were trained somewhere else.

    Attributes:
        saw: the data that they were trained on.
        path: of their file; None where a network's own code loads them.
        sha256: of its bytes, in hexadecimal.
    """

    saw: str
    path: Path | None = None
    sha256: str = ""

    @classmethod
    def of(cls, path: Path, saw: str) -> Outside:
        """Those of a file as it is now.

        Raises:
            UserError: it cannot be read.
        """
        try:
            return cls(saw, path, sha256_of(path))
        except OSError as error:
            raise _unreadable(path, error) from error

    @property
    def facts(self) -> dict[str, str]:
        """What a record says of them."""
        if self.path is None:
            return {"what": "weights that its code loads", "saw": self.saw}
        return {"what": "weights", "file": self.path.name, "sha256": self.sha256, "saw": self.saw}


_WRAPPED = ("best_model", "state_dict", "model", "params")
"""Keys under which training scripts keep a state dict among other things."""
_BEGINNINGS = (b"PK", b"\x80\x02")
"""Of what ``torch.save`` writes: a zip archive; before torch 1.6, a pickle."""
_LISTED = 12


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors by name.

    Args:
        path: of a ``.safetensors`` file, or of what ``torch.save`` makes of a state dict.

    Raises:
        UserError: it cannot be read, or holds something else than tensors.
    """
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load

            with open_file(path) as file:
                return load(file.read())
        with open_file(path) as file:
            if file.read(2) not in _BEGINNINGS:
                raise ValueError("it does not begin as such a file does")
            file.seek(0)
            content = torch.load(file, weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:  # whose own advice is to load it without this care
        raise UserError(
            f"a file of weights holds tensors alone, since reading other objects can run code; {path} holds more. "
            "Save the state dict: torch.save(network.state_dict(), path), or write safetensors."
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    except Exception as error:  # each format raises its own kinds for damaged files
        raise UserError(
            f"a file of weights must be whole; {path} is damaged, or none: {one_line(error).rstrip('.')}."
        ) from error
    return _tensors(content, path)


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(f"a file of weights must be readable; {path} is not: {error.strerror or error}.")


def _tensors(content: Any, path: Path) -> dict[str, Tensor]:
    found = content
    if isinstance(content, Mapping):
        found = next((content[key] for key in _WRAPPED if isinstance(content.get(key), Mapping)), content)
    if not (isinstance(found, Mapping) and found and all(isinstance(v, Tensor) for v in found.values())):
        raise UserError(
            f"a file of weights is a state dict, tensors by name, itself or under {', '.join(_WRAPPED)}; {path} holds "
            "something else. Save network.state_dict()."
        )
    prefix = "module."  # of torch's DataParallel
    is_parallel = all(name.startswith(prefix) for name in found)
    return {name.removeprefix(prefix) if is_parallel else name: tensor for name, tensor in found.items()}


def load_strictly(module: nn.Module, weights: Mapping[str, Tensor], title: str) -> None:
    """Set all parameters and buffers of a module.

    Args:
        module: what is set.
        weights: by name.
        title: what they are called in messages.

    Raises:
        UserError: which are missing, which are not the module's, and which have another shape.
    """
    own = module.state_dict()
    missing = sorted(own.keys() - weights.keys())
    extra = sorted(weights.keys() - own.keys())
    shared = sorted(own.keys() & weights.keys())
    other = [
        f"{name} ({_shape(weights[name])} in place of {_shape(own[name])})"
        for name in shared
        if weights[name].shape != own[name].shape
    ]
    infinite = [name for name in shared if weights[name].is_floating_point() and not weights[name].isfinite().all()]
    parts = [
        ("missing", missing),
        ("not the model's", extra),
        ("of another shape", other),
        ("with NaN or infinity", infinite),
    ]
    if faults := [f"{len(names)} {what}: {_some(names)}" for what, names in parts if names]:
        raise UserError(
            f"weights must fit the model; of those of {title} are {'; '.join(faults)}. Give the model the settings "
            "that it had when they were trained, or take other weights."
        )
    module.load_state_dict(dict(weights))


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a number"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
