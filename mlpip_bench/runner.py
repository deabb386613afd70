"""Cells, bench x method x seed: which are asked for, which are done, and running the rest."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import torch

import mlpip_bench
from mlpip_bench import registry, results
from mlpip_bench.api import (
    EvalProtocol,
    MeasurementRule,
    Method,
    Problem,
    Resolved,
    SideBySideProtocol,
    TrainingPlan,
    resolve,
)
from mlpip_bench.benches import PRESETS, TEST_QUERIES, BenchSpec, parse_bench
from mlpip_bench.datasets.catalog import DataOptions, SourceChoice, load
from mlpip_bench.datasets.linear_gaussian import LinearGaussian
from mlpip_bench.device import Numerics, environment, keep_freed_memory, resolve_device
from mlpip_bench.errors import CellError, UserError, one_line, unknown_name
from mlpip_bench.evaluate import Contender, Evaluation, compile_for_tests, is_inductive
from mlpip_bench.metrics import VALIDATION
from mlpip_bench.normalization import NORM_MODES, NormMode
from mlpip_bench.progress import Reporter
from mlpip_bench.results import Record, Scores
from mlpip_bench.streams import Angles, TaskSource, angle_coordinates, fitted, queries_at_test, task_streams
from mlpip_bench.tasks import Stream, seed_from
from mlpip_bench.train import State, TrainingState, load_checkpoint, train

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
    source: SourceChoice = "auto"
    data_root: Path | None = None
    data: DataOptions = field(default_factory=DataOptions)
    angles: Angles = "sincos"
    device: str = "auto"
    numerics: Numerics = field(default_factory=Numerics)
    overwrite: Overwrite = "failed"
    results: Path = Path("results")


@dataclass(frozen=True, eq=False)
class Cell:
    """One bench x method x seed, fully resolved.

    Attributes:
        bench, method, seed: which cell.
        plan, settings, norm, preset, queries: how it is trained and tested.
        protocols: what is measured, of what was asked for: those that apply to its bench and method.
        dataset: where its tasks come from.
        device: where it runs.
        numerics: how numbers are computed there.
    """

    bench: BenchSpec
    method: str
    seed: int
    plan: TrainingPlan
    settings: Any
    norm: NormMode
    preset: str
    queries: int
    protocols: tuple[str, ...]
    dataset: TaskSource
    device: torch.device
    numerics: Numerics

    @property
    def title(self) -> str:
        """For messages."""
        return f"{self.bench.name} {self.method} {self.norm} seed {self.seed}"

    @property
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

    @property
    def training_key(self) -> str:
        """Hash of all that decides the trained model; what only the test sees is left out."""
        config = {k: v for k, v in self.config.items() if k not in ("queries", "test_tasks", "compile")}
        return self._hash(config)

    def record_key(self, protocol: str) -> str:
        """Hash of all that decides a record."""
        return self._hash({**self.config, "protocol": protocol})

    def _hash(self, config: Mapping[str, Any]) -> str:
        parts = [self.bench.name, self.method, self.seed, self.device.type, self.data, config, mlpip_bench.__version__]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def path(self, folder: Path, suffix: str) -> Path:
        """Where a file of this cell lies below a folder."""
        name = f"seed{self.seed}-{self.training_key[:12]}{suffix}"
        return folder / self.bench.name / self.method / name


@dataclass(frozen=True)
class Summary:
    """How a run ended.

    Attributes:
        done: titles of cells that were run now.
        skipped: titles of cells that had nothing left to do, with the reason.
        failed: titles of failed cells, with the message.
    """

    done: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...]
    failed: tuple[tuple[str, str], ...]


def plan_cells(config: RunConfig, reporter: Reporter | None = None) -> list[Cell]:
    """Resolve and check everything that was asked for, before any work starts; reads the data.

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
    if not all(0 <= seed < results.LARGEST_SEED for seed in config.seeds):
        raise UserError(f"seeds must be from 0 to {results.LARGEST_SEED - 1}; got {', '.join(map(str, config.seeds))}.")
    if config.queries < 1:
        raise UserError(f"--queries must be at least 1; got {config.queries}.")
    device = resolve_device(config.device)
    config.numerics.check(device)
    benches = [parse_bench(name) for name in config.benches]
    entered = {bench: config.methods or _entering(bench) for bench in benches}
    plugins = {name: registry.method(name) for names in entered.values() for name in names}
    protocols = {
        name: registry.protocol(name)()
        for name in config.protocols or _those(registry.protocol_names(), registry.protocol, _is_default)
    }
    for name in set(config.overrides) - {"*"} - set(plugins):
        if name not in (installed := registry.method_names()):
            raise unknown_name("method in --set", name, installed)
        raise UserError(f"--set names a method of the run; {name!r} is not among --methods {','.join(plugins)}.")
    pairs = [(bench, name) for bench in benches for name in entered[bench]]
    for bench, name in pairs:
        kind = bench.data.kind
        if kind not in plugins[name].handles:
            able = _those(registry.method_names(), registry.method, lambda other: kind in other.handles)  # noqa: B023
            raise UserError(
                f"a method must handle a bench's kind of task; {bench.name} is {kind} and {name} handles "
                f"{' and '.join(plugins[name].handles)}. Methods for {bench.name}: {', '.join(able)}."
            )
    resolved = {(bench, name): _resolve(config, bench, name, plugins[name]) for bench, name in pairs}
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
            plan=fitted(resolved[bench, name].plan, bench, datasets[bench.dataset]),
            settings=resolved[bench, name].settings,
            norm=norm,
            preset=config.preset,
            queries=queries_at_test(bench, config.queries),
            protocols=_applicable(protocols, bench, plugins[name], resolved[bench, name].settings),
            dataset=datasets[bench.dataset],
            device=device,
            numerics=config.numerics,
        )
        for bench in benches
        for norm in config.norms
        for seed in config.seeds
        for name in entered[bench]
    ]
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
) -> tuple[str, ...]:
    found = []
    for name, protocol in protocols.items():
        try:
            of_bench = bench.data.kind in protocol.handles and bench.dataset in (protocol.datasets or (bench.dataset,))
            if of_bench and protocol.applies(plugin, settings):
                found.append(name)
        except Exception as error:  # whatever somebody's plugin raises
            raise UserError(f"protocol {name!r} cannot say whether it applies: {one_line(error)}.") from error
    return tuple(found)


