"""Records -> one long form for machines: a row a score, a column a setting; what the paper reports is another file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import pandas as pd

from mlpip_bench.records.frame import FIRST, to_frame
from mlpip_bench.records.published import Published
from mlpip_bench.records.record import Record
from mlpip_bench.reporting.entries import record_order
from mlpip_bench.reporting.wording import PUBLISHED_UNITS, pretraining_in_words
from mlpip_bench.utils.encoding import csv_text


def long_form(records: Iterable[Record]) -> pd.DataFrame:
    """One row a score over tasks, by bench, method, protocol and seed; seeds are not averaged.

    Columns are those of :func:`~mlpip_bench.records.frame.to_frame`, of which those that no row fills are left out, and
    the scores of single tasks, and what was trained before in words. ``method`` is the name of the plugin.
    """
    over_tasks = [
        record if len(scores) == len(record.scores) else replace(record, scores=scores)
        for record in sorted(records, key=record_order)
        if (scores := tuple(score for score in record.scores if score.over == "tasks"))
    ]
    if not over_tasks:
        return pd.DataFrame(columns=list(FIRST))
    frame = to_frame(over_tasks, per_task=False).drop(columns="over").dropna(axis="columns", how="all")
    before = [pretraining_in_words(record) for record in over_tasks for _ in record.scores]
    frame.insert(list(frame.columns).index("parameters") + 1, "pretraining", before)
    return frame


def long_csv(records: Iterable[Record]) -> str:
    """The long form as CSV; floats in full, an interval that does not exist missing."""
    frame = long_form(records)
    frame["ci95"] = frame["ci95"].where(frame["ci95"] < float("inf"))
    return csv_text(frame)


def published_csv(published: Iterable[Published]) -> str:
    """What the paper reports of the benches, in its order and in the units of our scores."""
    rows = [
        {
            "bench": quoted.bench,
            "method": quoted.method,
            "label": quoted.label,
            "metric": quoted.metric,
            "way": way,
            "shot": shot,
            "mean": float(quoted.mean),
            "ci95": None if quoted.ci95 is None else float(quoted.ci95),
            "unit": PUBLISHED_UNITS[quoted.metric],
            "training_tasks": quoted.training_tasks,
            "note": quoted.note,
        }
        for quoted in published
        for way, shot in [_way_shot(quoted.bench)]
    ]
    frame = pd.DataFrame(rows).astype(dict.fromkeys(("way", "shot", "training_tasks"), "Int64"))
    return csv_text(frame)


def _way_shot(bench: str) -> tuple[int, int] | tuple[None, None]:
    """Way and shot of a published bench such as ``omni5w1s``."""
    match = re.search(r"(\d+)w(\d+)s$", bench)
    return (int(match[1]), int(match[2])) if match else (None, None)
