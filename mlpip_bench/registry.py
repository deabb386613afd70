"""Plugins of four kinds, found by entry points: the engine knows none of them by name.

Names are read from the metadata of installed packages; a plugin is imported when it is asked for.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from mlpip_bench.benches.added import AddedData, families_below, family_at
from mlpip_bench.benches.family import PRESETS, TaskFamily
from mlpip_bench.benches.spec import BenchSpec, grammar
from mlpip_bench.utils.errors import UserError, cut, one_line, unknown_name
from mlpip_bench.utils.naming import family_of
from mlpip_bench.utils.places import is_place, object_at
from mlpip_bench.utils.process_state import ProcessState, no_end

if TYPE_CHECKING:  # names are listed without torch
    from mlpip_bench.datasets.preparing.preparer import Preparer
    from mlpip_bench.datasets.sources import DataSource
    from mlpip_bench.evaluation.protocol import EvalProtocol, SideBySideProtocol
    from mlpip_bench.inference.method import Method
    from mlpip_bench.nn.backbone import Backbone

Kind = Literal["method", "protocol", "bench", "backbone"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_GROUPS: Mapping[Kind, str] = {
    "method": "mlpip_bench.methods",
    "protocol": "mlpip_bench.protocols",
    "bench": "mlpip_bench.benches",
    "backbone": "mlpip_bench.backbones",
}
_TITLES: Mapping[Kind, str] = {
    "method": "method",
    "protocol": "protocol",
    "bench": "task family",
    "backbone": "backbone",
}
_T = TypeVar("_T")


def installed(kind: Kind) -> Mapping[str, Mapping[str, EntryPoint]]:
    """For each name, what is registered under it: ``{name: {"module:Class": entry point}}``; nothing is imported."""
    return _read(entry_points, _GROUPS[kind], tuple(map(_folder_state, sys.path)))


@functools.lru_cache(maxsize=len(KINDS))
def _read(
    read: Callable[..., Iterable[EntryPoint]], group: str, _places: tuple[tuple[str, int], ...]
) -> Mapping[str, Mapping[str, EntryPoint]]:
    """Reading the metadata of all packages takes 20 ms and more, and names are asked for hundreds of times."""
    found: dict[str, dict[str, EntryPoint]] = {}
    for entry in sorted(read(group=group), key=lambda entry: entry.name):
        found.setdefault(entry.name, {})[entry.value] = entry
    return found


def _folder_state(folder: str) -> tuple[str, int]:
    """What changes when a package is installed into a folder or removed from it."""
    try:
        return folder, Path(folder).stat().st_mtime_ns
    except OSError:
        return folder, 0


def names(kind: Kind) -> list[str]:
    """Names of the installed plugins of a kind."""
    return list(installed(kind))


def method_names() -> list[str]:
    """Names of the installed methods."""
    return names("method")


def protocol_names() -> list[str]:
    """Names of the installed protocols."""
    return names("protocol")


def method(name: str) -> type[Method[Any]]:
    """The method of that name.

    Raises:
        UserError: no such method, or its plugin cannot be imported or is no complete ``Method``.
    """
    if (place := _PLACES.get(name)) is not None:
        found: Any = object_at(place, "--methods")
        if callable(found) and not isinstance(found, type):
            raise UserError(
                f"a function becomes a method by wrap, NAME = mlpip_bench.wrap(function, ...); {place} is the function "
                "itself. Name what wrap returns."
            )
        if faults := method_faults(found):
            raise UserError(f"method {place} {'; it '.join(faults)}.")
        return found  # type: ignore[no-any-return]  # which is what has no faults
    plugin: type[Method[Any]] = _load("method", name, method_faults)
    return plugin


def method_at(place: str) -> str:
    """The name, from here on, of a method of a user's own code: the last part of its place.

    Raises:
        UserError: an installed method has that name, or one of another place.
    """
    name = place.rpartition(":")[2]
    if name in method_names() or _PLACES.get(name, place) != place:
        raise UserError(
            f"methods of a run have names of their own; {place} has that of "
            f"{_PLACES.get(name, f'the installed method {name}')}. Rename it."
        )
    object_at(place, "--methods")  # or nothing has the name
    _PLACES[name] = place
    return name


def place_of(name: str) -> str:
    """What ``--methods`` takes for a method: its name, or the place of a user's own."""
    return _PLACES.get(name, name)


