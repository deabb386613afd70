"""A job done in a process: its records, or why there are none."""

from __future__ import annotations

import json
import traceback
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from mlpip_bench.execution.executors.base import Job, Outcome, Stamp
from mlpip_bench.execution.measuring import measure_side_by_side, message_of, train_and_measure
from mlpip_bench.execution.planning import plan_cells
from mlpip_bench.execution.status import HELD, failure_path
from mlpip_bench.execution.trial import Cell
from mlpip_bench.records import store
from mlpip_bench.records.record import Record
from mlpip_bench.utils.device import keep_freed_memory
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import remove_leftovers, write_atomically
from mlpip_bench.utils.locks import HeldError, locked
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
        return Outcome("busy", HELD)
    except UserError as error:
        return Outcome("stopped", str(error))


def _perform(job: Job, cells: Sequence[Cell], reporter: Reporter) -> Outcome:
    folder = job.config.results
    untouched = {path for path, stamp in job.stamps.items() if stamp_of(path) == stamp}
    if job.stamps and not untouched:
        return Outcome("nothing", "another run has made its records meanwhile")
    try:
        for record in _records(job, cells, untouched, reporter):
            store.save(record, folder)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # one job's fault, whatever it is, must not take the others with it
        return keep_failure(cells, error, folder, reporter)
    for cell in cells:
        failure_path(cell, folder).unlink(missing_ok=True)
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


def keep_failure(cells: Sequence[Cell], error: BaseException, folder: Path, reporter: Reporter) -> Outcome:
    """Keep a note of why cells have no records."""
    message = message_of(error)
    told = "".join(traceback.format_exception(error))
    for cell in cells:
        detail = {"cell": cell.title, "error": message, "traceback": told, "config": cell.config}
        write_atomically(failure_path(cell, folder), json.dumps(detail, indent=1).encode())
        reporter.say(f"failed {cell.title}: {message}")
    return Outcome("failed", message)
