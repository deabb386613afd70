"""From what a user asks for to trials, resolved and checked before any work starts."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from mlpip_bench import registry
from mlpip_bench.benches.family import PRESETS, TaskFamily, TaskSource
from mlpip_bench.benches.settings import Resolved, resolve, scopes
from mlpip_bench.benches.spec import BenchSpec
from mlpip_bench.evaluation.protocol import EvalProtocol, MeasurementRule
from mlpip_bench.execution.config import Overwrite, RunConfig
from mlpip_bench.execution.fingerprint import plugin_code
from mlpip_bench.execution.memory import check_memory
from mlpip_bench.execution.starting import (
    backbone_of,
    check_init,
    check_used,
    init_of,
    norm_of,
    plan_of,
    pretraining_of,
)
from mlpip_bench.execution.trial import TestedOn, Trial
from mlpip_bench.execution.tuning import tuned
from mlpip_bench.inference.method import Method
from mlpip_bench.nn.backbone import BackboneSpec
from mlpip_bench.records.record import LARGEST_SEED
from mlpip_bench.training.checkpoints import load_checkpoint
from mlpip_bench.training.loggers import check_installed
from mlpip_bench.training.pretraining import images_of
from mlpip_bench.utils.choices import NORM_MODES, OWN_NORM, Log, SourceChoice
from mlpip_bench.utils.device import resolve_device
from mlpip_bench.utils.errors import UserError, one_line, unknown_name
from mlpip_bench.utils.places import is_place
from mlpip_bench.utils.progress import Reporter
from mlpip_bench.utils.settings import key_of, with_values

CONCENTRATIONS = 0.01, 100
"""Below them nearly all queries are of one class, and above them all classes have nearly as many."""


def plan_trials(
    config: RunConfig,
    reporter: Reporter | None = None,
    *,
    here: bool = True,
    at_once: int = 1,
    again: bool = False,
    methods: Mapping[str, type[Method[Any]]] | None = None,
) -> list[Trial]:
    """Resolve and check everything that was asked for, before any work starts.

    No image is read that is in the cache, and no model is built.

    Args:
        config: what is asked for.
        reporter: shows what is read.
        here: whether this machine is the one that must have the device.
        at_once: how many trials share its memory.
        again: whether they are some of those that another process has planned.
        methods: classes by name that need not be registered.

    Raises:
        UserError: an unknown name or value, data that is missing or broken, tasks that the data
            cannot give, or a damaged checkpoint.
    """
    _check_words(config)
    device = resolve_device(config.device, here=here)
    config.numerics.check(device)
    benches = [registry.bench(name, config.data_root) for name in config.benches]
    elsewhere = () if config.test_on is None else (config.test_on,)
    _check_elsewhere(config, benches)
    families = {name: _family(name, config) for name in dict.fromkeys([*(b.family for b in benches), *elsewhere])}
    named = tuple(registry.method_at(name) if is_place(name) else name for name in config.methods)
    entered = {bench: named or _default_methods(bench, families[bench.family]) for bench in benches}
    at_hand = methods or {}
    plugins = {name: at_hand.get(name) or registry.method(name) for names in entered.values() for name in names}
    of_protocols = {name: registry.protocol(name) for name in config.protocols or _default_protocols()}
    _check_names(config, families, plugins, of_protocols)
    unused = [] if again else check_used(config, plugins)
    protocol_settings = {
        name: chosen
        for name, plugin in of_protocols.items()
        if key_of(chosen := with_values(plugin.Settings, config.overrides.get(name, {}), name))
    }
    protocols = {name: plugin(protocol_settings.get(name)) for name, plugin in of_protocols.items()}
    pairs = [(bench, name) for bench in benches for name in entered[bench]]
    for bench, name in pairs:
        _check_kind(bench, families[bench.family], name, plugins[name])
    resolved = {
        (bench, name): [
            (swept, _resolve(config, bench, families[bench.family], name, plugins[name], swept))
            for swept in _swept(config, name)
        ]
        for bench, name in pairs
    }
    if reporter is not None:
        reporter.say("reading data; what is decoded or drawn for it is kept")
    data = {name: family.load(config.request(reporter)) for name, family in families.items()}
    tested_on = {bench: _tested_on(config, bench, families, data) for bench in benches}
    backbones = {bench: _backbone(config, bench, families[bench.family], data[bench.family]) for bench in benches}
    init = init_of(config)
    codes = functools.cache(_code)  # within a plan the code stays as it is, and trials may be thousands
    trials = []
    for bench, norm, seed in itertools.product(benches, config.norms, config.seeds):
        family, source = families[bench.family], data[bench.family]
        for name in entered[bench]:
            for swept, chosen in resolved[bench, name]:
                spec = backbone_of(plugins[name], backbones[bench])
                pretraining = pretraining_of(config, plugins[name], spec)
                comes_trained = bool(init or spec.outside or pretraining or plugins[name].network_name)
                if comes_trained and not plugins[name].trainable and seed != config.seeds[0]:
                    continue  # which would be the same model again, and no other training
                plan = plan_of(chosen.plan, config, plugins[name], comes_trained=comes_trained)
                applicable = _applicable(protocols, bench, family, plugins[name], chosen.settings)
                trials.append(
                    Trial(
                        bench=bench,
                        family=family,
                        method=name,
                        plugin=plugins[name],
                        seed=seed,
                        swept=swept,
                        plan=family.fitted(plan, bench, source),
                        settings=chosen.settings,
                        norm=norm_of(norm, spec, pretraining),
                        backbone=spec,
                        preset=config.preset,
                        queries=families[config.test_on or bench.family].queries_at_test(config.queries),
                        query_concentration=config.query_concentration,
                        pretraining=pretraining,
                        init=None if plugins[name].network_name else init,
                        tested_on=tested_on[bench],
                        training_classes=family.training_classes(source),
                        protocols=applicable,
                        protocol_settings={n: s for n, s in protocol_settings.items() if n in applicable},
                        code=codes(name, (bench.family, *elsewhere), spec.registered, applicable),
                        data=source,
                        device=device,
                        numerics=config.numerics,
                    )
                )
    trials = list({trial.key: trial for trial in trials}.values())  # two values may come to one setting
    if config.tune is not None:
        trials += [tuned(trial, config) for trial in trials]
    if config.recalibrate:
        trials += [_recalibrated(trial) for trial in trials]
    if not any(trial.protocols for trial in trials):
        kinds = sorted({family.kind for family in families.values()})
        of_one_shape = [name for name, protocol in protocols.items() if not protocol.ranges]
        ranges = [bench.name for bench in benches if bench.least]
        why = (
            f" {', '.join(of_one_shape)} cannot measure tasks of ways and shots of their own, as {ranges[0]} has."
            if of_one_shape and ranges
            else ""
        )
        raise UserError(
            f"a protocol must apply to bench and method; none of {', '.join(protocols)} does to "
            f"{', '.join(plugins)} on {' or '.join(kinds)}.{why} See: list protocols."
        )
    trainings = [
        each
        for trial in trials
        for each in ([trial] if trial.tuning is None else map(trial.draw, range(trial.tuning.draws)))
    ]
    notes = dict.fromkeys(unused) | dict.fromkeys(note for each in trainings for note in _checked(each, config.results))
    if reporter is not None:
        for note in notes:
            reporter.say(note)
    if here:
        check_memory(trainings, min(at_once, len(trials)))  # draws of a trial come one after the other
    return trials


def _recalibrated(trial: Trial) -> Trial:
    """The companion of a trial that is measured with a temperature."""
    if trial.family.kind != "classification":
        raise UserError(
            f"--recalibrate is for probabilities of classes; {trial.bench.name} is {trial.family.kind}. Leave it out."
        )
    if trial.bench.least:
        raise UserError(
            f"--recalibrate fits one temperature, to tasks of one way and shot; those of {trial.bench.name} each have "
            "their own. Name a bench of one way and shot, such as omni5w1s, or leave it out."
        )
    return replace(trial, protocols=trial.protocols_of_one_model, recalibrated=True)


def _check_words(config: RunConfig) -> None:
    for kind, value, known in (
        *(("norm", norm, (*NORM_MODES, OWN_NORM)) for norm in config.norms),
        ("preset", config.preset, PRESETS),
        ("overwrite", config.overwrite, get_args(Overwrite)),
        ("source", config.source, get_args(SourceChoice)),
        *([] if config.log is None else [("log", config.log, get_args(Log))]),
    ):
        if value not in known:
            if kind == "norm" and value.lower().replace("_", "").startswith(("batch", "bn")):
                raise UserError(
                    f"unknown norm {value!r}. Batch normalization is `transductive` where a task's queries are in its "
                    f"statistics, and `running` where they are averages of training. Known: {', '.join(NORM_MODES)}."
                )
            raise unknown_name(kind, value, known)
    if config.log is not None:
        check_installed(config.log)
    for kind, values in (("bench", config.benches), ("norm", config.norms), ("seed", config.seeds)):
        if not values:
            raise UserError(f"a run needs at least one {kind}.")
    if not all(0 <= seed < LARGEST_SEED for seed in config.seeds):
        raise UserError(f"seeds must be from 0 to {LARGEST_SEED - 1}; got {', '.join(map(str, config.seeds))}.")
    if config.queries < 1:
        raise UserError(f"--queries must be at least 1; got {config.queries}.")
    least, most = CONCENTRATIONS
    if (given := config.query_concentration) is not None and not least <= given <= most:
        raise UserError(
            f"--query-concentration must be from {least} to {most}; got {given:g}. 2 is usual; larger is more equal."
        )


def _check_names(
    config: RunConfig, families: Iterable[str], plugins: Iterable[str], protocols: Collection[str]
) -> None:
    """Refuse settings of methods and protocols, and options of task families, that are not part of the run."""
    for option, settings in (("--set", config.overrides), ("--sweep", config.sweeps)):
        measured = set(protocols) if option == "--set" else set()  # what a sweep tries is trained
        for name in settings.keys() - {"*"} - set(plugins) - measured:
            if name in registry.protocol_names() and option == "--set":
                raise UserError(
                    f"{option} names a protocol of the run; {name!r} is not among --protocols {','.join(protocols)}."
                )
            if name not in (installed := registry.method_names()):
                raise unknown_name(f"method in {option}", name, installed)
            raise UserError(f"{option} names a method of the run; {name!r} is not among --methods {','.join(plugins)}.")
    for name in config.data.keys() - set(families):
        if name not in (known := registry.family_names(config.data_root)):
            raise unknown_name("task family in --data", name, known)
        raise UserError(f"--data names a task family of the run; {name!r} is not among {', '.join(families)}.")


def _check_kind(bench: BenchSpec, family: TaskFamily, name: str, plugin: type[Method[Any]]) -> None:
    if family.kind not in plugin.handles:
        known = registry.loadable(registry.method_names(), registry.method)
        able = [other for other, found in known.items() if family.kind in found.handles]
        raise UserError(
            f"a method must handle a bench's kind of task; {bench.name} is {family.kind} and {name} handles "
            f"{' and '.join(plugin.handles)}. Methods for {bench.name}: {', '.join(able)}."
        )
    if bench.least and (reason := plugin.xfail_checks.get("way_and_shot")):
        raise UserError(
            f"tasks of {bench.name} each have a way and shots of their own; {name} can have but one: {reason}. Leave "
            "it out, or name a bench with one way and one shot."
        )


def _family(name: str, config: RunConfig) -> TaskFamily:
    plugin = registry.family(name, config.data_root)
    return plugin(with_values(plugin.Options, config.data.get(name, {}), name))


def _check_elsewhere(config: RunConfig, benches: Sequence[BenchSpec]) -> None:
    """Refuse an unknown name of other data for the test, with those that could be meant."""
    if config.test_on is None or config.test_on in registry.family_names(config.data_root):
        return
    own = registry.family(benches[0].family, config.data_root)
    found = registry.families(config.data_root).items()
    others = [name for name, plugin in found if plugin is not own and _have_such_tasks(own, plugin)]
    raise unknown_name("data set of --test-on", config.test_on, others)


def _have_such_tasks(own: type[TaskFamily], other: type[TaskFamily]) -> bool:
    """Whether tasks of two families are of one kind, and have the same numbers in their names."""
    return own.kind == other.kind and own.naming.lstrip("-") == other.naming.lstrip("-")


def _tested_on(
    config: RunConfig, bench: BenchSpec, families: Mapping[str, TaskFamily], data: Mapping[str, TaskSource]
) -> TestedOn | None:
    """The other data that test tasks are of; it must have tasks of the same kind and inputs of the same shape."""
    if (name := config.test_on) is None or name == bench.family:
        return None
    own, other = families[bench.family], families[name]
    what = f"--test-on must name a data set with tasks like those of {bench.name}"
    if not _have_such_tasks(type(own), type(other)):
        raise UserError(
            f"{what}; those of {name} are {other.kind} ({name}{other.naming.replace('{', '<').replace('}', '>')})."
        )
    shapes = [family.input_shape(data[of]) for family, of in ((own, bench.family), (other, name))]
    if shapes[0] != shapes[1]:
        sizes = ["x".join(map(str, shape)) for shape in shapes]
        raise UserError(
            f"{what}, whose inputs have one shape; {bench.family} has {sizes[0]} and {name} {sizes[1]} (channels, "
            "height, width). Of data of your own, data add --image-size says the height and width."
        )
    sources = data[bench.family].source, data[name].source
    if sources[0] != sources[1]:
        raise UserError(
            f"{what}, both real or both stand-ins; {bench.family} is {sources[0]} and {name} {sources[1]}. Put the "
            "missing data below --data-root, or pass --source procedural for both."
        )
    spec = registry.bench(name + other.naming.format(**bench.fields), config.data_root)
    return TestedOn(spec, other, data[name])


def _default_methods(bench: BenchSpec, family: TaskFamily) -> tuple[str, ...]:
    """Methods that enter a bench where none is named."""
    installed = registry.method_names()
    found = tuple(name for name in family.default_methods if name in installed)
    if not found:
        raise UserError(f"no installed method enters {bench.name} by default; name some with --methods.")
    return found


def _default_protocols() -> list[str]:
    """Protocols that are measured where none is named; somebody's broken plugin is none of them."""
    known = registry.loadable(registry.protocol_names(), registry.protocol)
    return [name for name, plugin in known.items() if plugin.default]