_PLACES: dict[str, str] = {}
"""Where methods of users' own code are, by name."""


def protocol(name: str) -> type[EvalProtocol] | type[SideBySideProtocol]:
    """The protocol of that name; raises as :func:`method` does."""
    plugin: type[EvalProtocol] | type[SideBySideProtocol] = _load("protocol", name, protocol_faults)
    return plugin


def backbone(name: str) -> type[Backbone]:
    """The backbone of that name, or ``module:function``, a network of a user's own; raises as :func:`method` does."""
    if is_place(name):
        from mlpip_bench.nn.own import own_backbone

        return own_backbone(name)
    plugin: type[Backbone] = _load("backbone", name, backbone_faults)
    return plugin


def family(name: str, data_root: Path | None = None) -> type[TaskFamily]:
    """The task family of that name: an installed one, or a data set that was added below the data root.

    Raises:
        UserError: as of :func:`method`; or the name has both.
    """
    if (folder := families_below(data_root).get(name)) is not None:
        if name in (known := installed("bench")):
            origins = " and by ".join(map(described, known[name].values()))
            raise UserError(
                f"a task family's name must be unique; {name!r} is registered by {origins}, and {folder} is an added "
                "data set. Add the data under another name, and remove that folder."
            )
        return added_family(folder)
    plugin: type[TaskFamily] = _load("bench", name, family_faults)
    return plugin


def added_family(folder: Path) -> type[AddedData]:
    """The family of a data set that was added; its default methods are those of the suite's own images of classes.

    Raises:
        UserError: its description is damaged.
    """
    from mlpip_bench.benches.images import ImageClassification

    own = [name for name, entries in installed("bench").items() if all(map(is_own, entries.values()))]
    images = [plugin for plugin in loadable(own, family).values() if issubclass(plugin, ImageClassification)]
    return family_at(folder, tuple(sorted({name for plugin in images for name in plugin.default_methods})))


def family_names(data_root: Path | None = None) -> list[str]:
    """Names of the installed task families, and of the data sets that were added below the data root."""
    return list(dict.fromkeys([*names("bench"), *families_below(data_root)]))


def families(data_root: Path | None = None) -> dict[str, type[TaskFamily]]:
    """All task families that can be loaded, by name."""
    return loadable(family_names(data_root), lambda name: family(name, data_root))


def damaged_families(data_root: Path | None) -> dict[str, str]:
    """What is wrong with data sets below the data root that were added and cannot be read any more, by name."""
    found = {}
    for name in families_below(data_root):
        try:
            family(name, data_root)
        except UserError as error:
            found[name] = str(error)
    return found


def data_sources(data_root: Path | None = None) -> dict[str, DataSource]:
    """The data sets on a user's disk that families look for, by family, each with its default options."""
    from mlpip_bench.benches.images import ImageFamily

    found = families(data_root)
    image_families = {name: plugin for name, plugin in found.items() if issubclass(plugin, ImageFamily)}
    sources = {name: plugin(plugin.Options()).source() for name, plugin in image_families.items()}
    return {name: source for name, source in sources.items() if source is not None}


def check_new_family(name: str) -> None:
    """Refuse a name for a user's data set that an installed family has, or its folder.

    Raises:
        UserError: who has it.
    """
    sources = data_sources().items()
    taken = {folder: known for known, source in sources for folder in source.folders}
    taken |= {source.stand_in.name: known for known, source in sources if source.stand_in}
    if name in names("bench") or name in taken:
        raise UserError(
            f"the name of a data set must be new; {name!r} is that of the task family {taken.get(name, name)!r}, of "
            "its folder or of its stand-in. Choose another."
        )


def preparers() -> dict[str, Preparer]:
    """What makes data sets on a user's machine, by name, as the data sets of all families bring it."""
    return {name: preparer for source in data_sources().values() for name, preparer in source.preparers.items()}


def loadable(candidates: Iterable[str], load: Callable[[str], _T]) -> dict[str, _T]:
    """The plugins of these names, without those that somebody broke."""
    found = {}
    for name in candidates:
        try:
            found[name] = load(name)
        except UserError:
            continue
    return found


