"""What all tables say in the same words: facts in words, cells, titles and notes."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np

from mlpip_bench.records.published import Published
from mlpip_bench.records.record import Better, Model, Record
from mlpip_bench.records.statistics import Estimate, exact_mean
from mlpip_bench.reporting.calibrated import expected_ece
from mlpip_bench.reporting.entries import ROW_FACTS, Entry, bench_order, estimate_of, grouped, natural
from mlpip_bench.reporting.table import Cell, Row
from mlpip_bench.utils.provenance import STAND_INS

OWN_COLUMN = {
    *ROW_FACTS, "backbone", "pretrained.what", "pretrained.sha256", "pretrained.saw", "iterations", "test_tasks", "way",
    "shot",
}  # fmt: skip
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
    if name == "numbers":
        return "numbers version"
    for group, word in (
        ("settings.", ""),
        ("data.", ""),
        ("backbone.", "backbone "),
        ("pretraining.", "pre-training "),
    ):
        if name.startswith(group):
            name = word + name.removeprefix(group)
    return name.replace("_", " ")


def value_in_words(name: str, value: str) -> str:
    """A fact's value in words, also where it is not known."""
    return value or {"tuned": "no (default)"}.get(name, "unset")


def varies(values: Mapping[str, str]) -> bool:
    """Whether a fact has several values, which are given by bench, method or folder."""
    return len(set(values.values())) > 1


def fact_in_words(name: str, values: Mapping[str, str]) -> str:
    """A fact and its value; its values, each with where it has it in brackets, if it has several."""
    if not varies(values):
        return f"{bare(name)} {value_in_words(name, next(iter(values.values())))}"
    groups = grouped(values, lambda place: values[place])
    words = (f"{value_in_words(name, value)} ({', '.join(places)})" for value, places in groups.items())
    return f"{bare(name)} {', '.join(words)}"


def in_words(entry: Entry, names: Iterable[str]) -> str:
    """The named facts with their values."""
    return ", ".join(f"{bare(name)} {value_in_words(name, entry.facts.get(name, ''))}" for name in names)


def named(entry: Entry, names: Sequence[str]) -> str:
    """The method, with facts that tell its configuration."""
    return f"{entry.record.method} ({in_words(entry, names)})" if names else entry.record.method


def span(values: Iterable[str]) -> str:
    """The least and the greatest number, or the only one."""
    ordered = sorted(set(values), key=natural)
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]}–{ordered[-1]}"  # noqa: RUF001  # an en dash


def budget_in_words(preset: str, iterations: str, unit: str = "it") -> str:
    """The preset and iterations of training on tasks; where there is none, the preset alone, for its test."""
    return f"{preset}, no meta-training" if iterations == "0" else f"{preset}, {iterations} {unit}"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, by how many there are."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def training_cost(records: Sequence[Record]) -> str:
    """Training tasks seen and time taken, of a model; of several the least and the most. Empty where nothing is known.

    A tuned row's are those of all its draws. Pre-training, which rows may share, comes with each that needs it.
    """
    parts = []
    if known := [r.training for r in records if r.parameters and r.training.get("tasks_seen")]:
        parts.append(_amount("tasks", known))
    if earlier := [p for r in records if "seconds" in (p := r.training.get("pretraining", {}))]:
        parts.append(_amount("images", earlier, " of pre-training"))
    if any(r.training.get("outside") for r in records):
        parts.append("outside")
    return "; ".join(parts)


def _amount(unit: str, trainings: Sequence[Mapping[str, Any]], of: str = "") -> str:
    many = [int(training[name]) for training in trainings for name in (unit, f"{unit}_seen") if name in training]
    seconds = [float(training.get("seconds", 0)) for training in trainings]
    spans = (
        dict.fromkeys(f"{number:,}" for number in (min(many), max(many))),
        dict.fromkeys(duration(time) for time in (min(seconds), max(seconds))),
    )
    return "{} {}{}, {}".format("–".join(spans[0]), unit, of, "–".join(spans[1]))  # noqa: RUF001  # an en dash


def pretraining_in_words(record: Record) -> str:
    """What a model was before meta-training: what was trained, on what, and the file that it came in."""
    found = record.training.get("pretraining")
    data = record.data.get("options", {}).get("pretrained_on")
    parts = [f"features of a network trained on {data}"] if data else []
    if found:
        file = f", {found['file']} (SHA-256 {found['sha256'][:12]})" if "sha256" in found else ""
        parts.append(f"{found['what']}: {found['saw']}{file}")
    return "; ".join(parts) or "none"


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
    """Mean over seeds and tasks with its interval, the spread of the seeds, and what calibration would give an ECE."""
    found = estimate_of(entries)
    spread = []
    if len(entries) > 1:
        sd = statistics.stdev(exact_mean(e.score.per_task) for e in entries)
        spread.append(f"sd {number_text(sd, unit, decimals(unit, found.mean))}")
    if (expected := expected_ece([e.score for e in entries])) is not None:
        spread.append(f"{number_text(expected, unit)} if calibrated")
    return replace(interval_cell(found, unit), spread=", ".join(spread))


