"""Plugins, found by entry points: the engine knows no method and no protocol by name."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_args

from mlpip_bench.benches.families import DATASETS
from mlpip_bench.benches.settings import PRESETS, resolve
from mlpip_bench.benches.spec import parse_bench
from mlpip_bench.evaluation.metrics import Metric
from mlpip_bench.evaluation.protocol import EvalProtocol, SideBySideProtocol
from mlpip_bench.inference.method import Method, TaskKind
from mlpip_bench.utils.errors import UserError, one_line, unknown_name


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
    plugin: type[Method[Any]] = _load("method", name, method_faults)
    return plugin


def paper_training_tasks(method_name: str, bench: str) -> int | None:
    """How many tasks a method is trained on in a bench with the preset ``paper``; None where it cannot be loaded."""
    try:
        plugin = method(method_name)
    except UserError:  # records can be read where their method is not installed
        return None
    spec = parse_bench(bench)
    budget = spec.data.budgets["paper"]
    plan = resolve(plugin, method_name, budget, "paper", (spec.dataset, spec.name), {}).plan
    return plan.iterations * plan.tasks_per_batch


def protocol(name: str) -> type[EvalProtocol] | type[SideBySideProtocol]:
    """The protocol of that name; raises as :func:`method` does."""
    plugin: type[EvalProtocol] | type[SideBySideProtocol] = _load("protocol", name, protocol_faults)
    return plugin


def _load(kind: str, name: str, faults: Callable[[Any], list[str]]) -> Any:
    known = _installed(f"mlpip_bench.{kind}s")
    if not known:
        raise UserError(
            f"no {kind} is installed: entry points are missing. Install the package (pip install -e . in a checkout)."
        )
    if name not in known:
        raise unknown_name(kind, name, known)
    if len(known[name]) > 1:
        origins = " and by ".join(sorted(map(_origin, known[name].values())))
        raise UserError(
            f"a {kind}'s name must be unique; {name!r} is registered by {origins}. "
            "Uninstall the package of one of them, or rename its entry point."
        )
    ((value, entry),) = known[name].items()
    if ":" not in value:
        raise UserError(f"the entry point of {kind} {name!r} ({_origin(entry)}) must be module:Class; got {value!r}.")
    try:
        plugin = entry.load()
    except (Exception, SystemExit) as error:  # a third party's import can fail in any way; it is named, not hidden
        raise UserError(f"{kind} {name!r} ({_origin(entry)}) cannot be imported: {one_line(error)}") from error
    if found := faults(plugin):
        raise UserError(f"{kind} {name!r} ({value}) {'; it '.join(found)}.")
    return plugin


def _origin(entry: EntryPoint) -> str:
    return f"{entry.value} of the package {entry.dist.name}" if entry.dist else entry.value


def method_faults(plugin: Any) -> list[str]:
    """What keeps a class from being a method, as ends of a sentence that begins with its name."""
    if faults := _class_faults(plugin, (Method,), ("reference", "psi")):
        return faults
    kinds = get_args(TaskKind)
    if not (isinstance(plugin.handles, tuple) and plugin.handles and set(plugin.handles) <= set(kinds)):
        faults.append(f"must have in handles a tuple of some of {', '.join(kinds)}; got {plugin.handles!r}")
    if not isinstance(plugin.default_for, tuple):
        faults.append(f"must have in default_for a tuple of data sets; got {plugin.default_for!r}")
    settings: Any = plugin.Settings
    is_dataclass = isinstance(settings, type) and dataclasses.is_dataclass(settings)
    if not (is_dataclass and settings.__dataclass_params__.frozen):
        faults.append(f"must have as Settings a frozen dataclass; got {settings!r}")
    elif needed := [
        f.name for f in dataclasses.fields(settings) if f.init and f.default is f.default_factory is dataclasses.MISSING
    ]:
        faults.append(f"must have a default for every field of Settings; {', '.join(needed)} has none")
    if not (isinstance(plugin.xfail_checks, Mapping) and all(map(_is_text, plugin.xfail_checks.values()))):
        faults.append(f"must have as xfail_checks a mapping of checks to reasons; got {plugin.xfail_checks!r}")
    return faults or _preset_faults(plugin)


def _preset_faults(plugin: type[Method[Any]]) -> list[str]:
    """What a run with one of the presets would refuse, on any bench."""
    presets: Any = plugin.presets
    is_nested = isinstance(presets, Mapping) and all(
        isinstance(scopes, Mapping) and all(isinstance(fields, Mapping) for fields in scopes.values())
        for scopes in presets.values()
    )
    if not is_nested:
        return [f"must have as presets a mapping {{preset: {{scope: {{field: value}}}}}}; got {presets!r}"]
    try:
        for preset in presets:
            if preset not in PRESETS:
                raise unknown_name("preset", str(preset), PRESETS)
        for preset in PRESETS:  # those that the method leaves as they are, too: its settings must be understood
            for scope in ("*", *presets.get(preset, {})):
                data = DATASETS.get(next(iter(DATASETS)) if scope == "*" else scope) or parse_bench(scope).data
                resolve(plugin, f"presets[{preset!r}]", data.budgets[preset], preset, (scope,), {})
    except UserError as error:
        return [f"must have presets that can be used: {str(error).removesuffix('.')}"]
    except (Exception, SystemExit) as error:  # a third party's settings can fail in any way
        return [f"must have settings and presets that can be used: {one_line(error)}"]
    return []


def protocol_faults(plugin: Any) -> list[str]:
    """What keeps a class from being a protocol, as :func:`method_faults` says it."""
    if faults := _class_faults(plugin, (EvalProtocol, SideBySideProtocol), ("description", "metrics")):
        return faults
    if not (isinstance(plugin.metrics, tuple) and all(isinstance(metric, Metric) for metric in plugin.metrics)):
        faults.append(f"must have as metrics a tuple of Metric; got {plugin.metrics!r}")
    return faults


def _class_faults(plugin: Any, bases: tuple[type, ...], attributes: tuple[str, ...]) -> list[str]:
    if not (isinstance(plugin, type) and issubclass(plugin, bases)):
        return [f"must be a subclass of {' or '.join(base.__name__ for base in bases)}; it is {plugin!r}"]
    missing = sorted(getattr(plugin, "__abstractmethods__", ())) if inspect.isabstract(plugin) else []
    missing += [name for name in attributes if not getattr(plugin, name, None)]
    return [f"lacks {', '.join(missing)}"] if missing else []


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