def _resolve(config: RunConfig, bench: BenchSpec, name: str, plugin: type[Method[Any]]) -> Resolved:
    overrides = {**config.overrides.get("*", {}), **config.overrides.get(name, {})}
    default = bench.data.budgets[config.preset]
    return resolve(plugin, name, default, config.preset, (bench.dataset, bench.name), overrides)


def streams_of(cell: Cell, device: torch.device) -> dict[str, Stream]:
    """The task streams of a cell by split."""
    return task_streams(cell.bench, cell.dataset, cell.plan, queries=cell.queries, seed=cell.seed, device=device)


def _check(cell: Cell, folder: Path) -> None:
    streams_of(cell, torch.device("cpu"))
    checkpoint = cell.path(folder / "checkpoints", ".pt")
    if checkpoint.exists():
        load_checkpoint(checkpoint)
    try:
        build_method(cell)
    except UserError:
        raise
    except (Exception, SystemExit):  # a plugin's fault, which fails its cell and no other
        _log.debug("%s cannot be built", cell.title, exc_info=True)


def run(cells: Sequence[Cell], config: RunConfig, reporter: Reporter) -> Summary:
    """Run the cells that are not done, each independently of the others.

    Raises:
        UserError: the results folder cannot be written, or holds a damaged record.
    """
    _check_writable(config.results)
    sessions = {r.key: str(r.environment.get("session", "")) for r in results.load_all(config.results)}
    if torch.device("cpu") in {cell.device for cell in cells}:
        keep_freed_memory()
    done: dict[str, None] = {}
    skipped: list[tuple[str, str]] = []
    failed: dict[str, str] = {}

    def attempt(group: Sequence[Cell], work: Callable[[], Iterable[Record]]) -> None:
        """Keep the records of some cells, or why there are none."""
        try:
            for record in work():
                results.save(record, config.results)
            done.update(dict.fromkeys(cell.title for cell in group))
        except UserError:
            raise
        except (Exception, SystemExit) as error:  # one cell's fault, whatever it is, must not take the others with it
            for cell in group:
                failed[cell.title] = _keep_failure(cell, error, config.results, reporter)

    failures = {cell: cell.path(config.results / "failures", ".json") for cell in cells}
    given_up = {cell for cell in cells if config.overwrite == "never" and failures[cell].exists()}
    groups = _side_by_side([cell for cell in cells if cell not in given_up])
    for cell in cells:
        alone = [
            name
            for name in cell.protocols
            if issubclass(registry.protocol(name), EvalProtocol)
            and (config.overwrite == "always" or cell.record_key(name) not in sessions)
        ]
        beside = any(cell in _to_measure(name, group, sessions, config.overwrite) for name, group in groups)
        if cell in given_up:
            skipped.append((cell.title, f"failed before ({failures[cell]}); --overwrite failed runs it again"))
        elif not (alone or beside):
            reason = "its records are there; --overwrite always runs it again"
            skipped.append((cell.title, reason if cell.protocols else "no protocol that was asked for applies to it"))
        else:
            attempt([cell], functools.partial(_run_cell, cell, alone, config, reporter))
    for name, group in groups:
        ready = [cell for cell in group if cell.title not in failed]  # one that fails is no reason to measure again
        if chosen := _to_measure(name, ready, sessions, config.overwrite):
            attempt(chosen, functools.partial(_run_side_by_side, name, chosen, config, reporter))
    for cell in cells:
        if cell.title in done and cell.title not in failed:
            failures[cell].unlink(missing_ok=True)
    return Summary(tuple(title for title in done if title not in failed), tuple(skipped), tuple(failed.items()))