def _backbone(config: RunConfig, bench: BenchSpec, family: TaskFamily, data: Any) -> BackboneSpec:
    """The network that a user chose, else the family's own, with the family's settings where it is that one."""
    name = config.backbone or family.backbone
    plugin = registry.backbone(name)
    own = family.settings_of_backbone(bench) if name == family.backbone else {}
    settings = with_values(plugin.Settings, {**own, **config.backbone_settings}, name)
    spec = BackboneSpec(name, plugin, settings, family.input_shape(data))
    plugin.check(spec.input_shape, settings)
    if config.init is not None and spec.outside is not None:
        theirs = spec.outside.path or "has weights that its code loads"
        raise UserError(
            f"parameters are of one file; --init names {config.init}, and --backbone {theirs}. Leave one of "
            "them out: what --init names has those of the backbone, too."
        )
    return spec


def _code(method: str, families: tuple[str, ...], backbone: str, protocols: tuple[str, ...]) -> dict[str, str]:
    """Fingerprints of the plugins that do not ship with the suite."""
    plugins: list[tuple[registry.Kind, str]] = [
        ("method", method),
        *(("bench", family) for family in families),
        ("backbone", backbone),
        *(("protocol", name) for name in protocols),
    ]
    found = {f"{kind} {name}": plugin_code(kind, name) for kind, name in plugins}
    return {plugin: code for plugin, code in found.items() if code is not None}


