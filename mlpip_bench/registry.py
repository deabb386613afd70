"""Plugins, found by entry points: the engine knows no method and no protocol by name."""

from __future__ import annotations

import inspect
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from mlpip_bench.api import EvalProtocol, Method
from mlpip_bench.errors import UserError, unknown_name

Plugin = TypeVar("Plugin")


def _installed(group: str) -> dict[str, dict[str, EntryPoint]]:
    """For each name, what is registered under it: ``{name: {"module:Class": entry point}}``."""
    found: dict[str, dict[str, EntryPoint]] = {}
    for entry in entry_points(group=group):
        found.setdefault(entry.name, {})[entry.value] = entry
    return found


def method_names() -> list[str]:
    """Names of the installed methods."""
    return sorted(_installed("mlpip_bench.methods"))


def protocol_names() -> list[str]:
    """Names of the installed protocols."""
    return sorted(_installed("mlpip_bench.protocols"))


def method(name: str) -> type[Method[Any]]:
    """The method of that name.

    Raises:
        UserError: no such method, or its plugin cannot be imported or is no complete ``Method``.
    """
    return _load("method", name, Method)  # type: ignore[type-abstract]  # _load refuses abstract ones


def protocol(name: str) -> type[EvalProtocol]:
    """The protocol of that name; raises as :func:`method` does."""
    return _load("protocol", name, EvalProtocol)  # type: ignore[type-abstract]


def _load(kind: str, name: str, base: type[Plugin]) -> type[Plugin]:
    known = _installed(f"mlpip_bench.{kind}s")
    if not known:
        raise UserError(
            f"no {kind} is installed: entry points are missing. Install the package (pip install -e . in a checkout)."
        )
    if name not in known:
        raise unknown_name(kind, name, known)
    if len(known[name]) > 1:
        raise UserError(
            f"a {kind}'s name must be unique; {name!r} is registered by {' and by '.join(sorted(known[name]))}. "
            "Uninstall the package of one of them, or rename its entry point."
        )
    ((value, entry),) = known[name].items()
    try:
        plugin = entry.load()
    except Exception as error:  # a third party's import can fail in any way; it is named, not hidden
        raise UserError(f"{kind} {name!r} ({value}) cannot be imported: {error!r}") from error
    if not (isinstance(plugin, type) and issubclass(plugin, base)):
        raise UserError(f"{kind} {name!r} must be a subclass of {base.__name__}; {value} is {plugin!r}.")
    if inspect.isabstract(plugin):
        missing = ", ".join(sorted(getattr(plugin, "__abstractmethods__", ())))
        raise UserError(f"{kind} {name!r} ({value}) lacks {missing}.")
    return plugin
