"""Cells, bench x method x setting x seed: what a run asks for, resolved and checked before any work starts."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import torch

import mlpip_bench
from mlpip_bench import registry
from mlpip_bench.benches.settings import PRESETS, TEST_QUERIES, Resolved, resolve
from mlpip_bench.benches.spec import BenchSpec, parse_bench
from mlpip_bench.benches.streams import TaskSource, angle_coordinates, fitted, queries_at_test, task_streams
from mlpip_bench.code import plugin_code
from mlpip_bench.datasets.catalog import DataOptions, SourceChoice, load
from mlpip_bench.evaluation.protocol import MeasurementRule
from mlpip_bench.inference.method import Method, Problem, TrainingPlan
from mlpip_bench.nn.normalization import NORM_MODES, NormMode
from mlpip_bench.records.record import LARGEST_SEED, path_of
from mlpip_bench.tasks.linear_gaussian import LinearGaussian
from mlpip_bench.tasks.stream import Stream
from mlpip_bench.tasks.views import Angles
from mlpip_bench.training.checkpoints import load_checkpoint
from mlpip_bench.utils.device import Numerics, resolve_device
from mlpip_bench.utils.errors import UserError, one_line, unknown_name
from mlpip_bench.utils.progress import Reporter
from mlpip_bench.utils.seeding import seed_from

Overwrite = Literal["never", "failed", "always"]
DEFAULT_NORM: NormMode = "metabn"

_log = logging.getLogger("mlpip_bench")


@dataclass(frozen=True)
class RunConfig:
    """What a user asks for.

    Attributes:
        methods: names; none for the methods that enter a bench by default.
        benches: names.
        protocols: names, each of which is measured where it applies; none for those that are measured by default.
        seeds: training seeds.
        norms: normalisation modes; all methods are run in each.
        preset: budget.
        queries: queries per class at test.
        overrides: fields of plan or settings, for all methods (key ``"*"``) or by method.
        sweeps: several such settings, each of which makes cells of its own, likewise by method.
        source, data_root, data: where images come from.
        angles: how the angle of a view is given.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        numerics: how numbers are computed.
        overwrite: which cells run again: none, failed ones, or all.
        results: folder of records, tables and checkpoints.
    """

    methods: tuple[str, ...]
    benches: tuple[str, ...]
    protocols: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    norms: tuple[NormMode, ...] = (DEFAULT_NORM,)
    preset: str = "quick"
    queries: int = TEST_QUERIES
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sweeps: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    source: SourceChoice = "auto"
    data_root: Path | None = None
    data: DataOptions = field(default_factory=DataOptions)
    angles: Angles = "sincos"
    device: str = "auto"
    numerics: Numerics = field(default_factory=Numerics)
    overwrite: Overwrite = "failed"
    results: Path = Path("results")

    def only(self, cells: Sequence[Cell]) -> RunConfig:
        """What asks for these cells, and for no others unless they are of several benches, seeds or norms.

        Its paths are absolute: it can be planned again in a process with another working directory.
        """
        methods = tuple(dict.fromkeys(cell.method for cell in cells))
        swept = {
            m: [dict(t) for t in dict.fromkeys(tuple(c.swept.items()) for c in cells if c.method == m)] for m in methods
        }
        return dataclasses.replace(
            self,
            methods=methods,
            benches=tuple(dict.fromkeys(cell.bench.name for cell in cells)),
            seeds=tuple(dict.fromkeys(cell.seed for cell in cells)),
            norms=tuple(dict.fromkeys(cell.norm for cell in cells)),
            overrides={name: self.overrides[name] for name in ("*", *methods) if name in self.overrides},
            sweeps=swept,
            data_root=self.data_root and self.data_root.expanduser().absolute(),
            results=self.results.absolute(),
        )


@dataclass(frozen=True, eq=False)
class Cell:
    """One bench x method x setting x seed, fully resolved.

    Attributes:
        bench, method, seed: which cell.
        swept: its own of the settings that a sweep tries.
        plan, settings, norm, preset, queries: how it is trained and tested.
        protocols: what is measured, of what was asked for: those that apply to its bench and method, each with the
            fingerprint of its code.
        method_code: fingerprint of the method's code.
        dataset: where its tasks come from.
        device: where it runs.
        numerics: how numbers are computed there.
    """

    bench: BenchSpec
    method: str
    seed: int
    swept: Mapping[str, Any]
    plan: TrainingPlan
    settings: Any
    norm: NormMode
    preset: str
    queries: int
    protocols: Mapping[str, str]
    method_code: str
    dataset: TaskSource
    device: torch.device
    numerics: Numerics

    @property
    def title(self) -> str:
        """For messages."""
        settings = "".join(f" {name}={value}" for name, value in self.swept.items())
        return f"{self.bench.name} {self.method}{settings} {self.norm} seed {self.seed}"

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration as JSON values."""
        config = {
            "way": self.bench.way,
            "shot": self.bench.shot,
            "queries": self.queries,
            "norm": self.norm,
            "preset": self.preset,
            **dataclasses.asdict(self.plan),
            **{k: v for k, v in dataclasses.asdict(self.numerics).items() if v != getattr(Numerics(), k)},
            "settings": dataclasses.asdict(self.settings),
        }
        plain: dict[str, Any] = json.loads(json.dumps(config))
        return plain

    @property
    def data(self) -> dict[str, Any]:
        """What a record says of the data."""
        return {
            "name": self.dataset.name,
            "source": self.dataset.source,
            "fingerprint": self.dataset.fingerprint,
            "options": dict(self.dataset.options),
        }

    @functools.cached_property
    def key(self) -> str:
        """Hash of all that decides its numbers, whatever is measured."""
        return self._hash(self.config, self.code())

    @functools.cached_property
    def training_key(self) -> str:
        """Hash of all that decides the trained model; what only the test sees is left out."""
        config = {k: v for k, v in self.config.items() if k not in ("queries", "test_tasks", "compile")}
        return self._hash(config, self.code())

    def record_key(self, protocol: str) -> str:
        """Hash of all that decides a record."""
        return self._hash({**self.config, "protocol": protocol}, self.code(protocol))

    def code(self, protocol: str | None = None) -> dict[str, str]:
        """Version of the engine, and fingerprints of the code of the method and of one of its protocols."""
        code = {"engine": mlpip_bench.__version__, "method": self.method_code}
        return code | {"protocol": self.protocols[protocol]} if protocol else code

    def _hash(self, config: Mapping[str, Any], code: Mapping[str, str]) -> str:
        parts = [self.bench.name, self.method, self.seed, self.device.type, self.data, config, code]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def path(self, results_folder: Path, kind: str, suffix: str) -> Path:
        """Where a file of this cell lies: its checkpoint, failure or lock."""
        name = f"seed{self.seed}-{self.training_key[:12]}{suffix}"
        return results_folder / kind / self.bench.name / self.method / name

    def checkpoint(self, results_folder: Path) -> Path:
        """Where its training state lies."""
        return self.path(results_folder, "checkpoints", ".pt")

    def record_path(self, results_folder: Path, protocol: str) -> Path:
        """Where the record of a protocol lies."""
        key = self.record_key(protocol)
        return path_of(results_folder, self.bench.name, self.method, protocol, self.seed, key)


