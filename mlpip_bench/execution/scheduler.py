"""A run: jobs of an executor, of which none is ever done twice."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from mlpip_bench.execution.config import Overwrite, RunConfig
from mlpip_bench.execution.executors.base import Executor, Job, Outcome, Stamp
from mlpip_bench.execution.executors.in_process import InProcess
from mlpip_bench.execution.executors.local import LocalProcesses
from mlpip_bench.execution.status import HELD, Standing, lock_path, sessions_of, side_by_side_groups, survey, to_measure
from mlpip_bench.execution.trial import Trial
from mlpip_bench.execution.worker import keep_failure, perform, perform_elsewhere, stamp_of
from mlpip_bench.records import store
from mlpip_bench.utils.errors import TrialError, UserError
from mlpip_bench.utils.files import write_atomically
from mlpip_bench.utils.locks import is_held, locked
from mlpip_bench.utils.progress import Reporter
from mlpip_bench.utils.seeding import seed_from

_ATTEMPTS = 3  # at a job whose process is killed
_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Summary:
    """How a run ended.

    Attributes:
        done: titles of trials that were run now.
        skipped: titles of trials that had nothing left to do, with the reason.
        failed: titles of failed trials, with the message.
        left: titles of trials that were left to another run.
    """

    done: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...]
    failed: tuple[tuple[str, str], ...]
    left: tuple[str, ...] = ()


# ------------------------------------------------------------------------------------------------------- the run


def run(
    trials: Sequence[Trial],
    config: RunConfig,
    reporter: Reporter,
    executor: Executor | None = None,
    *,
    wait: bool = True,
    time_limit: float | None = None,
) -> Summary:
    """Run the trials that are not done, each independently of the others, in random order.

    Several runs may share a results folder: a trial that another one is at work on is left to it, and taken over if
    that one is killed.

    Args:
        trials: what is asked for.
        config: what they were planned from.
        reporter: shows bars.
        executor: where jobs are done; left out, one after the other: in this process where all that takes part ships
            with the suite, else each in a process of its own.
        wait: whether to wait for trials that another run is at work on.
        time_limit: seconds that a trial may take, if no executor is given.

    Raises:
        UserError: the results folder cannot be written, or holds a damaged record.
    """
    _check_writable(config.results)
    before = stamps(trials, config.results)  # before the records are read, or one made in between would be made again
    standings = survey(trials, config)
    by_key = {trial.key: trial for trial in trials}
    ended: dict[Trial, list[Outcome]] = defaultdict(list)
    jobs = [trial_job(s, config, before) for s in standings if not s.nothing]
    # So that what drifts in the course of a run, such as a machine's clock rate, lines up with no method.
    random.Random(seed_from("order", *sorted(by_key))).shuffle(jobs)
    if executor is None and (time_limit is not None or in_own_processes(trials)):
        executor = LocalProcesses(perform_elsewhere, reporter, 1, torch.get_num_threads(), time_limit)
    here = InProcess(lambda job: perform(job, [by_key[key] for key in job.keys], reporter))
    with executor or here as chosen, _counted(reporter, len(jobs)) as count:
        for job, outcome in _until_ended(chosen, jobs, reporter, wait=wait):
            (trial,) = (by_key[key] for key in job.keys)
            ended[trial].append(_final_outcome([trial], outcome, config.results, reporter))
            count()
        for protocol, group in side_by_side_groups([s.trial for s in standings if s.side_by_side]):
            # Trials that failed are no reason to measure the others again, and nothing else may run meanwhile.
            ready = [c for c in group if not any(o.status in ("failed", "busy") for o in ended[c])]
            if together := to_measure(protocol, ready, sessions_of(store.load_all(config.results)), config.overwrite):
                for trial, outcome in _side_by_side(protocol, together, config, before, chosen, reporter, wait=wait):
                    ended[trial].append(outcome)
    return _summary(standings, ended)


def _side_by_side(
    protocol: str,
    together: Sequence[Trial],
    config: RunConfig,
    before: Mapping[Path, Stamp],
    executor: Executor,
    reporter: Reporter,
    *,
    wait: bool,
) -> Iterator[tuple[Trial, Outcome]]:
    """Measure trained models side by side; where that takes the process with it, once more the suite's own alone."""
    job = side_by_side_job(protocol, together, config, before)
    for _, outcome in _until_ended(executor, [job], reporter, wait=wait):
        own = [trial for trial in together if not trial.code]
        blamed = [trial for trial in together if trial.code] if outcome.status == "crashed" and own else together
        final = _final_outcome(blamed, outcome, config.results, reporter)
        for trial in blamed:
            message = final.failures.get(trial.key)
            yield trial, Outcome("failed", message) if message else final
        if blamed is not together:
            yield from _side_by_side(protocol, own, config, before, executor, reporter, wait=wait)


