"""Where a method stands on its page: its rows of the committed runs of all systems, and its published figures."""

from __future__ import annotations

import functools
from pathlib import Path

from mlpip_bench.records import published, store
from mlpip_bench.records.record import Record
from mlpip_bench.records.statistics import bounds_of, estimate
from mlpip_bench.reporting.figures.style import Run, configurations
from mlpip_bench.reporting.wording import interval_cell, published_cell

EXPERIMENT = Path(__file__).resolve().parents[1] / "results" / "systems"
METRICS = ("accuracy", "nll")


@functools.cache
def _records() -> list[Record]:
    return store.load_all(EXPERIMENT)


@functools.cache
def _published() -> dict[tuple[str, str, str], published.Published]:
    return {(quoted.method, quoted.bench, quoted.metric): quoted for quoted in published.load()}


def standing(method: str) -> tuple[list[tuple[str, ...]], list[str]]:
    """Of a method with records there: a row for each bench and configuration, and notes of its published figures.

    Returns:
        Rows of bench, configuration, accuracy, NLL and published accuracy; and the notes.
    """
    own = [record for record in _records() if record.method == method]
    rows, notes = [], []
    for bench in sorted({record.bench for record in own}):
        quoted = _published().get((method, bench, "accuracy"))
        of_bench = [record for record in own if record.bench == bench]
        scores = {metric: configurations(of_bench, metric) for metric in METRICS}
        rows += [
            (
                bench,
                label,
                *(_shown(scores[metric][label]) for metric in METRICS),
                published_cell(quoted).text if quoted else "none",
            )
            for label in scores["accuracy"]
        ]
        if quoted and quoted.note:
            notes.append(f"The published figure of {bench} is {quoted.note}")
    return rows, notes


def _shown(runs: list[Run]) -> str:
    unit = runs[0][1].unit
    return interval_cell(estimate([score.per_task for _, score in runs], bounds_of(unit)), unit).text