def plan_cells(config: RunConfig, reporter: Reporter | None = None, *, here: bool = True) -> list[Cell]:
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
    cells = [
        Cell(
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
    cells = list({cell.key: cell for cell in cells}.values())  # two values may come to one setting
    if not any(cell.protocols for cell in cells):
        kinds = sorted({bench.data.kind for bench in benches})
        raise UserError(
            f"a protocol must apply to bench and method; none of {', '.join(protocols)} does to "
            f"{', '.join(plugins)} on {' or '.join(kinds)}. See: list protocols."
        )
    for cell in cells:
        _check(cell, config.results)
    return cells


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
    """The settings that sweeps try with a method, each a cell: one of those of all methods with one of its own."""
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


def streams_of(cell: Cell, device: torch.device) -> dict[str, Stream]:
    """The task streams of a cell by split."""
    return task_streams(cell.bench, cell.dataset, cell.plan, queries=cell.queries, seed=cell.seed, device=device)


def _check(cell: Cell, folder: Path) -> None:
    streams_of(cell, torch.device("cpu"))
    if (checkpoint := cell.checkpoint(folder)).exists():
        load_checkpoint(checkpoint)
    try:
        build_method(cell)
    except UserError:
        raise
    except (Exception, SystemExit):  # a plugin's fault, which fails its cell and no other
        _log.debug("%s cannot be built", cell.title, exc_info=True)


def build_method(cell: Cell) -> Method[Any]:
    """A cell's method with its seeded initial parameters, on its device."""
    plugin = registry.method(cell.method)
    bench = cell.bench
    inputs = angle_coordinates(cell.dataset)
    problem = Problem(bench.extractor, cell.norm, bench.way, bench.data.kind, bench.data.noise_std, inputs)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_from("initialisation", cell.seed))
        return plugin(problem, cell.settings).to(cell.device)
