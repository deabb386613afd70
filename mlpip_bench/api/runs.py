"""Runs and their records from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from mlpip_bench.execution import options, planning, scheduler
from mlpip_bench.execution.config import RUNS
from mlpip_bench.records import rescoring, store
from mlpip_bench.records.frame import to_frame
from mlpip_bench.records.record import Model as RecordedModel
from mlpip_bench.utils.errors import TrialError, UserError
from mlpip_bench.utils.progress import Quiet, Reporter

_OF_COMMAND = ("jobs", "ray", "cpus", "profile", "dry_run", "estimate", "margin")
"""Options that only the command line has: processes of its own, and what it prints."""


def run(*, reporter: Reporter | None = None, **asked: Any) -> pd.DataFrame:
    """Train and test methods on benches, and keep a record of each trial, as the command ``run`` does.

    Args:
        reporter: shows progress; None for none.
        asked: options of ``run`` by name; ``bench`` is needed. Lists may be lists, or texts with commas. Trials run one
            after the other, in processes of their own where a plugin of another package takes part; ``jobs``, ``ray``,
            ``cpus``, ``profile``, ``dry_run``, ``estimate`` and ``margin`` are the command line's alone.

    Returns:
        The records that were asked for, as :func:`read_records` gives them.

    Raises:
        UserError: what was asked for cannot be done.
        TrialError: a trial failed; the records of the others are kept.
    """
    chosen = options.merged(asked)
    if changed := [name for name in _OF_COMMAND if chosen[name] != options.DEFAULTS[name]]:
        raise UserError(
            f"run from Python goes through its trials in this process; {changed[0]} is for the command line."
        )
    config = options.run_config(chosen)
    planned = planning.plan_trials(config, reporter)
    summary = scheduler.run(planned, config, reporter or Quiet(), wait=chosen["wait"], time_limit=chosen["time_limit"])
    if summary.failed:
        title, message = summary.failed[0]
        raise TrialError(f"{len(summary.failed)} of {len(planned)} trials failed; {title}: {message}")
    keys = {trial.record_key(protocol) for trial in planned for protocol in trial.protocols}
    return to_frame(record for record in store.load_all(config.results) if record.key in keys)


def read_records(*folders: str | Path) -> pd.DataFrame:
    """The records of results folders, one row a score; a column for each setting, data option and condition.

    Args:
        folders: of results; none for ``runs``, where they are by default.

    Raises:
        UserError: a record is damaged, or there is none.
    """
    places = [Path(folder).expanduser() for folder in folders or (RUNS,)]
    records = [record for place in places for record in store.load_all(place)]
    if not records:
        raise UserError(f"a results folder holds records; there are none below {', '.join(map(str, places))}.")
    return to_frame(records)


def rescore(
    *folders: str | Path,
    bins: int = rescoring.BINS,
    temperature: bool = False,
    ensemble: bool = False,
    model: RecordedModel = "best",
    over: rescoring.Over = "tasks",
) -> pd.DataFrame:
    """Scores made again from kept predictions: other bins, recalibration, selective risk, ensembles over seeds.

    Args:
        folders: of results; none for ``runs``, where they are by default.
        bins: of the expected calibration error.
        temperature: whether to fit a temperature on the validation predictions, and to apply it.
        ensemble: whether seeds of one configuration are put together, too.
        model: of training: ``best`` on validation, or ``last``.
        over: what intervals are over, ``tasks`` or ``classes``.

    Returns:
        A row for each trained model and each ensemble, as :func:`mlpip_bench.records.rescoring.rescore` has it.

    Raises:
        UserError: there are no predictions, they are damaged, or have not what was asked for.
    """
    models, _ = rescoring.sources(Path(folder).expanduser() for folder in folders or (RUNS,))
    return rescoring.rescore(models, bins=bins, temperatures=temperature, ensembles=ensemble, model=model, over=over)