def _final_outcome(trials: Sequence[Trial], outcome: Outcome, folder: Path, reporter: Reporter) -> Outcome:
    """The outcome; that of a job whose process is no more is a failure, which nobody else could keep."""
    if outcome.status == "crashed":
        plugins = sorted({plugin for trial in trials for plugin in trial.code})
        by = f" Plugins that do not ship with the suite: {', '.join(plugins)}." if plugins else ""
        return keep_failure(trials, TrialError(f"{outcome.message}.{by}"), folder, reporter)
    if outcome.status == "killed":
        error = TrialError(f"{outcome.message}, {_ATTEMPTS} times. Where memory is short, fewer --jobs help.")
        return keep_failure(trials, error, folder, reporter)
    return outcome


def _summary(standings: Sequence[Standing], ended: Mapping[Trial, Sequence[Outcome]]) -> Summary:
    done, skipped, failed, left = [], [(s.trial.title, s.nothing) for s in standings if s.nothing], [], []
    for trial in (s.trial for s in standings if s.trial in ended):
        outcomes = ended[trial]
        by_status = {outcome.status: outcome.message for outcome in outcomes}
        if "failed" in by_status:
            failed.append((trial.title, by_status["failed"]))
        elif "busy" in by_status:
            left.append(trial.title)
        elif "done" in by_status:
            done.append(trial.title)
        else:
            skipped.append((trial.title, outcomes[-1].message))
    return Summary(tuple(done), tuple(skipped), tuple(failed), tuple(left))


def stamps(trials: Iterable[Trial], folder: Path) -> dict[Path, Stamp]:
    """The files of all records of some trials, as they are now."""
    paths = [trial.record_path(folder.absolute(), name) for trial in trials for name in trial.protocols]
    return {path: stamp_of(path) for path in paths}


def trial_job(standing: Standing, config: RunConfig, before: Mapping[Path, Stamp]) -> Job:
    """The job of a trial that has something to do."""
    trial = standing.trial
    return _job(config, trial.title, [trial], standing.alone, lock_path(trial, config.results.absolute()), before)


def side_by_side_job(protocol: str, trials: Sequence[Trial], config: RunConfig, before: Mapping[Path, Stamp]) -> Job:
    """The job of a protocol that measures several trained trials at once."""
    bench, seed = trials[0].bench.name, trials[0].seed
    lock = config.results.absolute() / "locks" / bench / f"{protocol}-seed{seed}.lock"
    return _job(config, f"{bench} {protocol} seed {seed}", trials, (protocol,), lock, before, side_by_side=True)


def _job(
    config: RunConfig,
    title: str,
    trials: Sequence[Trial],
    protocols: tuple[str, ...],
    lock: Path,
    before: Mapping[Path, Stamp],
    *,
    side_by_side: bool = False,
) -> Job:
    narrowed = config.only(trials)
    paths = [trial.record_path(narrowed.results, name) for trial in trials for name in protocols]
    keys = tuple(trial.key for trial in trials)
    known = {path: before[path] for path in paths}
    return Job(title, narrowed, keys, protocols, side_by_side, known, lock, alone=in_own_processes(trials))


@contextlib.contextmanager
def _counted(reporter: Reporter, total: int) -> Iterator[Callable[[], None]]:
    """A bar for the trials of a run, where there are several."""
    if total < 2:
        yield lambda: None
        return
    with reporter.stage("trials", total) as step:
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
        untried = len(waiting)
        while untried and running < executor.slots:
            untried -= 1
            job = waiting.popleft()
            if is_held(job.lock):
                waiting.append(job)
            else:
                executor.start(job)
                running += 1
        if not running:
            if not wait:
                yield from ((job, Outcome("busy", HELD)) for job in waiting)
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


def in_own_processes(trials: Sequence[Trial]) -> bool:
    """Whether each trial has a process of its own: where a plugin of another package takes part."""
    return any(trial.code for trial in trials)


def _check_writable(folder: Path) -> None:
    try:
        with locked(folder / "locks" / "writable.lock", wait=True):
            probe = folder / "records" / ".writable"
            write_atomically(probe, b"")
            probe.unlink()
    except UserError as error:
        raise UserError(f"the results folder (--results {folder}) must be writable: {error}") from error
