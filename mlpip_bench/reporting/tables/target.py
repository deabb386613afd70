"""Records -> tables of time to a target: training until validation first reached a score that the reader names.

That is AlgoPerf's measure (Dahl et al. 2023), of methods in place of optimizers. It is derived from the validations
that records hold, so nothing is run again for another target, and known to the interval between two validations.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from mlpip_bench.records.record import Better, Record, facts
from mlpip_bench.reporting.decisions import positive_numbers
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
from mlpip_bench.reporting.wording import STAND_IN_NOTE, duration, in_words, number_text, stand_in_mark, training_cost
from mlpip_bench.utils.errors import UserError

_OF_TEST = ("protocol", "protocol code", "queries", "test_tasks", "compile", "inductive")
"""Facts that training knows nothing of."""

_TASKS, _TIME, _BEST = "tasks", "time", "best validation"


def parse_targets(text: str | None) -> dict[str, float]:
    """Targets such as ``accuracy=90,nll=0.3``; shares in per cent.

    Raises:
        UserError: it is written otherwise, or a target is no positive number.
    """
    return positive_numbers(text, "--target", "accuracy=90,nll=0.3")


def target_tables(records: Iterable[Record], targets: Mapping[str, float]) -> list[WideTable]:
    """One table for each bench and target.

    Args:
        records: what was run; the records of several protocols of one training are one.
        targets: by metric of validation; shares in per cent.

    Raises:
        UserError: no record has validations by such a metric, or a share is not in per cent.
    """
    trained = [r for r in sorted(records, key=record_order) if r.training.get("history") and r.parameters]
    by_bench = grouped(trained, lambda r: (r.bench, r.data["source"]))
    tables = []
    for metric, target in targets.items():
        measured = [own for own in by_bench.values() if any(_validations(r, metric) for r in own)]
        if not measured:
            known = {name for r in trained for entry in r.training["history"] for name in entry}
            names = ", ".join(sorted(known - {"iteration", "loss"})) or "none"
            raise UserError(f"--target names a metric of the records' validations, {names}; got {metric}.")
        tables += [_table(own, metric, target) for own in sorted(measured, key=lambda own: bench_order(own[0].bench))]
    return tables


def _table(records: Sequence[Record], metric: str, target: float) -> WideTable:
    unit, better = _quality(records, metric)
    if unit == "fraction" and not 1 < target <= 100:
        raise UserError(f"--target of a share is in per cent, as in {metric}=90; got {metric}={target:g}.")
    goal = target / 100 if unit == "fraction" else target
    entries = completed(
        list({(e.record.method, e.record.seed, *sorted(e.facts.items())): e for e in map(_entry, records)}.values())
    )
    rows = []
    for group, telling in row_groups(entries, set()):
        own = [e.record for e in group]
        attributes = {
            "norm": group[0].facts["norm"],
            "budget": f"{group[0].facts['preset']}, {group[0].facts['iterations']} it",
            "trained": training_cost(own),
            "settings": in_words(group[0], telling),
            "seeds": seeds_of(group),
            "source": group[0].facts["source"],
        }
        label = group[0].facts["method"] + stand_in_mark(group[0].facts["source"])
        rows.append(Row(label, attributes, _cells(own, metric, goal, unit, better)))
    notes = [
        "tasks, time: training tasks seen, and time of training with its validations on the machine that it ran on, "
        "until a validation first reached the target; known to the interval between validations, the mean of seeds.",
        "time is not known of records that do not say when their validations were. Draws of a tuned row are not in it.",
        *([STAND_IN_NOTE] if any(stand_in_mark(r.data["source"]) for r in records) else []),
    ]
    shown = f"{target:g}{' %' if unit == 'fraction' else ''}"
    return WideTable(
        name=f"target_{metric}_{records[0].bench}",
        title=f"training on {records[0].bench} until validation {metric} reached {shown} ({better} is better)",
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


def _cells(records: Sequence[Record], metric: str, goal: float, unit: str, better: Better) -> dict[str, Cell]:
    """Of one configuration, a record a seed."""
    best, tasks, times = [], [], []
    sign = 1 if better == "higher" else -1
    for record in records:
        validations = _validations(record, metric)
        best.append(sign * max((sign * score for _, score, _ in validations), default=-math.inf))
        first = next((v for v in validations if sign * v[1] >= sign * goal), None)
        if first is not None:
            tasks.append(first[0] * record.config["tasks_per_batch"])
            times.append(first[2])
    cells = {}
    if finite := [score for score in best if math.isfinite(score)]:
        mean = statistics.fmean(finite)
        cells[_BEST] = Cell(mean, None, number_text(mean, unit))
    if len(tasks) < len(records):
        reached = f" ({len(tasks)} of {len(records)} seeds did)" if tasks else ""
        return {_TASKS: Cell(math.nan, None, f"not reached{reached}"), **cells}
    cells[_TASKS] = Cell(statistics.fmean(tasks), None, f"{statistics.fmean(tasks):,.0f}")
    known = [time for time in times if time is not None]
    if len(known) == len(records):
        cells[_TIME] = Cell(statistics.fmean(known), None, duration(statistics.fmean(known)))
    return cells