def _side_by_side(cells: Sequence[Cell]) -> list[tuple[str, list[Cell]]]:
    """The cells that each side-by-side protocol measures at once: those of a bench and a seed."""
    groups: dict[tuple[str, str, int], list[Cell]] = defaultdict(list)
    for cell in cells:
        for name in cell.protocols:
            if issubclass(registry.protocol(name), SideBySideProtocol):
                groups[name, cell.bench.name, cell.seed].append(cell)
    return [(name, group) for (name, *_), group in groups.items()]


def _to_measure(
    protocol: str, group: Sequence[Cell], sessions: Mapping[str, str], overwrite: Overwrite
) -> Sequence[Cell]:
    """All of a group, unless their records are there and of one session; with ``never``, those without a record."""
    found = [sessions.get(cell.record_key(protocol)) for cell in group]
    if overwrite == "never":
        return [cell for cell, session in zip(group, found, strict=True) if session is None]
    together = None not in found and len(set(found)) == 1
    return [] if together and overwrite != "always" else group


def _keep_failure(cell: Cell, error: BaseException, folder: Path, reporter: Reporter) -> str:
    message = _message(error)
    told = "".join(traceback.format_exception(error))
    detail = {"cell": cell.title, "error": message, "traceback": told, "config": cell.config}
    results.write_atomically(cell.path(folder / "failures", ".json"), json.dumps(detail, indent=1).encode())
    reporter.say(f"failed {cell.title}: {message}")
    return message


def _check_writable(folder: Path) -> None:
    probe = folder / "records" / ".writable"
    try:
        results.write_atomically(probe, b"")
    except UserError as error:
        raise UserError(f"the results folder {folder} must be writable: {error}") from error
    probe.unlink()


def _run_cell(cell: Cell, protocols: Sequence[str], config: RunConfig, reporter: Reporter) -> Iterator[Record]:
    """Train, then measure by the protocols that measure one model."""
    streams = streams_of(cell, cell.device)
    method = build_method(cell)
    checkpoint = cell.path(config.results / "checkpoints", ".pt")
    start = load_checkpoint(checkpoint).iteration if checkpoint.exists() else 0
    if config.overwrite == "always" and start == cell.plan.iterations:
        checkpoint.unlink()  # an unfinished one belongs to this very command, which was interrupted
        start = 0
    if 0 < start < cell.plan.iterations:
        reporter.say(f"{cell.title}: goes on from iteration {start}")
    with cell.numerics.applied(cell.device):
        with reporter.stage(f"{cell.title}: training", cell.plan.iterations, start) as step:
            trained = train(
                method,
                cell.plan,
                streams["train"],
                streams["validation"],
                metrics=VALIDATION[cell.bench.data.kind],
                seed=cell.seed,
                checkpoint=checkpoint,
                step=step,
            )
        began = time.monotonic()
        compile_for_tests(method, cell.numerics)
        measured, failed = _measure(cell, method, trained, streams["test"], protocols, reporter)
        inductive = bool(measured) and is_inductive(method, streams["test"].batch(0, 1))
        for name, scores in measured.items():
            yield _record(cell, method, trained, name, scores, inductive, time.monotonic() - began, {})
    if failed:  # the records of the others are written by now
        told = (f"protocol {name}: {_message(error)}" for name, error in failed.items())
        raise CellError("; ".join(told)) from next(iter(failed.values()))


