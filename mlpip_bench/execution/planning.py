"""From what a user asks for to trials, resolved and checked before any work starts."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import torch

from mlpip_bench import registry
from mlpip_bench.benches.settings import PRESETS, Resolved, resolve
from mlpip_bench.benches.spec import BenchSpec, parse_bench
from mlpip_bench.benches.streams import TaskSource, fitted, queries_at_test
from mlpip_bench.datasets.catalog import SourceChoice, load
from mlpip_bench.evaluation.protocol import MeasurementRule
from mlpip_bench.execution.config import Overwrite, RunConfig
from mlpip_bench.execution.fingerprint import plugin_code
from mlpip_bench.execution.trial import Trial, build_method, streams_of
from mlpip_bench.inference.method import Method
from mlpip_bench.nn.normalization import NORM_MODES
from mlpip_bench.records.record import LARGEST_SEED
from mlpip_bench.tasks.linear_gaussian import LinearGaussian
from mlpip_bench.tasks.views import Angles
from mlpip_bench.training.checkpoints import load_checkpoint
from mlpip_bench.utils.device import resolve_device
from mlpip_bench.utils.errors import UserError, one_line, unknown_name
from mlpip_bench.utils.progress import Reporter

_log = logging.getLogger("mlpip_bench")


def plan_trials(config: RunConfig, reporter: Reporter | None = None, *, here: bool = True) -> list[Trial]:
    """Resolve and check everything that was asked for, before any work starts; reads the data.

    Args:
        config: what is asked for.
        reporter: is told what is read.
        here: whether this machine is the one that must have the device.

    Raises:
        UserError: an unknown name or value, data that is missing or broken, tasks that the data
            cannot give, or a damaged checkpoint.
    """
    for kind, value, known in (
        *(("norm", norm, NORM_MODES) for norm in config.norms),
        ("preset", config.preset, PRESETS),
        ("overwrite", config.overwrite, get_args(Overwrite)),
        ("source", config.source, get_args(SourceChoice)),
        ("angles", config.angles, get_args(Angles)),
    ):
        if value not in known:
            raise unknown_name(kind, value, known)
    for kind, values in (
        ("bench", config.benches),
        ("norm", config.norms),
        ("seed", config.seeds),
    ):
        if not values:
            raise UserError(f"a run needs at least one {kind}.")
    if not all(0 <= seed < LARGEST_SEED for seed in config.seeds):
        raise UserError(f"seeds must be from 0 to {LARGEST_SEED - 1}; got {', '.join(map(str, config.seeds))}.")
    if config.queries < 1:
        raise UserError(f"--queries must be at least 1; got {config.queries}.")
    device = resolve_device(config.device, here=here)
    config.numerics.check(device)
    benches = [parse_bench(name) for name in config.benches]
    entered = {bench: config.methods or _entering(bench) for bench in benches}
    plugins = {name: registry.method(name) for names in entered.values() for name in names}
    protocols = {
        name: registry.protocol(name)()
        for name in config.protocols or _those(registry.protocol_names(), registry.protocol, _is_default)
    }
    for option, settings in (("--set", config.overrides), ("--sweep", config.sweeps)):
        for name in settings.keys() - {"*"} - plugins.keys():
            if name not in (installed := registry.method_names()):
                raise unknown_name(f"method in {option}", name, installed)
            raise UserError(f"{option} names a method of the run; {name!r} is not among --methods {','.join(plugins)}.")
    pairs = [(bench, name) for bench in benches for name in entered[bench]]
    for bench, name in pairs:
        kind = bench.data.kind
        if kind not in plugins[name].handles:
            able = _those(registry.method_names(), registry.method, lambda other: kind in other.handles)  # noqa: B023
            raise UserError(
                f"a method must handle a bench's kind of task; {bench.name} is {kind} and {name} handles "
                f"{' and '.join(plugins[name].handles)}. Methods for {bench.name}: {', '.join(able)}."
            )
    resolved = {
        (bench, name): [(swept, _resolve(config, bench, name, plugins[name], swept)) for swept in _swept(config, name)]
        for bench, name in pairs
    }
    if reporter is not None:
        reporter.say("reading data; what is decoded or drawn for it is kept")
    datasets = {
        name: _load(bench, config, reporter) for name, bench in {bench.dataset: bench for bench in benches}.items()
    }
    trials = [
        Trial(
            bench=bench,
            method=name,
            seed=seed,
            swept=swept,
            plan=fitted(chosen.plan, bench, datasets[bench.dataset]),
            settings=chosen.settings,
            norm=norm,
            preset=config.preset,
            queries=queries_at_test(bench, config.queries),
            protocols=_applicable(protocols, bench, plugins[name], chosen.settings),
            method_code=plugin_code(plugins[name]),
            dataset=datasets[bench.dataset],
            device=device,
            numerics=config.numerics,
        )
        for bench in benches
        for norm in config.norms
        for seed in config.seeds
        for name in entered[bench]
        for swept, chosen in resolved[bench, name]
    ]
    trials = list({trial.key: trial for trial in trials}.values())  # two values may come to one setting
    if not any(trial.protocols for trial in trials):
        kinds = sorted({bench.data.kind for bench in benches})
        raise UserError(
            f"a protocol must apply to bench and method; none of {', '.join(protocols)} does to "
            f"{', '.join(plugins)} on {' or '.join(kinds)}. See: list protocols."
        )
    for trial in trials:
        _check(trial, config.results)
    return trials


_Plugin = TypeVar("_Plugin")


def _those(names: Iterable[str], load: Callable[[str], _Plugin], wanted: Callable[[_Plugin], bool]) -> list[str]:
    """Names of the plugins that are wanted; somebody's broken plugin is none of them."""
    found = []
    for name in names:
        with contextlib.suppress(UserError):
            if wanted(load(name)):
                found.append(name)
    return found