def _applicable(
    protocols: Mapping[str, MeasurementRule],
    bench: BenchSpec,
    family: TaskFamily,
    plugin: type[Method[Any]],
    settings: Any,
) -> tuple[str, ...]:
    """Names of the protocols that apply."""
    found = []
    for name, protocol in protocols.items():
        try:
            of_family = family.kind in protocol.handles and isinstance(family, protocol.families or (TaskFamily,))
            of_bench = of_family and (protocol.ranges or not bench.least)
            if of_bench and protocol.applies(plugin, settings):
                found.append(name)
        except Exception as error:  # whatever somebody's plugin raises
            raise UserError(
                f"protocol {name!r} cannot say whether it applies to {bench.name}: {one_line(error)}."
            ) from error
    return tuple(found)


def usual_protocols(trial: Trial) -> tuple[str, ...]:
    """Names of the protocols that measure a trial's model where none is named."""
    usual = {name: trial.protocol(name) for name in _default_protocols()}
    alone = {name: protocol for name, protocol in usual.items() if isinstance(protocol, EvalProtocol)}
    return _applicable(alone, trial.bench, trial.family, trial.plugin, trial.settings)


def check_protocol(name: str, trial: Trial) -> None:
    """Refuse a protocol that cannot measure a trial's model by itself.

    Raises:
        UserError: it is unknown, does not apply, or measures several models side by side.
    """
    plugin = registry.protocol(name)
    if not issubclass(plugin, EvalProtocol):
        raise UserError(f"a model is evaluated by protocols that measure one; {name} measures several side by side.")
    if not _applicable({name: plugin()}, trial.bench, trial.family, trial.plugin, trial.settings):
        raise UserError(f"a protocol must apply to bench and method; {name} does not to {trial.title}.")