def _run_side_by_side(name: str, cells: Sequence[Cell], config: RunConfig, reporter: Reporter) -> list[Record]:
    """Measure the trained models of some cells at once."""
    began = time.monotonic()
    states = [load_checkpoint(cell.path(config.results / "checkpoints", ".pt")) for cell in cells]
    contenders = []
    for cell, state in zip(cells, states, strict=True):
        method = build_method(cell)
        method.load_state_dict(state.best_model)
        compile_for_tests(method, cell.numerics)
        contenders.append(Contender(cell.title, method, cell.plan, streams_of(cell, cell.device)))
    protocol = registry.protocol(name)()
    assert isinstance(protocol, SideBySideProtocol)  # that is what these cells are grouped by
    with cells[0].numerics.applied(cells[0].device):  # one for all cells of a run
        measured = protocol.measure(contenders, reporter)
        seconds = time.monotonic() - began
        session = {"session": datetime.now(UTC).isoformat(sep=" ")}
        inductive = [is_inductive(c.method, c.streams["test"].batch(0, 1)) for c in contenders]
        return [
            _record(cell, contender.method, state, name, scores, alone, seconds, session)
            for cell, contender, state, scores, alone in zip(
                cells, contenders, states, measured, inductive, strict=True
            )
        ]


def _record(
    cell: Cell,
    method: Method[Any],
    trained: TrainingState,
    protocol: str,
    scores: Sequence[Scores],
    inductive: bool,
    seconds: float,
    session: Mapping[str, Any],
) -> Record:
    return Record(
        key=cell.record_key(protocol),
        bench=cell.bench.name,
        method=cell.method,
        protocol=protocol,
        seed=cell.seed,
        device=cell.device.type,
        inductive=inductive,
        config=cell.config,
        data=cell.data,
        scores=tuple(scores),
        parameters=sum(p.numel() for p in method.parameters()),
        training={
            "iterations": trained.iteration,
            "tasks_seen": trained.iteration * cell.plan.tasks_per_batch,
            "seconds": trained.seconds,
            "best_iteration": trained.best_iteration,
            "history": trained.history,
        },
        seconds=seconds,
        environment={**environment(cell.device), **session},
    )


def _message(error: BaseException) -> str:
    return str(error) if isinstance(error, CellError) else one_line(error)


def build_method(cell: Cell) -> Method[Any]:
    """A cell's method with its seeded initial parameters, on its device."""
    plugin = registry.method(cell.method)
    bench = cell.bench
    inputs = angle_coordinates(cell.dataset)
    problem = Problem(bench.extractor, cell.norm, bench.way, bench.data.kind, bench.data.noise_std, inputs)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_from("initialisation", cell.seed))
        return plugin(problem, cell.settings).to(cell.device)


def _measure(
    cell: Cell,
    method: Method[Any],
    trained: TrainingState,
    test: Stream,
    protocols: Sequence[str],
    reporter: Reporter,
) -> tuple[dict[str, list[Scores]], dict[str, BaseException]]:
    """By protocol, the scores of the best model and of the last one; and the errors of protocols that failed.

    They are measured once if the two models are one.
    """
    scores: dict[str, list[Scores]] = {name: [] for name in protocols}
    failed: dict[str, BaseException] = {}
    states: dict[results.Model, State] = {"best": trained.best_model, "last": trained.model}
    if trained.best_iteration == trained.iteration:
        del states["last"]
    for model, state in states.items():
        method.load_state_dict(state)
        evaluation = Evaluation(method, model, test, cell.plan.test_tasks, reporter, cell.title)
        for name in [n for n in protocols if n not in failed]:
            try:
                scores[name] += _scores(name, evaluation)
            except UserError:
                raise
            except (Exception, SystemExit) as error:  # one that fails takes no other with it
                failed[name] = error
    if "last" not in states:
        scores = {name: best + [dataclasses.replace(s, model="last") for s in best] for name, best in scores.items()}
    method.load_state_dict(trained.best_model)  # which the method holds from here on
    return {name: found for name, found in scores.items() if name not in failed}, failed


def _scores(name: str, evaluation: Evaluation) -> list[Scores]:
    """What a protocol gives; raises whatever it raises, and CellError for what are not scores of the test tasks."""
    protocol = registry.protocol(name)()
    assert isinstance(protocol, EvalProtocol)  # the others measure several models at once
    scores = protocol.measure(evaluation)
    if not (isinstance(scores, list) and scores and all(isinstance(s, Scores) for s in scores)):
        raise CellError(f"measure must return a list of Scores, and at least one; got {scores!r:.60}.")
    if uneven := [s for s in scores if len(s.per_task) != evaluation.tasks]:
        raise CellError(
            f"there must be one score for each of the {evaluation.tasks} test tasks; {uneven[0].metric} has "
            f"{len(uneven[0].per_task)}."
        )
    return scores