def _entering(bench: BenchSpec) -> list[str]:
    """Methods that enter a bench where none is named."""
    found = _those(registry.method_names(), registry.method, lambda method: bench.dataset in method.default_for)
    if not found:
        raise UserError(f"no installed method enters {bench.name} by default; name some with --methods.")
    return found


def _is_default(protocol: type[MeasurementRule]) -> bool:
    return protocol.default


def _load(bench: BenchSpec, config: RunConfig, reporter: Reporter | None) -> TaskSource:
    if bench.data.kind == "regression" and bench.data.noise_std is not None:
        return LinearGaussian(bench.data.extractor.features, bench.data.noise_std)
    dataset = load(
        bench.dataset, source=config.source, data_root=config.data_root, options=config.data, reporter=reporter
    )
    if bench.data.kind == "reconstruction":
        return dataclasses.replace(dataset, options={**dataset.options, "angles": config.angles})
    return dataset


def _applicable(
    protocols: Mapping[str, MeasurementRule], bench: BenchSpec, plugin: type[Method[Any]], settings: Any
) -> dict[str, str]:
    """Names of the protocols that apply, with the fingerprints of their code."""
    found = {}
    for name, protocol in protocols.items():
        try:
            of_bench = bench.data.kind in protocol.handles and bench.dataset in (protocol.datasets or (bench.dataset,))
            if of_bench and protocol.applies(plugin, settings):
                found[name] = plugin_code(type(protocol))
        except Exception as error:  # whatever somebody's plugin raises
            raise UserError(f"protocol {name!r} cannot say whether it applies: {one_line(error)}.") from error
    return found


def _swept(config: RunConfig, method: str) -> list[dict[str, Any]]:
    """The settings that sweeps try with a method, each a trial: one of those of all methods with one of its own."""
    return [
        {**for_all, **own}
        for for_all, own in itertools.product(config.sweeps.get("*", [{}]), config.sweeps.get(method, [{}]))
    ]


def _resolve(
    config: RunConfig, bench: BenchSpec, name: str, plugin: type[Method[Any]], swept: Mapping[str, Any]
) -> Resolved:
    overrides = {**config.overrides.get("*", {}), **config.overrides.get(name, {}), **swept}
    default = bench.data.budgets[config.preset]
    return resolve(plugin, name, default, config.preset, (bench.dataset, bench.name), overrides)


def _check(trial: Trial, folder: Path) -> None:
    streams_of(trial, torch.device("cpu"))
    if (checkpoint := trial.checkpoint(folder)).exists():
        load_checkpoint(checkpoint)
    try:
        build_method(trial)
    except UserError:
        raise
    except (Exception, SystemExit):  # a plugin's fault, which fails its trial and no other
        _log.debug("%s cannot be built", trial.title, exc_info=True)