def _swept(config: RunConfig, method: str) -> list[dict[str, Any]]:
    """The settings that sweeps try with a method, each a trial: one of those of all methods with one of its own."""
    return [
        {**for_all, **own}
        for for_all, own in itertools.product(config.sweeps.get("*", [{}]), config.sweeps.get(method, [{}]))
    ]


def _resolve(
    config: RunConfig,
    bench: BenchSpec,
    family: TaskFamily,
    name: str,
    plugin: type[Method[Any]],
    swept: Mapping[str, Any],
) -> Resolved:
    overrides = {**config.overrides.get("*", {}), **config.overrides.get(name, {}), **swept}
    budget = family.budgets[config.preset]
    return resolve(plugin, name, budget, config.preset, scopes(family, bench), overrides)


def _checked(trial: Trial, folder: Path) -> list[str]:
    """What will be measured otherwise than asked; raises what a trial's work would refuse.

    No image is read, and no model is built but one that starts from a file.
    """
    streams, notes = trial.streams(), []
    test = streams["test"]
    if trial.pretraining is not None:
        images_of(streams["train"], trial.bench.name)
    for name in trial.protocols:
        protocol = trial.protocol(name)
        protocol.check(test)
        if note := protocol.note(test):
            notes.append(f"{trial.measured_as}, {name}: {note}")
    if (checkpoint := trial.checkpoint(folder)).exists():
        load_checkpoint(checkpoint, trial.training_key)
    trial.plugin.check(trial.problem, trial.settings)
    check_init(trial)
    return notes