def interval_cell(found: Estimate, unit: str, sign: str = "") -> Cell:
    """Mean ± 95 % half-width, to the same digits; ``sign`` goes before the mean."""
    digits = decimals(unit, found.mean)
    text = f"{sign}{number_text(found.mean, unit, digits)} ± {number_text(found.ci95, unit, digits)}"
    return Cell(found.mean, finite(found.ci95), text)


def signed_cell(found: Estimate, unit: str) -> Cell:
    """A difference with its sign."""
    return interval_cell(found, unit, "+" if found.mean > 0 else "")


def published_cell(quoted: Published) -> Cell:
    """A number of the paper, with its decimals."""

    def number(value: Decimal) -> str:
        return str(value.scaleb(2) if PUBLISHED_UNITS[quoted.metric] == "fraction" else value)

    text = number(quoted.mean) + ("" if quoted.ci95 is None else f" ± {number(quoted.ci95)}")
    return Cell(float(quoted.mean), None if quoted.ci95 is None else float(quoted.ci95), text)


def finite(value: float) -> float | None:
    """A half-width, or None where there is none."""
    return value if math.isfinite(value) else None


def decimals(unit: str, mean: float) -> int:
    """How many a mean and its interval are shown with: two for per cent, else four, or three digits of a small mean."""
    if unit == "fraction":
        return 2
    small = not unit.startswith("nats") and 0 < abs(mean) < 0.01
    return 2 - math.floor(math.log10(abs(mean))) if small else 4


def number_text(value: float, unit: str, digits: int | None = None) -> str:
    """A number as shown, fractions in per cent; with so many decimals, or as many as a mean of its size has."""
    if not math.isfinite(value):
        return "n/a"
    digits = decimals(unit, value) if digits is None else digits
    return f"{100 * value if unit == 'fraction' else value:z.{digits}f}"  # z: no minus before a zero


def few_classes(entry: Entry) -> str:
    """The bench with its number of test classes, where these are few: fewer than four times a task's, or than 20.

    Then most tasks share classes, and the mean over all tasks that these classes allow is not that over classes.
    """
    count, way = entry.record.data.get("test_classes"), entry.score.way
    if not isinstance(count, int) or way < 2 or count >= max(20, 4 * way):
        return ""
    possible = math.comb(count, way)
    many = f" ({possible:,} combinations)" if 1 < possible < _MANY else ""
    return f"{entry.bench} has {count}, of which a task has {way}{many}"


_MANY = 10**9
"""Combinations whose number nobody needs."""


class Notes:
    """Numbered notes; rows that need the same words share a number, in all tables that are given the same numbers."""

    def __init__(self, numbers: dict[str, int] | None) -> None:
        self._numbers = {} if numbers is None else numbers
        self._own: set[str] = set()

    def mark(self, note: str) -> str:
        """The number of a note, in brackets; empty where there is none."""
        if not note:
            return ""
        self._own.add(note)
        return f"[{self._numbers.setdefault(note, len(self._numbers) + 1)}]"

    def __iter__(self) -> Iterator[str]:
        return (f"[{number}] {note}." for note, number in self._numbers.items() if note in self._own)


def interval_notes(entries: Sequence[Entry], rows: Sequence[Row]) -> Iterator[str]:
    """What ± and what stands in brackets are."""
    cells = [cell for row in rows for cell in row.cells.values()]
    tasks = span(e.facts["test_tasks"] for e in entries)
    trainings = {row.attributes["seeds"].count(",") + 1 for row in rows if row.attributes.get("seeds")}
    if trainings - {1}:
        yield (
            f"{'Several seeds: ' if 1 in trainings else ''}± is the 95 % half-width over "
            f"{span(map(str, trainings - {1}))} trainings and {tasks} test tasks (two-way random effects, "
            "Satterthwaite's degrees of freedom); sd is the standard deviation (ddof 1) of the seeds' means."
        )
    if 1 in trainings or not trainings:
        yield (
            f"{'One seed: ' if len(trainings) > 1 else ''}± is the 95 % Student-t half-width over {tasks} test tasks "
            "(ddof 1). It leaves the training out: a number is of one trained model."
        )
    if any(e.score.unit == "fraction" and not np.ptp(e.score.per_task) for e in entries):
        yield "Where all tasks score the same, ± is the exact binomial bound for as many tasks."
    if any("if calibrated" in cell.spread for cell in cells):
        yield (
            "if calibrated: the ECE to be expected of a perfectly calibrated model with as many queries in each bin, "
            "queries being independent. An ECE near it shows no miscalibration."
        )
    if few := sorted({bench for e in entries if (bench := few_classes(e))}):
        yield (
            f"Few test classes: {'; '.join(few)}. ± is over tasks of these classes, and says little of others: "
            "rescore --over classes has intervals over classes."
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
        if value and name not in OWN_COLUMN | ONLY_IF_TELLING and not name.startswith("data.")
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
