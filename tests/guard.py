"""Global state that no test may leave changed, and seeds that make the order of tests irrelevant."""

import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

# Set by pytest around each test, by torch's compiler and Ray for their own use, and by scikit-learn wherever it happens
# to be imported first.
_NOT_THE_TESTS = (
    "PYTEST_CURRENT_TEST",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
    "TORCHINDUCTOR_CACHE_DIR",
    "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR",
    "RAY_CLIENT_MODE",
)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _NOT_THE_TESTS}


def _set_environment(before: dict[str, str]) -> None:
    for name in _environment().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(before: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _set_device(before: torch.device) -> None:
    torch.set_default_device(None if before.type == "cpu" else before)  # None also ends what sets it for each call


def _working_directory() -> str:
    try:
        return os.getcwd()  # noqa: PTH109  # Path.cwd() is the same call
    except FileNotFoundError:
        return "a directory that is no more"


GUARDED: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "torch's default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch's grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "torch's number of threads": (torch.get_num_threads, torch.set_num_threads),
    "torch's deterministic algorithms": (_deterministic, _set_deterministic),
    "torch's default device": (torch.get_default_device, _set_device),
    "environment variables": (_environment, _set_environment),
    "the working directory": (_working_directory, os.chdir),
}
"""How each is read and set."""


def state() -> dict[str, Any]:
    """All that is guarded, by name."""
    return {name: read() for name, (read, _) in GUARDED.items()}


def restored(before: dict[str, Any]) -> list[str]:
    """What has changed since then, by name, with what it became; all of it is set back."""
    changed = []
    for name, value in state().items():
        was = before[name]
        if value != was:
            GUARDED[name][1](was)
            if isinstance(was, dict):
                name += f" {', '.join(sorted({k for k, _ in was.items() ^ value.items()}))}"
            else:
                name += f" from {was} to {value}"
            changed.append(name)
    return changed


def seed() -> None:
    """The global generators of random, NumPy and torch, as before every test."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
