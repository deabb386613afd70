"""Several benches together: average rank, and how probable it is that one method does a task better than another.

References: Demšar, Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 7, 2006 (average ranks);
Agarwal et al., Deep RL at the Edge of the Statistical Precipice, NeurIPS 2021 (probability of improvement, profiles).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from mlpip_bench.records.record import Record
from mlpip_bench.records.statistics import Estimate, combined, estimate
from mlpip_bench.reporting.entries import (
    COMPARABLE,
    Entry,
    comparable_groups,
    entries_of,
    estimate_of,
    grouped,
    same_tasks,
    shared_seeds,
)
from mlpip_bench.reporting.table import Cell, Row, WideTable
from mlpip_bench.reporting.tables.paired import configurations
from mlpip_bench.reporting.wording import STAND_IN_NOTE, interval_cell, stand_in_mark

_POOLED = ("ece",)
"""Metrics of all tasks together, whose scores of single tasks are no better or worse than others."""

By = Mapping[str, Sequence[Entry]]
"""The entries of each configuration on one bench, by its name."""


def benches_together(records: Iterable[Record], metric: str | None = None) -> dict[tuple[str, str], list[By]]:
    """The benches of each metric and kind of data on which the same two configurations or more were measured.

    Configurations that some bench lacks are left out, so that all are averaged over the same benches.
    """
    entries = [e for e in entries_of(records) if e.score.model == "best" and not e.score.condition]
    rated = [e for e in entries if e.score.better != "neither" and metric in (None, e.score.metric)]
    rated = [e for e in rated if e.score.metric not in _POOLED]
    groups = comparable_groups(rated, (*COMPARABLE, "protocol"))
    found: dict[tuple[str, str], list[By]] = {}
    for key, own in grouped(groups, lambda g: (g[0].score.metric, stand_in_mark(g[0].facts["source"]))).items():
        benches: list[By] = [{run.label: run.entries for run in configurations(group)} for group in own]
        benches = [by for by in benches if len(by) > 1]
        shared = set.intersection(*(set(by) for by in benches)) if benches else set()
        if len(shared) > 1 and len({next(iter(by.values()))[0].bench for by in benches}) > 1:
            found[key] = [{name: by[name] for name in sorted(shared)} for by in benches]
    return found


def overall_tables(records: Iterable[Record]) -> list[WideTable]:
    """One table for each metric that several benches have: average ranks and probabilities of improvement."""
    return [_table(metric, mark, benches) for (metric, mark), benches in benches_together(records).items()]


def average_ranks(benches: Sequence[By]) -> dict[str, float]:
    """Mean over benches of the rank of each configuration's mean, 1 the best; equal means share their ranks."""
    ranks: dict[str, list[float]] = {name: [] for name in benches[0]}
    for by in benches:
        sign = -1 if next(iter(by.values()))[0].score.better == "higher" else 1
        means = {name: sign * estimate_of(entries).mean for name, entries in by.items()}
        for name, mean in means.items():
            below, same = sum(m < mean for m in means.values()), sum(m == mean for m in means.values())
            ranks[name].append(below + (same + 1) / 2)
    return {name: statistics.fmean(own) for name, own in ranks.items()}


def probability_of_improvement(benches: Sequence[By], first: str, second: str) -> Estimate:
    """How probable it is that a random task of a random bench is done better by the first; half where it is a tie.

    The mean over benches of the share of test tasks, and of trainings where both have several seeds in common.
    """
    parts = []
    for by in benches:
        a, b = by[first], by[second]
        x, y = shared_seeds(a, b)
        if not x or not same_tasks(a[0], b[0]):
            return Estimate(math.nan, math.inf, 0)
        sign = 1 if a[0].score.better == "higher" else -1
        parts.append(estimate((1 + np.sign(sign * np.subtract(x, y))) / 2, (0, 1)))
    return combined(parts, [1 / len(parts)] * len(parts))


def _table(metric: str, mark: str, benches: Sequence[By]) -> WideTable:
    ranks = average_ranks(benches)
    names = sorted(ranks, key=lambda name: (ranks[name], name))
    rows = []
    for name in names:
        cells = {"average rank": Cell(ranks[name], None, f"{ranks[name]:.2f}")}
        for other in names:
            if other != name:
                cells[f"over {other}"] = interval_cell(probability_of_improvement(benches, name, other), "fraction")
        rows.append(Row(name + mark, {}, cells))
    listed = ", ".join(next(iter(by.values()))[0].bench for by in benches)
    notes = [
        f"average rank: mean over {len(benches)} benches ({listed}) of the rank of the mean {metric}, 1 the best.",
        "over X: how probable it is, in %, that a random test task of a random bench is done better than by X, half "
        "where both score the same; ± is the 95 % half-width over test tasks, and trainings where there are several "
        "seeds. 50 % is no improvement. It says how often, not by how much.",
        *([STAND_IN_NOTE] if mark else []),
    ]
    return WideTable(
        name=f"overall_{metric}",
        title=f"{metric} over {len(benches)} benches (average rank; probability of improvement, %)",
        benches=("average rank", *(f"over {name}" for name in names)),
        rows=tuple(rows),
        published=(),
        notes=tuple(notes),
    )
