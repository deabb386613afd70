"""A job done in a process: its records, or why there are none."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from mlpip_bench.execution.conforming import with_checks
from mlpip_bench.execution.executors.base import Job, Outcome, Stamp
from mlpip_bench.execution.measuring import measure_side_by_side, message_of, train_and_measure
from mlpip_bench.execution.planning import plan_trials
from mlpip_bench.execution.status import HELD, failure_path
from mlpip_bench.execution.trial import Trial
from mlpip_bench.execution.tuning import tune_and_measure
from mlpip_bench.records import store
from mlpip_bench.records.predictions import stem
from mlpip_bench.records.record import Record
from mlpip_bench.utils.device import keep_freed_memory
from mlpip_bench.utils.errors import TrialError, UserError, traceback_of
from mlpip_bench.utils.files import remove_leftovers, write_atomically
from mlpip_bench.utils.locks import HeldError, locked
from mlpip_bench.utils.process_state import ProcessState
from mlpip_bench.utils.progress import Reporter


def stamp_of(path: Path) -> Stamp:
    """Which writing of a file it is."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


# ---------------------------------------------------------------------------------------------------------- a job


def perform_elsewhere(job: Job, reporter: Reporter) -> Outcome:
    """Do a job in a process that knows nothing else of the run."""
    try:
        planned = {trial.key: trial for trial in plan_trials(job.config, again=True)}
    except UserError as error:
        return Outcome("stopped", str(error))
    if changed := set(job.keys) - set(planned):
        return Outcome(
            "stopped",
            f"code and data must stay as they are in the course of a run; {len(changed)} of the trials of {job.title} "
            "came out otherwise in its process. Run the same command again.",
        )
    return perform(job, [planned[key] for key in job.keys], reporter)


def perform(job: Job, trials: Sequence[Trial], reporter: Reporter) -> Outcome:
    """Do a job: keep the records of its trials, or why there are none."""
    if any(trial.device.type == "cpu" for trial in trials):
        keep_freed_memory()
    for trial in trials:
        trial.numerics.prepare()
    try:
        with locked(job.lock):
            return _perform(job, trials, reporter)
    except HeldError:
        return Outcome("busy", HELD)
    except UserError as error:
        return Outcome("stopped", str(error))


def _perform(job: Job, trials: Sequence[Trial], reporter: Reporter) -> Outcome:
    folder = job.config.results
    untouched = {path for path, stamp in job.stamps.items() if stamp_of(path) == stamp}
    if job.stamps and not untouched:
        return Outcome("nothing", "another run has made its records meanwhile")
    state = ProcessState()
    failed: dict[str, BaseException] = {}
    try:
        try:
            for record in _records(job, trials, untouched, failed, reporter):
                _check_left(state)
                store.save(_checked(record, trials) if job.config.check else record, folder)
        finally:
            changed = state.set_back()
        if changed:
            raise _left_changed(changed)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # one job's fault, whatever it is, must not take the others with it
        return keep_failure(trials, error, folder, reporter)
    messages = {}
    for trial in trials:
        if trial.key in failed:
            messages[trial.key] = keep_failure([trial], failed[trial.key], folder, reporter).message
        else:
            with contextlib.suppress(OSError):  # a note that somebody else has written, who is another user
                failure_path(trial, folder).unlink(missing_ok=True)
    return Outcome("done", failures=messages)


def _checked(record: Record, trials: Sequence[Trial]) -> Record:
    """The record with what the conformance suite finds of its method."""
    of_record = (trial for trial in trials if trial.record_key(record.protocol) == record.key)
    return with_checks(record, next(of_record))


def _check_left(state: ProcessState) -> None:
    """Make sure that what was measured is not the result of a process that a plugin has changed."""
    if changed := state.set_back():
        raise _left_changed(changed)


def _left_changed(changed: Sequence[str]) -> TrialError:
    return TrialError(
        f"a plugin must leave the process as it was, or other methods' numbers move; this trial's changes "
        f"{'; '.join(changed)}."
    )


def _records(
    job: Job,
    trials: Sequence[Trial],
    wanted: Collection[Path],
    failed: dict[str, BaseException],
    reporter: Reporter,
) -> Iterable[Record]:
    folder = job.config.results
    if job.side_by_side:
        return measure_side_by_side(job.protocols[0], trials, failed, folder, reporter)
    (trial,) = trials
    predictions = trial.record_path(folder, "").with_name(stem(trial.seed, trial.training_key))
    for path in (trial.checkpoint(folder), predictions, *job.stamps):
        remove_leftovers(path)
    names = [name for name in job.protocols if trial.record_path(folder, name) in wanted]
    afresh = job.config.overwrite == "always" and not trial.recalibrated  # which its companion trains
    measure = train_and_measure if trial.tuning is None else tune_and_measure
    keeping = job.config.predictions
    return measure(trial, names, folder, reporter, afresh=afresh, predictions=keeping, log=job.config.log)


def keep_failure(trials: Sequence[Trial], error: BaseException, folder: Path, reporter: Reporter) -> Outcome:
    """Keep a note of why trials have no records."""
    message = message_of(error)
    trace = traceback_of(error)
    for trial in trials:
        detail = {"trial": trial.title, "error": message, "traceback": trace, "config": trial.config}
        write_atomically(failure_path(trial, folder), json.dumps(detail, indent=1).encode())
        reporter.say(f"failed {trial.title}: {message}")
    return Outcome("failed", message)