def bench(name: str, data_root: Path | None = None) -> BenchSpec:
    """Read a bench's name.

    Raises:
        UserError: no family has such benches, or a number is too small or too large.
    """
    found = family_of(name)
    spec = family(found, data_root).read_name(name) if found in family_names(data_root) else None
    if spec is None:
        known = families(data_root)
        listed = [example for plugin in known.values() for example in plugin.examples]
        forms = grammar({n: plugin.naming for n, plugin in known.items()})
        if not difflib.get_close_matches(found.lower(), known, n=1, cutoff=0.5):  # no slip, but another data set
            raise UserError(
                f"unknown bench {cut(name)!r}: no data set {cut(found)!r} is installed, or was added to "
                f"{data_root or 'a data root'}. Known: {', '.join(sorted(listed))}. {forms} "
                "Data of your own become a bench with `data add` (docs/my-images.md); pass --data-root then, too."
            )
        own = " Data sets that were added are found with --data-root (or MLPIP_BENCH_DATA)." * (data_root is None)
        raise UserError(f"{unknown_name('bench', name, listed)} {forms}{own}")
    return spec


def origin(kind: Kind, name: str) -> EntryPoint | None:
    """The entry point that registers a plugin; None where the name is not registered, or more than once."""
    entries = list(installed(kind).get(name, {}).values())
    return entries[0] if len(entries) == 1 else None


def _load(kind: Kind, name: str, faults: Callable[[Any], list[str]]) -> Any:
    from mlpip_bench.records.schema import checked_name  # here, since names are listed at once

    known, title = installed(kind), _TITLES[kind]
    try:
        checked_name(name)
    except ValueError as error:
        raise UserError(f"files are named after a {title}: {error}.") from error
    if not known:
        raise UserError(
            f"no {title} is installed: entry points are missing. Install the package (pip install -e . in a checkout)."
        )
    if name not in known:
        raise unknown_name(title, name, known)
    if len(known[name]) > 1:
        origins = " and by ".join(sorted(map(described, known[name].values())))
        raise UserError(
            f"a {title}'s name must be unique; {name!r} is registered by {origins}. "
            "Uninstall the package of one of them, or rename its entry point."
        )
    ((value, entry),) = known[name].items()
    if ":" not in value:
        raise UserError(
            f"the entry point of {title} {name!r} ({described(entry)}) must be module:Class; got {value!r}."
        )
    try:
        plugin = _imported(entry)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a third party's import can fail in any way; it is named, not hidden
        raise UserError(f"{title} {name!r} ({described(entry)}) cannot be imported: {one_line(error)}") from error
    if changes := _CHANGES.get(entry.value):
        raise UserError(
            f"an import must leave the process as it was, or other methods' numbers move; that of {title} {name!r} "
            f"({described(entry)}) changes {'; '.join(changes)}."
        )
    if found := faults(plugin):
        raise UserError(f"{title} {name!r} ({value}) {'; it '.join(found)}.")
    return plugin


_CHANGES: dict[str, list[str]] = {}
"""What the imports of third parties' plugins have changed of the process, by entry point."""


def _imported(entry: EntryPoint) -> Any:
    """What an entry point names; what a third party's import changes of the process is set back, and kept in mind."""
    if entry.module in sys.modules or is_own(entry):  # in this order: whose it is is read from metadata
        return entry.load()
    import mlpip_bench.inference.method  # noqa: F401  # or the import would seem to change what it merely imports

    before = ProcessState()
    try:
        with no_end():
            return entry.load()
    finally:
        _CHANGES[entry.value] = before.set_back()


def is_own(entry: EntryPoint) -> bool:
    """Whether a plugin ships with the suite."""
    return entry.dist is None or entry.dist.name == "mlpip_bench"


def described(entry: EntryPoint) -> str:
    """Where a plugin comes from: ``module:Class of the package NAME``."""
    return f"{entry.value} of the package {entry.dist.name}" if entry.dist else entry.value


def method_faults(plugin: Any) -> list[str]:
    """What keeps a class from being a method, as ends of a sentence that begins with its name."""
    from mlpip_bench.inference.method import Method, TaskKind

    if faults := _class_faults(plugin, (Method,), ("reference", "psi")):
        return faults
    kinds = get_args(TaskKind)
    if not (isinstance(plugin.handles, tuple) and plugin.handles and set(plugin.handles) <= set(kinds)):
        faults.append(f"must have in handles a tuple of some of {', '.join(kinds)}; got {plugin.handles!r}")
    faults += _settings_faults(plugin, "Settings")
    faults += _space_faults(plugin)
    if not (isinstance(plugin.xfail_checks, Mapping) and all(map(_is_text, plugin.xfail_checks.values()))):
        faults.append(f"must have as xfail_checks a mapping of checks to reasons; got {plugin.xfail_checks!r}")
    return faults or _preset_faults(plugin)


