"""What all tables say in the same words: facts in words, cells, titles and notes."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from mlpip_bench.records.published import Published
from mlpip_bench.records.record import Better, Model
from mlpip_bench.records.statistics import mean_ci95
from mlpip_bench.reporting.entries import ROW_FACTS, Entry, bench_order, grouped, natural, scores_over_seeds
from mlpip_bench.reporting.table import Cell, Row
from mlpip_bench.utils.provenance import STAND_INS

OWN_COLUMN = {*ROW_FACTS, "iterations", "test_tasks", "way", "shot"}
"""Facts that a column or the bench's name shows, so that settings and notes leave them out."""

ONLY_IF_TELLING = {"record", "method code", "protocol code", "bench code", "backbone code"}
"""Facts that are shown only for rows which nothing else distinguishes."""

STAND_IN_NOTE = (
    "stand-in: measured on data that stand in for the real data set; not comparable with real or published results."
)
NO_INTERVAL_NOTE = "n/a: one test task has no interval."

PUBLISHED_UNITS = {"accuracy": "fraction", "nll": "nats per query"}

_UNIT_LABELS = {"fraction": "%"}


def bare(name: str) -> str:
    """The name of a fact as words."""
    return name.removeprefix("settings.").removeprefix("data.").replace("backbone.", "backbone ").replace("_", " ")


def varies(values: Mapping[str, str]) -> bool:
    """Whether a fact has several values, which are given by bench, method or folder."""
    return len(set(values.values())) > 1


def fact_in_words(name: str, values: Mapping[str, str]) -> str:
    """A fact and its value; its values, each with where it has it in brackets, if it has several."""
    if not varies(values):
        return f"{bare(name)} {next(iter(values.values())) or 'unset'}"
    groups = grouped(values, lambda place: values[place])
    return f"{bare(name)} " + ", ".join(f"{value or 'unset'} ({', '.join(places)})" for value, places in groups.items())


def in_words(entry: Entry, names: Iterable[str]) -> str:
    """The named facts with their values."""
    unset = {"tuned": "no (default)"}
    return ", ".join(f"{bare(name)} {entry.facts.get(name) or unset.get(name, 'unset')}" for name in names)


def named(entry: Entry, names: Sequence[str]) -> str:
    """The method, with facts that tell its configuration."""
    return f"{entry.record.method} ({in_words(entry, names)})" if names else entry.record.method


def span(values: Iterable[str]) -> str:
    """The least and the greatest number, or the only one."""
    ordered = sorted(set(values), key=natural)
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]}–{ordered[-1]}"  # noqa: RUF001  # an en dash


def stand_in_mark(source: str) -> str:
    """What labels of rows on stand-in data end with; else nothing."""
    return " (stand-in)" if source in STAND_INS else ""


def qualities(unit: str, better: Better, model: Model, chosen_by: str = "") -> str:
    """What the title of a metric's table has in brackets: unit, direction and which model of training."""
    trained = "last iteration of training" if model == "last" else "best on validation"
    trained += f", by {chosen_by}" if chosen_by else ""
    direction = "" if better == "neither" else f", {better} is better"
    return f"{_UNIT_LABELS.get(unit, unit)}{direction}; model: {trained}"


def qualities_of_differences(unit: str, better: Better) -> str:
    """The same for differences, which are of the models that are best on validation."""
    return qualities("percentage points" if unit == "fraction" else unit, better, "best")


def mean_cell(entries: Sequence[Entry], unit: str) -> Cell:
    """Mean over seeds task by task, then over tasks."""
    spread = ""
    if len(entries) > 1:
        spread = f"sd {number_text(statistics.stdev(statistics.fmean(e.score.per_task) for e in entries), unit)}"
    return replace(interval_cell(*mean_ci95(scores_over_seeds(entries)), unit), spread=spread)


def interval_cell(mean: float, ci95: float, unit: str, sign: str = "") -> Cell:
    """Mean ± 95 % half-width, both in the metric's own unit; ``sign`` goes before the mean."""
    return Cell(mean, finite(ci95), f"{sign}{number_text(mean, unit)} ± {number_text(ci95, unit)}")


def published_cell(quoted: Published) -> Cell:
    """A number of the paper, with its decimals."""

    def number(value: Decimal) -> str:
        return str(value.scaleb(2) if PUBLISHED_UNITS[quoted.metric] == "fraction" else value)

    text = number(quoted.mean) + ("" if quoted.ci95 is None else f" ± {number(quoted.ci95)}")
    return Cell(float(quoted.mean), None if quoted.ci95 is None else float(quoted.ci95), text)


def finite(value: float) -> float | None:
    """A half-width, or None where there is none."""
    return value if math.isfinite(value) else None


def number_text(value: float, unit: str) -> str:
    """A number as shown: fractions in per cent with two decimals, nats with four."""
    if not math.isfinite(value):
        return "n/a"
    if unit == "fraction":
        return f"{100 * value:z.2f}"  # z: no minus before a zero
    return f"{value:z.4f}" if unit.startswith("nats") else f"{value:.4g}"


class Notes:
    """Numbered notes; rows that need the same words share a number, in all tables that are given the same numbers."""

    def __init__(self, numbers: dict[str, int] | None) -> None:
        self._numbers = {} if numbers is None else numbers
        self._own: set[str] = set()

    def mark(self, label: str, note: str) -> str:
        """The label, with the number of its note if there is one."""
        if not note:
            return label
        self._own.add(note)
        return f"{label} [{self._numbers.setdefault(note, len(self._numbers) + 1)}]"

    def __iter__(self) -> Iterator[str]:
        return (f"[{number}] {note}." for note, number in self._numbers.items() if note in self._own)


def interval_notes(entries: Sequence[Entry], rows: Sequence[Row]) -> Iterator[str]:
    """What ± and sd are."""
    cells = [cell for row in rows for cell in row.cells.values()]
    tasks = span(e.facts["test_tasks"] for e in entries)
    yield f"± is the 95 % Student-t half-width over {tasks} test tasks (ddof 1), not over seeds."
    if any(cell.spread for cell in cells):
        yield (
            "Several seeds: scores are averaged over the seeds task by task (all seeds see the same test tasks) "
            "and ± is over those per-task means; sd is the standard deviation (ddof 1) of the seeds' means."
        )
    if any(cell.ci95 is None for cell in cells):
        yield NO_INTERVAL_NOTE


def configuration_notes(entries: Sequence[Entry], common: set[tuple[str, str]], in_rows: set[str]) -> Iterator[str]:
    """What all rows share, and the data behind each column.

    Args:
        entries: of the table.
        common: the facts that they share.
        in_rows: facts of the data that stand at the rows.
    """
    shared = [
        f"{bare(name)} {value}"
        for name, value in sorted(common)
        if name not in OWN_COLUMN | ONLY_IF_TELLING and not name.startswith("data.")
    ]
    if shared:
        yield f"Settings of all our rows: {', '.join(shared)}."
    hidden = {*in_rows, "data.name"}
    described: dict[str, list[str]] = defaultdict(list)
    for entry in sorted(entries, key=lambda e: (bench_order(e.bench), e.facts["source"])):
        options = [
            f"{bare(k)} {v}" for k, v in sorted(entry.facts.items()) if k.startswith("data.") and k not in hidden
        ]
        words = ", ".join([f"{entry.facts['data.name']} ({entry.facts['source']})", *options])
        if entry.bench not in described[words]:
            described[words].append(entry.bench)
    parts = [f"{', '.join(benches)}: {words}" for words, benches in described.items()]
    yield f"Data: {'; '.join(parts)}."
