"""State of the process that a plugin must leave as it found it: read, compared, and set back.

Trials share a process, and so does what imports plugins: what one leaves changed moves the numbers of the next.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, NoReturn, TypeAlias

_MODULES = ("builtins", "math", "random", "numpy", "numpy.random", "torch", "torch._tensor", "torch.functional")
"""Modules whose functions and classes are watched."""
_PACKAGES = ("mlpip_bench", "torch.nn", "torch.optim", "torch.distributions", "torch.linalg", "torch.special")
"""Packages that are watched with all their modules."""
_VARIABLES = ("OMP_", "MKL_", "OPENBLAS_", "TORCH_", "PYTORCH_", "CUDA_", "CUBLAS_", "PYTHON", "MLPIP_BENCH_")
"""What the environment variables begin with that decide how processes compute."""

_Owner: TypeAlias = ModuleType | type


def _torch() -> Any:
    return sys.modules.get("torch")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _working_directory() -> str:
    try:
        return os.getcwd()  # noqa: PTH109  # Path.cwd() is the same call
    except FileNotFoundError:
        return ""


def _set_working_directory(folder: str) -> None:
    with contextlib.suppress(OSError):
        os.chdir(folder)


def _signal_handlers() -> dict[int, Any]:
    # Those that are free to be set; the wakeup of a child's end is the system's.
    return {int(number): signal.getsignal(number) for number in signal.valid_signals()}


def _set_signal_handlers(handlers: Mapping[int, Any]) -> None:
    if threading.current_thread() is not threading.main_thread():
        return  # nobody could have changed them from here, either
    for number, handler in handlers.items():
        if handler is not None and signal.getsignal(number) is not handler:
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, handler)


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)}


def _set_variables(values: Mapping[str, str]) -> None:
    for name in _variables().keys() - values.keys():
        del os.environ[name]
    os.environ.update(values)


def _deterministic() -> tuple[bool, bool]:
    torch = _torch()
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_device(device: Any) -> None:
    _torch().set_default_device(None if device.type == "cpu" else device)  # None ends what sets it for each call, too


_OF_PYTHON: Mapping[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "the recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),  # first: setting back the rest takes calls
    "a signal's handler": (_signal_handlers, _set_signal_handlers),
    "the umask": (_umask, os.umask),
    "the working directory": (_working_directory, _set_working_directory),
    "an environment variable": (_variables, _set_variables),
}
_OF_TORCH: Mapping[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "torch's number of threads": (lambda: _torch().get_num_threads(), lambda n: _torch().set_num_threads(n)),
    "autograd's mode": (lambda: _torch().is_grad_enabled(), lambda mode: _torch().set_grad_enabled(mode)),
    "torch's default dtype": (lambda: _torch().get_default_dtype(), lambda dtype: _torch().set_default_dtype(dtype)),
    "torch's default device": (lambda: _torch().get_default_device(), _set_device),
    "torch's deterministic algorithms": (
        _deterministic,
        lambda modes: _torch().use_deterministic_algorithms(modes[0], warn_only=modes[1]),
    ),
    "torch's precision of matrix products": (
        lambda: _torch().get_float32_matmul_precision(),
        lambda precision: _torch().set_float32_matmul_precision(precision),
    ),
}
"""How each is read and set; those of torch where it is imported."""


@contextlib.contextmanager
def no_end() -> Iterator[None]:
    """Make calls that end the process at once raise; for imports, which happen in the process of all trials.

    A crash, which nothing in Python can hold back, prints the lines that led to it, and so the plugin's name.

    Raises:
        RuntimeError: in the place of such a call.
    """

    def refuse(status: int | None = None) -> NoReturn:
        raise RuntimeError("it ends the process" + ("" if status is None else f", with status {status}"))

    kept, shown = (os._exit, os.abort), faulthandler.is_enabled()
    os._exit = os.abort = refuse
    if not shown:
        with contextlib.suppress(AttributeError, OSError, ValueError):  # a standard error that is no file
            faulthandler.enable()
    try:
        yield
    finally:
        os._exit, os.abort = kept
        if not shown:
            faulthandler.disable()


class ProcessState:
    """The state of the process as it is now; what has changed since can be named and is set back."""

    def __init__(self) -> None:
        self._guarded = {**_OF_PYTHON, **(_OF_TORCH if _torch() else {})}
        self._values = {name: read() for name, (read, _) in self._guarded.items()}
        self._functions = {owner: (name, _callables(owner), frozenset(vars(owner))) for name, owner in _owners()}

    def set_back(self) -> list[str]:
        """Set everything back.

        Returns:
            What had changed, each as ``torch's number of threads from 1 to 2``.
        """
        changed = []
        for name, (read, write) in self._guarded.items():
            before, now = self._values[name], read()
            if now != before:
                write(before)
                changed.append(f"{name} {_difference(before, now)}")
        for owner, (name, functions, names) in self._functions.items():
            for attribute, function in functions.items():
                now = vars(owner).get(attribute)
                if now is not function and _plain(now) is not function:
                    setattr(owner, attribute, function)
                    changed.append(f"{name}.{attribute}, which it replaced")
            for attribute in [n for n in vars(owner).keys() - names if _hides(owner, n)]:
                delattr(owner, attribute)
                changed.append(f"{name}.{attribute}, which it replaced")
        return changed


def _difference(before: Any, now: Any) -> str:
    if isinstance(before, dict):
        return "(" + ", ".join(sorted({_named(key) for key, _ in before.items() ^ now.items()})) + ")"
    return f"from {before} to {now}"


def _named(key: object) -> str:
    return signal.Signals(key).name if isinstance(key, int) and key in set(signal.Signals) else str(key)


def _owners() -> Iterator[tuple[str, _Owner]]:
    """Watched modules, and the classes that they define, with their names."""
    below = tuple(f"{package}." for package in _PACKAGES)
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and (name in _MODULES or name in _PACKAGES or name.startswith(below)):
            yield name, module
            for attribute, value in list(vars(module).items()):
                if isinstance(value, type) and value.__module__ == name and value.__flags__ & _HEAP_TYPE:
                    yield f"{name}.{attribute}", value


_HEAP_TYPE = 1 << 9  # of Python's flags of types: its attributes can be set


def _callables(owner: _Owner) -> dict[str, Any]:
    kinds = (property, staticmethod, classmethod)
    return {name: value for name, value in vars(owner).items() if callable(value) or isinstance(value, kinds)}


def _hides(owner: _Owner, attribute: str) -> bool:
    """Whether a class has come to have a function of its own in the place of an inherited one."""
    own = vars(owner)[attribute]
    bases = owner.__mro__[1:] if isinstance(owner, type) else ()
    inherited = [vars(base)[attribute] for base in bases if attribute in vars(base)]
    return callable(own) and bool(inherited) and _plain(own) is not _plain(inherited[0])


def _plain(function: Any) -> Any:
    """What torch itself wraps: what its compiler is to leave alone, and an optimizer's ``step`` at its first use."""
    if getattr(function, "__globals__", {}).get("__name__") == "torch._compile":
        function = function.__wrapped__
    function = getattr(function, "_torchdynamo_orig_callable", function)
    return getattr(function, "__wrapped__", None) if getattr(function, "hooked", False) is True else function