def _preset_faults(plugin: type[Method[Any]]) -> list[str]:
    """What a run with one of the presets would refuse, on any bench."""
    from mlpip_bench.benches.settings import resolve
    from mlpip_bench.inference.method import TaskKind

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
                of = family_of(names("bench")[0] if scope in ("*", *get_args(TaskKind)) else scope)
                budget = family(of).budgets[preset]
                resolve(plugin, f"presets[{preset!r}]", budget, preset, (scope,), {})
    except UserError as error:
        return [f"must have presets that can be used: {str(error).removesuffix('.')}"]
    except (Exception, SystemExit) as error:  # a third party's settings can fail in any way
        return [f"must have settings and presets that can be used: {one_line(error)}"]
    return []


def _space_faults(plugin: Any) -> list[str]:
    """What is wrong with a search space: unknown fields, fields of the budget, and what nothing can be drawn from."""
    from mlpip_bench.inference.method import TrainingPlan
    from mlpip_bench.inference.search import BUDGET, LogUniform, OneOf

    fields = {
        field.name
        for settings in (TrainingPlan, plugin.Settings)
        for field in getattr(settings, "__dataclass_fields__", {}).values()
    }
    if not isinstance(plugin.search_space, Mapping):
        return [f"must have in search_space what settings are drawn from, by name; got {plugin.search_space!r:.60}"]
    return [
        f"must have in search_space settings that are no budget, with a LogUniform or OneOf each; {name!r} is not"
        for name, choice in plugin.search_space.items()
        if name not in fields or name in BUDGET or not isinstance(choice, LogUniform | OneOf)
    ]


def protocol_faults(plugin: Any) -> list[str]:
    """What keeps a class from being a protocol, as :func:`method_faults` says it."""
    from mlpip_bench.evaluation.metrics import Metric
    from mlpip_bench.evaluation.protocol import EvalProtocol, SideBySideProtocol

    if faults := _class_faults(plugin, (EvalProtocol, SideBySideProtocol), ("description", "metrics")):
        return faults
    if not (isinstance(plugin.metrics, tuple) and all(isinstance(metric, Metric) for metric in plugin.metrics)):
        faults.append(f"must have as metrics a tuple of Metric; got {plugin.metrics!r}")
    return faults


def backbone_faults(plugin: Any) -> list[str]:
    """What keeps a class from being a backbone, as :func:`method_faults` says it."""
    from mlpip_bench.nn.backbone import Backbone

    return _class_faults(plugin, (Backbone,), ("reference",)) or _settings_faults(plugin, "Settings")


def family_faults(plugin: Any) -> list[str]:
    """What keeps a class from being a task family, as :func:`method_faults` says it."""
    if faults := _class_faults(plugin, (TaskFamily,), ("title", "needs", "examples", "budgets", "backbone")):
        return faults
    faults += _settings_faults(plugin, "Options")
    if missing := [preset for preset in PRESETS if preset not in plugin.budgets]:
        faults.append(f"must have a budget for each of {', '.join(PRESETS)}; {', '.join(missing)} has none")
    return faults


def _class_faults(plugin: Any, bases: tuple[type, ...], attributes: tuple[str, ...]) -> list[str]:
    if not (isinstance(plugin, type) and issubclass(plugin, bases)):
        return [f"must be a subclass of {' or '.join(base.__name__ for base in bases)}; it is {plugin!r}"]
    missing = sorted(getattr(plugin, "__abstractmethods__", ())) if inspect.isabstract(plugin) else []
    missing += [name for name in attributes if not getattr(plugin, name, None)]
    return [f"lacks {', '.join(missing)}"] if missing else []


def _settings_faults(plugin: Any, attribute: str) -> list[str]:
    settings: Any = getattr(plugin, attribute)
    is_dataclass = isinstance(settings, type) and dataclasses.is_dataclass(settings)
    if not (is_dataclass and settings.__dataclass_params__.frozen):
        return [f"must have as {attribute} a frozen dataclass; got {settings!r}"]
    needed = [
        f.name for f in dataclasses.fields(settings) if f.init and f.default is f.default_factory is dataclasses.MISSING
    ]
    return [f"must have a default for every field of {attribute}; {', '.join(needed)} has none"] if needed else []


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
