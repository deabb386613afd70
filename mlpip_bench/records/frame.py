"""Records as a table for pandas: one row a score, everything else in columns."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pandas as pd

from mlpip_bench.records.left_out import left_out
from mlpip_bench.records.record import TRAINING_SERIES, Record, Scores, facts
from mlpip_bench.records.statistics import bounds_of, estimate

FIRST = ("bench", "method", "protocol", "seed", "metric", "model", "mean", "ci95", "unit", "better")


def to_frame(records: Iterable[Record], *, per_task: bool = True) -> pd.DataFrame:
    """One row for each score of each record; without the scores of single tasks if those are not asked for.

    Columns are ``bench``, ``method``, ``protocol``, ``seed``, ``metric``, ``model`` (best on validation, or last),
    ``mean`` with the 95 % half-width ``ci95``, ``unit``, ``better``; ``per_task`` with the scores themselves; the test
    condition (``way``, ``shot``, ``queries``, ``condition.NAME``); every setting (``norm``, ``iterations``,
    ``settings.NAME``), data option (``data.NAME``) and setting of the backbone (``backbone``, ``backbone.NAME``); and
    what it took (``parameters``, ``training.seconds``, ``seconds``). What a record lacks is missing; an option that it
    leaves out, being at its default, is in it where another record has it.
    """
    columns: dict[str, list[Any]] = {}  # so that there are no rows in memory, each with the names of its columns
    named: dict[str, set[str]] = {}
    count = 0
    for count, row in enumerate((_row(r, score, per_task) for r in records for score in r.scores), 1):
        named.setdefault(row["bench"], set()).update(row)
        for name, value in row.items():
            column = columns.setdefault(name, [])
            if len(column) < count - 1:
                column += [math.nan] * (count - 1 - len(column))
            column.append(value)
    frame = pd.DataFrame({name: [*column, *[math.nan] * (count - len(column))] for name, column in columns.items()})
    for bench, defaults in left_out(named.items()).items():
        for name, default in defaults.items():
            frame[name] = frame[name].mask((frame["bench"] == bench) & frame[name].isna(), default)
    rest = [name for name in frame.columns if name not in FIRST]
    return frame[[name for name in FIRST if name in frame.columns] + rest]


def _row(record: Record, score: Scores, per_task: bool) -> dict[str, Any]:
    found = estimate([score.per_task], bounds_of(score.unit))
    return {
        **facts(record, score),
        "bench": record.bench,
        "seed": record.seed,
        "metric": score.metric,
        "model": score.model,
        "chosen_by": score.chosen_by,
        "mean": found.mean,
        "ci95": found.ci95,
        "unit": score.unit,
        "better": score.better,
        "over": score.over,
        **({"per_task": tuple(score.per_task)} if per_task else {}),
        "way": score.way,
        "shot": score.shot,
        **{f"condition.{name}": value for name, value in score.condition.items()},
        "parameters": record.parameters,
        **{f"training.{name}": value for name, value in record.training.items() if name not in TRAINING_SERIES},
        "seconds": record.seconds,
        "key": record.key,
    }
