"""Records -> tables of time to a target: training until validation first reached a score that the reader names.

That is AlgoPerf's measure (Dahl et al. 2023), of methods in place of optimizers. It is derived from the validations
that records hold, so nothing is run again for another target, and known to the interval between two validations.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from mlpip_bench.records.record import Better, Record, facts
from mlpip_bench.reporting.decisions import numbers_of_metrics
from mlpip_bench.reporting.entries import (
    Entry,
    as_text,
    bench_order,
    completed,
    grouped,
    record_order,
    row_groups,
    seeds_of,
)
from mlpip_bench.reporting.table import Cell, Row, WideTable
from mlpip_bench.reporting.wording import (
    STAND_IN_NOTE,
    budget_in_words,
    duration,
    in_words,
    number_text,
    stand_in_mark,
    training_cost,
)
from mlpip_bench.utils.encoding import csv_text
from mlpip_bench.utils.errors import UserError

_OF_TEST = ("protocol", "protocol code", "queries", "test_tasks", "compile", "inductive")
"""Facts that training knows nothing of."""

_TASKS, _TIME, _BEST = "tasks", "time", "best validation"

_NEAR = 1e-9  # a mean of shares misses its target by rounding alone


@dataclass(frozen=True)
class _Reached:
    """When the trainings of one configuration, a record a seed, reached a target.

    Attributes:
        group: its entries.
        telling: facts that distinguish it.
        best: the best validation of each seed that has the metric.
        tasks: training tasks until the target, of the seeds that reached it.
        seconds: the time until then; None where it was not noted.
    """

    group: Sequence[Entry]
    telling: Sequence[str]
    best: Sequence[float]
    tasks: Sequence[float]
    seconds: Sequence[float | None]

    @property
    def by_all(self) -> bool:
        """Whether every seed reached it."""
        return len(self.tasks) == len(self.group)

    @property
    def mean_tasks(self) -> float:
        """Over seeds; not a number where one did not reach it."""
        return statistics.fmean(self.tasks) if self.by_all else math.nan

    @property
    def mean_seconds(self) -> float:
        """Over seeds; not a number where one did not reach it, or does not say when."""
        known = [time for time in self.seconds if time is not None]
        return statistics.fmean(known) if len(known) == len(self.group) else math.nan

    @property
    def mean_best(self) -> float:
        """Over seeds that have the metric; not a number where none has."""
        return statistics.fmean(self.best) if self.best else math.nan


@dataclass(frozen=True)
class _OfBench:
    """A target on one bench."""

    bench: str
    metric: str
    target: float
    unit: str
    better: Better
    reached: Sequence[_Reached]


def parse_targets(text: str | None) -> dict[str, float]:
    """Targets such as ``accuracy=90,nll=0.3``; shares in per cent. A log-loss of densities may be negative.

    Raises:
        UserError: it is written otherwise, or a target is no number.
    """
    return numbers_of_metrics(text, "--target", "accuracy=90,nll=0.3")


def target_tables(records: Iterable[Record], targets: Mapping[str, float]) -> list[WideTable]:
    """One table for each bench and target.

    Args:
        records: what was run; the records of several protocols of one training are one.
        targets: by metric of validation; shares in per cent.

    Raises:
        UserError: no record has validations by such a metric, or a share is not in per cent.
    """
    return [_table(found) for found in _measured(records, targets)]


def target_csv(records: Iterable[Record], targets: Mapping[str, float]) -> str:
    """The same with a row a target, bench and configuration, in full and in the metric's own unit.

    Raises:
        UserError: as for the tables.
    """
    rows = [
        {
            "bench": found.bench,
            "method": reached.group[0].record.method,
            "metric": found.metric,
            "target": found.target,
            "unit": found.unit,
            "better": found.better,
            "norm": reached.group[0].facts["norm"],
            "preset": reached.group[0].facts["preset"],
            "iterations": reached.group[0].facts["iterations"],
            "settings": in_words(reached.group[0], reached.telling),
            "source": reached.group[0].facts["source"],
            "seeds": len(reached.group),
            "seeds_that_reached_it": len(reached.tasks),
            "tasks": reached.mean_tasks,
            "seconds": reached.mean_seconds,
            "best_validation": reached.mean_best,
        }
        for found in _measured(records, targets)
        for reached in found.reached
    ]
    return csv_text(pd.DataFrame(rows))


def _measured(records: Iterable[Record], targets: Mapping[str, float]) -> Iterator[_OfBench]:
    trained = [r for r in sorted(records, key=record_order) if r.training.get("history") and r.parameters]
    by_bench = grouped(trained, lambda r: (r.bench, r.data["source"]))
    for metric, target in targets.items():
        measured = [own for own in by_bench.values() if any(_validations(r, metric) for r in own)]
        if not measured:
            known = {name for r in trained for entry in r.training["history"] for name in entry}
            names = ", ".join(sorted(known - {"iteration", "loss"})) or "none"
            raise UserError(
                f"--target names a metric of the records' validations, {names}; got {metric}. Choose one of these."
            )
        for own in sorted(measured, key=lambda own: bench_order(own[0].bench)):
            yield _of_bench(own, metric, target)


def _of_bench(records: Sequence[Record], metric: str, target: float) -> _OfBench:
    unit, better = _quality(records, metric)
    if unit == "fraction" and not 1 < target <= 100:
        raise UserError(
            f"--target of a share is in per cent, more than 1 and at most 100, as in {metric}=90; got "
            f"{metric}={target:g}. Give it in per cent."
        )
    goal = target / 100 if unit == "fraction" else target
    entries = completed(
        list({(e.record.method, e.record.seed, *sorted(e.facts.items())): e for e in map(_entry, records)}.values())
    )
    reached = [_reached(group, telling, metric, goal, better) for group, telling in row_groups(entries, set())]
    return _OfBench(records[0].bench, metric, goal, unit, better, reached)


def _reached(group: Sequence[Entry], telling: Sequence[str], metric: str, goal: float, better: Better) -> _Reached:
    best, tasks, seconds = [], [], []
    sign = 1 if better == "higher" else -1
    for entry in group:
        validations = _validations(entry.record, metric)
        if validations:
            best.append(sign * max(sign * score for _, score, _ in validations))
        first = next((v for v in validations if sign * v[1] >= sign * goal - _NEAR), None)
        if first is not None:
            tasks.append(first[0] * entry.record.config["tasks_per_batch"])
            seconds.append(first[2])
    return _Reached(group, telling, best, tasks, seconds)


def _table(found: _OfBench) -> WideTable:
    rows = []
    for reached in found.reached:
        facts_of_all = reached.group[0].facts
        attributes = {
            "norm": facts_of_all["norm"],
            "budget": budget_in_words(facts_of_all["preset"], facts_of_all["iterations"]),
            "trained": training_cost([e.record for e in reached.group]),
            "settings": in_words(reached.group[0], reached.telling),
            "seeds": seeds_of(reached.group),
            "source": facts_of_all["source"],
        }
        label = facts_of_all["method"] + stand_in_mark(facts_of_all["source"])
        rows.append(Row(label, attributes, _cells(reached, found.unit)))
    notes = [
        "tasks, time: training tasks seen, and time of training with its validations on the machine that it ran on, "
        "until a validation first reached the target; known to the interval between validations, the mean of seeds.",
        "time is not known of records that do not say when their validations were. Draws of a tuned row are not in it.",
        *([STAND_IN_NOTE] if any(stand_in_mark(row.attributes["source"]) for row in rows) else []),
    ]
    shown = f"{100 * found.target:g} %" if found.unit == "fraction" else f"{found.target:g}"
    return WideTable(
        name=f"target_{found.metric}_{found.bench}",
        title=f"training on {found.bench} until validation {found.metric} reached {shown} ({found.better} is better)",
        benches=(_TASKS, _TIME, _BEST),
        rows=tuple(rows),
        published=(),
        notes=tuple(notes),
    )


def _entry(record: Record) -> Entry:
    score = record.scores[0]
    known = {name: as_text(value) for name, value in facts(record, score).items() if name not in _OF_TEST}
    return Entry(record, score, record.bench, record.bench, known)


def _quality(records: Sequence[Record], metric: str) -> tuple[str, Better]:
    """Unit and direction, as the records' scores have them; a record of timings has no such score."""
    found = [(score.unit, score.better) for r in records for score in r.scores if score.metric == metric]
    return found[0] if found else ("fraction", "higher") if metric == "accuracy" else ("", "lower")


def _validations(record: Record, metric: str) -> list[tuple[int, float, float | None]]:
    """Iteration, score and seconds of each validation that has the metric."""
    history = record.training.get("history", ())
    seconds = record.training.get("history_seconds") or [None] * len(history)
    return [
        (int(entry["iteration"]), entry[metric], time)
        for entry, time in zip(history, seconds, strict=True)
        if metric in entry
    ]


def _cells(reached: _Reached, unit: str) -> dict[str, Cell]:
    cells = {}
    if reached.best:
        cells[_BEST] = Cell(reached.mean_best, None, number_text(reached.mean_best, unit))
    if not reached.by_all:
        some = f" ({len(reached.tasks)} of {len(reached.group)} seeds did)" if reached.tasks else ""
        return {_TASKS: Cell(math.nan, None, f"not reached{some}"), **cells}
    cells[_TASKS] = Cell(reached.mean_tasks, None, f"{reached.mean_tasks:,.0f}")
    if math.isfinite(reached.mean_seconds):
        cells[_TIME] = Cell(reached.mean_seconds, None, duration(reached.mean_seconds))
    return cells
