"""A run: which cells are done, and the rest as jobs of an executor, of which none is ever done twice."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import random
import time
import traceback
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlpip_bench import registry
from mlpip_bench.cells import Cell, Overwrite, RunConfig, plan_cells
from mlpip_bench.evaluation.protocol import EvalProtocol, SideBySideProtocol
from mlpip_bench.executors import Executor, InProcess, Job, Outcome, Stamp
from mlpip_bench.measuring import measure_side_by_side, message_of, train_and_measure
from mlpip_bench.records import store
from mlpip_bench.records.record import Record
from mlpip_bench.training.checkpoints import iterations_done
from mlpip_bench.utils.device import keep_freed_memory
from mlpip_bench.utils.errors import CellError, UserError
from mlpip_bench.utils.files import remove_leftovers, write_atomically
from mlpip_bench.utils.locks import HeldError, is_held, locked
from mlpip_bench.utils.progress import Reporter
from mlpip_bench.utils.seeding import seed_from

_ATTEMPTS = 3  # at a job whose process is killed
_POLL_SECONDS = 1.0
_HELD = "another run is at work on it"


@dataclass(frozen=True)
class Summary:
    """How a run ended.

    Attributes:
        done: titles of cells that were run now.
        skipped: titles of cells that had nothing left to do, with the reason.
        failed: titles of failed cells, with the message.
        left: titles of cells that were left to another run.
    """

    done: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...]
    failed: tuple[tuple[str, str], ...]
    left: tuple[str, ...] = ()


# --------------------------------------------------------------------------------------------- what is left to do


@dataclass(frozen=True, eq=False)
class Standing:
    """What is left to do of a cell.

    Attributes:
        cell: the cell.
        alone: protocols to measure on its model alone.
        beside: protocols to measure beside other cells.
        nothing: why there is nothing to do; empty where there is something.
        outdated: whether there are records that differ in nothing but the code that made them.
    """

    cell: Cell
    alone: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    nothing: str = ""
    outdated: bool = False


def survey(cells: Sequence[Cell], config: RunConfig) -> list[Standing]:
    """What is left to do of each cell, in their order.

    Raises:
        UserError: the results folder holds a damaged record.
    """
    records = store.load_all(config.results)
    sessions = _sessions(records)
    made = {_all_but_code(r.bench, r.method, r.protocol, r.seed, r.config, r.data) for r in records}
    always = config.overwrite == "always"
    protocols = _protocols(cells)
    standings = {}
    for cell in cells:
        failure = _failure(cell, config.results)
        if config.overwrite == "never" and failure.exists():
            nothing = f"failed before ({failure}); --overwrite failed runs it again"
            standings[cell] = Standing(cell, nothing=nothing)
            continue
        names = [name for name in cell.protocols if issubclass(protocols[name], EvalProtocol)]
        alone = tuple(name for name in names if always or cell.record_key(name) not in sessions)
        about = (cell.seed, cell.config, cell.data)
        outdated = any(_all_but_code(cell.bench.name, cell.method, name, *about) in made for name in alone)
        standings[cell] = Standing(cell, alone, outdated=outdated)
    open_cells = [cell for cell, standing in standings.items() if not standing.nothing]
    for protocol, group in _side_by_side(open_cells):
        for cell in _to_measure(protocol, group, sessions, config.overwrite):
            standing = standings[cell]
            standings[cell] = dataclasses.replace(standing, beside=(*standing.beside, protocol))
    return [s if s.alone or s.beside or s.nothing else _finished(s.cell) for s in standings.values()]


def _finished(cell: Cell) -> Standing:
    told = "its records are there; --overwrite always runs it again"
    return Standing(cell, nothing=told if cell.protocols else "no protocol that was asked for applies to it")


def why(standing: Standing, config: RunConfig) -> str:
    """Why there is something to do of a cell, or nothing."""
    cell, folder = standing.cell, config.results
    if standing.nothing:
        return standing.nothing
    if is_held(_lock(cell, folder)):
        return _HELD
    failure = _failure(cell, folder)
    if failure.exists():
        told = store.load_failure(failure)
        return f"failed before: {told[1]}" if told else f"failed before ({failure})"
    reached = iterations_done(cell.checkpoint(folder))
    if 0 < reached < cell.plan.iterations:
        return f"stopped at iteration {reached} of {cell.plan.iterations}"
    if config.overwrite == "always":
        return "--overwrite always"
    missing = ", ".join((*standing.alone, *standing.beside))
    if standing.outdated:
        return f"the code has changed since its records of {missing} were made"
    return f"no record of {missing}" + ("; trained already" if reached else "")


def _all_but_code(*parts: object) -> str:
    """What tells a record from others, but the code that made it."""
    return json.dumps(parts, sort_keys=True)


def _sessions(records: Iterable[Record]) -> dict[str, str]:
    """When records were measured side by side, by their keys; empty for those that were not."""
    return {r.key: str(r.environment.get("session", "")) for r in records}


def _protocols(cells: Iterable[Cell]) -> dict[str, type]:
    """The protocols of some cells by name; each is looked up once, which takes milliseconds."""
    return {name: registry.protocol(name) for name in {name for cell in cells for name in cell.protocols}}


def _side_by_side(cells: Sequence[Cell]) -> list[tuple[str, list[Cell]]]:
    """The cells that each side-by-side protocol measures at once: those of a bench and a seed."""
    groups: dict[tuple[str, str, int], list[Cell]] = defaultdict(list)
    protocols = _protocols(cells)
    for cell in cells:
        for name in cell.protocols:
            if issubclass(protocols[name], SideBySideProtocol):
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


def _failure(cell: Cell, folder: Path) -> Path:
    return cell.path(folder, "failures", ".json")


def _lock(cell: Cell, folder: Path) -> Path:
    return cell.path(folder, "locks", ".lock")


# ------------------------------------------------------------------------------------------------------- the run


def run(
    cells: Sequence[Cell],
    config: RunConfig,
    reporter: Reporter,
    executor: Executor | None = None,
    *,
    wait: bool = True,
) -> Summary:
    """Run the cells that are not done, each independently of the others, in random order.

    Several runs may share a results folder: a cell that another one is at work on is left to it, and taken over if
    that one is killed.

    Args:
        cells: what is asked for.
        config: what they were planned from.
        reporter: shows bars.
        executor: where jobs are done; left out, one after the other in this process.
        wait: whether to wait for cells that another run is at work on.

    Raises:
        UserError: the results folder cannot be written, or holds a damaged record.
    """
    _check_writable(config.results)
    before = stamps(cells, config.results)  # before the records are read, or one made in between would be made again
    standings = survey(cells, config)
    by_key = {cell.key: cell for cell in cells}
    ended: dict[Cell, list[Outcome]] = defaultdict(list)
    jobs = [cell_job(s, config, before) for s in standings if not s.nothing]
    # So that what drifts in the course of a run, such as a machine's clock rate, lines up with no method.
    random.Random(seed_from("order", *sorted(by_key))).shuffle(jobs)
    here = InProcess(lambda job: perform(job, [by_key[key] for key in job.keys], reporter))
    with executor or here as chosen, _counted(reporter, len(jobs)) as count:
        for job, outcome in _until_ended(chosen, jobs, reporter, wait=wait):
            (cell,) = (by_key[key] for key in job.keys)
            ended[cell].append(_told([cell], outcome, config.results, reporter))
            count()
        for protocol, group in _side_by_side([s.cell for s in standings if s.beside]):
            # Cells that failed are no reason to measure the others again, and nothing else may run meanwhile.
            ready = [c for c in group if not any(o.status in ("failed", "busy") for o in ended[c])]
            if together := _to_measure(protocol, ready, _sessions(store.load_all(config.results)), config.overwrite):
                job = _side_by_side_job(protocol, together, config, before)
                for _, outcome in _until_ended(chosen, [job], reporter, wait=wait):
                    told = _told(together, outcome, config.results, reporter)
                    for cell in together:
                        ended[cell].append(told)
    return _summary(standings, ended)


def _told(cells: Sequence[Cell], outcome: Outcome, folder: Path, reporter: Reporter) -> Outcome:
    """The outcome; that of a job whose process was killed time and again is a failure, which nobody else could keep."""
    if outcome.status != "killed":
        return outcome
    error = CellError(f"{outcome.message}, {_ATTEMPTS} times. Where memory is short, fewer --jobs help.")
    return _keep_failure(cells, error, folder, reporter)


def _summary(standings: Sequence[Standing], ended: Mapping[Cell, Sequence[Outcome]]) -> Summary:
    done, skipped, failed, left = [], [(s.cell.title, s.nothing) for s in standings if s.nothing], [], []
    for cell in (s.cell for s in standings if s.cell in ended):
        outcomes = ended[cell]
        by_status = {outcome.status: outcome.message for outcome in outcomes}
        if "failed" in by_status:
            failed.append((cell.title, by_status["failed"]))
        elif "busy" in by_status:
            left.append(cell.title)
        elif "done" in by_status:
            done.append(cell.title)
        else:
            skipped.append((cell.title, outcomes[-1].message))
    return Summary(tuple(done), tuple(skipped), tuple(failed), tuple(left))


def stamps(cells: Iterable[Cell], folder: Path) -> dict[Path, Stamp]:
    """The files of all records of some cells, as they are now."""
    paths = [cell.record_path(folder.absolute(), name) for cell in cells for name in cell.protocols]
    return {path: _stamp(path) for path in paths}


def cell_job(standing: Standing, config: RunConfig, before: Mapping[Path, Stamp]) -> Job:
    """The job of a cell that has something to do."""
    cell = standing.cell
    return _job(config, cell.title, [cell], standing.alone, _lock(cell, config.results.absolute()), before)


def _side_by_side_job(protocol: str, cells: Sequence[Cell], config: RunConfig, before: Mapping[Path, Stamp]) -> Job:
    bench, seed = cells[0].bench.name, cells[0].seed
    lock = config.results.absolute() / "locks" / bench / f"{protocol}-seed{seed}.lock"
    return _job(config, f"{bench} {protocol} seed {seed}", cells, (protocol,), lock, before, side_by_side=True)


def _job(
    config: RunConfig,
    title: str,
    cells: Sequence[Cell],
    protocols: tuple[str, ...],
    lock: Path,
    before: Mapping[Path, Stamp],
    *,
    side_by_side: bool = False,
) -> Job:
    narrowed = config.only(cells)
    paths = [cell.record_path(narrowed.results, name) for cell in cells for name in protocols]
    keys = tuple(cell.key for cell in cells)
    return Job(title, narrowed, keys, protocols, side_by_side, {path: before[path] for path in paths}, lock)


def _stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


@contextlib.contextmanager
def _counted(reporter: Reporter, total: int) -> Iterator[Callable[[], None]]:
    """A bar for the cells of a run, where there are several."""
    if total < 2:
        yield lambda: None
        return
    with reporter.stage("cells", total) as step:
        finished = itertools.count(1)
        yield lambda: step(next(finished))


def _until_ended(
    executor: Executor, jobs: Sequence[Job], reporter: Reporter, *, wait: bool
) -> Iterator[tuple[Job, Outcome]]:
    """Each job with its last outcome: those of a killed process start again, those that others do are waited for.

    Raises:
        UserError: something that stops the whole run.
    """
    waiting, running = deque(jobs), 0
    killed: Counter[tuple[str, ...]] = Counter()
    said = False
    while waiting or running:
        for _ in range(len(waiting)):
            if running < executor.slots:
                job = waiting.popleft()
                if is_held(job.lock):
                    waiting.append(job)
                else:
                    executor.start(job)
                    running += 1
        if not running:
            if not wait:
                yield from ((job, Outcome("busy", _HELD)) for job in waiting)
                return
            if not said:
                reporter.say(f"waiting for another run at work on {', '.join(job.title for job in waiting)}")
                said = True
            time.sleep(_POLL_SECONDS)
            continue
        job, outcome = executor.wait()
        running -= 1
        if outcome.status == "stopped":
            raise UserError(outcome.message)
        if outcome.status == "busy":
            waiting.append(job)
        elif outcome.status == "killed" and killed[job.keys] + 1 < _ATTEMPTS:
            killed[job.keys] += 1
            reporter.say(f"{job.title}: {outcome.message}; it goes on from its last checkpoint")
            waiting.append(_resumed(job))
        else:
            yield job, outcome


def _resumed(job: Job) -> Job:
    """A job that has begun; what it has trained is not to be trained again."""
    overwrite: Overwrite = "failed" if job.config.overwrite == "always" else job.config.overwrite
    return dataclasses.replace(job, config=dataclasses.replace(job.config, overwrite=overwrite))


# ---------------------------------------------------------------------------------------------------------- a job


def perform_elsewhere(job: Job, reporter: Reporter) -> Outcome:
    """Do a job in a process that knows nothing else of the run."""
    try:
        planned = {cell.key: cell for cell in plan_cells(job.config)}
    except UserError as error:
        return Outcome("stopped", str(error))
    if changed := set(job.keys) - set(planned):
        return Outcome(
            "stopped",
            f"code and data must stay as they are in the course of a run; {len(changed)} of the cells of {job.title} "
            "came out otherwise in its process. Run the same command again.",
        )
    return perform(job, [planned[key] for key in job.keys], reporter)


def perform(job: Job, cells: Sequence[Cell], reporter: Reporter) -> Outcome:
    """Do a job: keep the records of its cells, or why there are none."""
    if any(cell.device.type == "cpu" for cell in cells):
        keep_freed_memory()
    try:
        with locked(job.lock):
            return _perform(job, cells, reporter)
    except HeldError:
        return Outcome("busy", _HELD)
    except UserError as error:
        return Outcome("stopped", str(error))


def _perform(job: Job, cells: Sequence[Cell], reporter: Reporter) -> Outcome:
    folder = job.config.results
    untouched = {path for path, stamp in job.stamps.items() if _stamp(path) == stamp}
    if job.stamps and not untouched:
        return Outcome("nothing", "another run has made its records meanwhile")
    try:
        for record in _records(job, cells, untouched, reporter):
            store.save(record, folder)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # one job's fault, whatever it is, must not take the others with it
        return _keep_failure(cells, error, folder, reporter)
    for cell in cells:
        _failure(cell, folder).unlink(missing_ok=True)
    return Outcome("done")


def _records(job: Job, cells: Sequence[Cell], wanted: Collection[Path], reporter: Reporter) -> Iterable[Record]:
    folder = job.config.results
    if job.side_by_side:
        return measure_side_by_side(job.protocols[0], cells, folder, reporter)
    (cell,) = cells
    for path in (cell.checkpoint(folder), *job.stamps):
        remove_leftovers(path)
    names = [name for name in job.protocols if cell.record_path(folder, name) in wanted]
    return train_and_measure(cell, names, folder, reporter, afresh=job.config.overwrite == "always")


def _keep_failure(cells: Sequence[Cell], error: BaseException, folder: Path, reporter: Reporter) -> Outcome:
    message = message_of(error)
    told = "".join(traceback.format_exception(error))
    for cell in cells:
        detail = {"cell": cell.title, "error": message, "traceback": told, "config": cell.config}
        write_atomically(_failure(cell, folder), json.dumps(detail, indent=1).encode())
        reporter.say(f"failed {cell.title}: {message}")
    return Outcome("failed", message)


def _check_writable(folder: Path) -> None:
    try:
        with locked(folder / "locks" / "writable.lock", wait=True):
            probe = folder / "records" / ".writable"
            write_atomically(probe, b"")
            probe.unlink()
    except UserError as error:
        raise UserError(f"the results folder (--results {folder}) must be writable: {error}") from error
