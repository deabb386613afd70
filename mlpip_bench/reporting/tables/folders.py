"""Two results folders side by side: what changed from A to B, and which of the changes are real.

What both folders measured of a method on a bench is compared, also where they did it differently: with another norm,
budget or version. The differences are said at the row, and data that differ are never compared.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

import pandas as pd

from mlpip_bench.records.record import Record
from mlpip_bench.records.statistics import LEVEL
from mlpip_bench.records.store import load_all
from mlpip_bench.reporting.decisions import NO_MARGINS, Decision, Margins, decide, models_note
from mlpip_bench.reporting.entries import (
    Entry,
    as_text,
    column_order,
    completed,
    conflicts,
    difference_of,
    entries_of,
    estimate_of,
    facts_order,
    grouped,
    same_tasks,
    seeds_of,
    unique,
)
from mlpip_bench.reporting.table import Cell, Row, WideTable
from mlpip_bench.reporting.wording import (
    NO_INTERVAL_NOTE,
    STAND_IN_NOTE,
    Notes,
    bare,
    budget_in_words,
    fact_in_words,
    finite,
    in_words,
    interval_cell,
    qualities_of_differences,
    signed_cell,
    stand_in_mark,
    value_in_words,
)
from mlpip_bench.utils.encoding import csv_text
from mlpip_bench.utils.errors import UserError

How: TypeAlias = Literal["paired", "unpaired", "data differ", "only in A", "only in B"]
_SET_OFF: tuple[How, ...] = ("paired", "unpaired")

_SHOWN = ("protocol", "norm", "inductive", "queries", "device", "preset", "iterations", "test_tasks", "source")
"""Facts with columns of their own, so that settings leave them out."""

_LONGEST = 300
"""Characters of what an error lists of a folder."""


@dataclass(frozen=True)
class Change:
    """One metric of one configuration on one bench in folder A and in folder B.

    Attributes:
        a, b: its scores in each folder, one entry a seed; empty where the folder has none.
        telling: names of the facts that tell it from the other configurations of its method.
        how: whether the two were measured on the same test tasks, or why they are not compared.
        decision: on B less A, corrected for all changes of the two folders; None where they are not compared.
    """

    a: Sequence[Entry]
    b: Sequence[Entry]
    telling: Sequence[str]
    how: How
    decision: Decision | None = None

    @property
    def mean(self) -> float:
        """Of B less A, in the metric's own unit; not a number where they are not compared."""
        return self.decision.estimate.mean if self.decision else math.nan

    @property
    def ci95(self) -> float:
        """Its 95 % half-width."""
        return self.decision.estimate.ci95 if self.decision else math.inf

    @property
    def p(self) -> float:
        """Of the test with that interval."""
        return self.decision.estimate.p if self.decision else math.nan

    @property
    def p_holm(self) -> float:
        """The same, corrected."""
        return self.decision.p_holm if self.decision else math.nan

    @property
    def first(self) -> Entry:
        """What names it."""
        return (*self.a, *self.b)[0]

    @property
    def compared(self) -> bool:
        """Whether it has an interval."""
        return math.isfinite(self.ci95)

    @property
    def mark(self) -> str:
        """Of its label: that one of the two was measured on stand-in data."""
        return max(stand_in_mark(entry.facts["source"]) for entry in (*self.a, *self.b))

    @property
    def verdict(self) -> str:
        """On B, corrected; else why there is none."""
        return self.decision.verdict if self.decision else self.how

    @property
    def differs(self) -> list[str]:
        """What was measured differently, in words."""
        if not (self.a and self.b):
            return []
        facts, others = self.a[0].facts, self.b[0].facts
        values = {name: {"A": facts.get(name, ""), "B": others.get(name, "")} for name in facts.keys() | others.keys()}
        values["seeds"] = {"A": seeds_of(self.a), "B": seeds_of(self.b)}
        unlike = sorted(name for name, both in values.items() if both["A"] != both["B"] and name != "record")
        return [fact_in_words(name, values[name]) for name in unlike]


def load_both(a: Path, b: Path) -> tuple[list[Record], list[Record]]:
    """The records of two results folders.

    Raises:
        UserError: one of them has none, or a record is damaged.
    """
    both = load_all(a), load_all(b)
    for folder, records in zip((a, b), both, strict=True):
        if not records:
            raise UserError(
                f"compare takes two results folders; there are no records below {folder / 'records'}. Name a folder "
                "that `python -m mlpip_bench run --results FOLDER` has written to."
            )
    return both


def changes(a: Iterable[Record], b: Iterable[Record], margins: Margins = NO_MARGINS) -> list[Change]:
    """All that the folders measured per task of the models that are best on validation, by metric and bench.

    Within a folder the configurations of a method are distinguished by what varies there; of the two folders those are
    compared that agree in that.

    Raises:
        UserError: no configuration is in both folders.
    """
    ours, theirs = entries_of(a), entries_of(b)
    together = completed([*ours, *theirs])
    both = together[: len(ours)], together[len(ours) :]
    sides = [grouped((e for e in side if e.score.model == "best"), _place) for side in both]
    places = sorted(sides[0].keys() | sides[1].keys())
    found = [_change(*pair) for place in places for pair in _matched(sides[0].get(place, []), sides[1].get(place, []))]
    if not any(change.a and change.b for change in found):
        alone = {side: _alone(found, f"only in {side}") or "nothing" for side in "AB"}
        only = "; ".join(
            f"only in {side}: {textwrap.shorten(what, _LONGEST, placeholder=' ...')}" for side, what in alone.items()
        )
        raise UserError(
            "two folders are compared in what both have measured: a bench, a method, a metric and, where a folder has "
            f"several configurations of these, the same one; got {only}. Run a method of one of them with --results "
            "for the other, too."
        )
    set_off = [change for change in found if change.how in _SET_OFF]
    family = [(*difference_of(change.b, change.a), change.first.score) for change in set_off]
    decisions = iter(decide(family, margins))
    return sorted(
        (replace(change, decision=next(decisions)) if change.how in _SET_OFF else change for change in found),
        key=_change_order,
    )


def _matched(
    a: Sequence[Entry], b: Sequence[Entry], above: Sequence[str] = ()
) -> Iterator[tuple[Sequence[Entry], Sequence[Entry], Sequence[str]]]:
    """Configurations of A and of B that belong together, with what tells them from others of their place."""
    varying = conflicts(a, lambda _: None) | conflicts(b, lambda _: None)
    of_data = sorted(varying & {"source", "data.name"})  # first, since budgets may go with the data set
    telling = of_data or sorted(varying)
    if not of_data and not (unique(a, telling) and unique(b, telling)):
        telling = [*telling, "record"]
    parts = [grouped(side, lambda e: tuple(e.facts.get(name, "") for name in telling)) for side in (a, b)]
    for key in sorted(parts[0].keys() | parts[1].keys()):
        ours, theirs = (part.get(key, []) for part in parts)
        names = [*above, *telling]
        if of_data:
            yield from _matched(ours, theirs, names)
        else:
            yield ours, theirs, names


def _place(entry: Entry) -> tuple[str, ...]:
    return (
        entry.score.metric, entry.score.unit, entry.score.better, entry.column, entry.record.method,
        entry.record.protocol,
    )  # fmt: skip


def _change_order(change: Change) -> tuple[object, ...]:
    first = change.first
    return first.score.metric, *column_order(first), facts_order(first, ("method", *change.telling))


def _change(a: Sequence[Entry], b: Sequence[Entry], telling: Sequence[str]) -> Change:
    if not (a and b):
        return Change(a, b, telling, "only in A" if a else "only in B")
    facts, others = a[0].facts, b[0].facts
    of_data = [name for name in facts.keys() | others.keys() if name == "source" or name.startswith("data.")]
    if any(facts.get(name) != others.get(name) for name in of_data):
        return Change(a, b, telling, "data differ")
    return Change(a, b, telling, "paired" if same_tasks(a[0], b[0]) else "unpaired")


# -------------------------------------------------------------------------------------------------------- showing


def folder_tables(found: Sequence[Change], a: Path, b: Path) -> list[WideTable]:
    """One table for each metric with a row for each configuration, and one of what differs between the folders."""
    both = [change for change in found if change.a and change.b]
    unlike = _unlike(both)
    ending = [_count(found)]
    ending += [f"Only in {side}: {alone}." for side in "AB" if (alone := _alone(found, f"only in {side}"))]
    if not unlike:
        ending.append("Settings, versions and machines of what is in both folders are the same.")
    tables = [
        _table(group, [f"A: {a}; B: {b}.", *_notes(group, found), *ending])
        for group in grouped(both, lambda change: _place(change.first)[:3]).values()
    ]
    return [*tables, _unlike_table(unlike)] if unlike else tables


def _table(found: Sequence[Change], notes: Sequence[str]) -> WideTable:
    score, marks = found[0].first.score, Notes(None)
    rows = []
    for change in found:
        note = "; ".join(change.differs)
        label = change.first.record.method + change.mark
        bold = frozenset({"B minus A"} if change.p_holm < LEVEL else ())
        mark = marks.mark(note and f"measured differently: {note}")
        rows.append(Row(label, _attributes(change), _cells(change), bold, mark))
    qualities = qualities_of_differences(score.unit, score.better)
    return WideTable(
        name=f"compared_{score.metric}",
        title=f"{score.metric}, B minus A ({qualities})",
        benches=("A", "B", "B minus A", "p, Holm", "verdict"),
        rows=tuple(rows),
        published=(),
        notes=tuple(notes),
        row_notes=tuple(marks),
    )


def _attributes(change: Change) -> dict[str, str]:
    sides = [side for side in (change.a, change.b) if side]

    def of_both(values: Iterable[str]) -> str:
        return "/".join(dict.fromkeys(values))

    names = ("norm", "inductive", "device", "protocol", "source", "queries")
    return {
        **{name: of_both(side[0].facts[name] for side in sides) for name in names},
        "bench": change.first.column,
        "budget": of_both(budget_in_words(side[0].facts["preset"], side[0].facts["iterations"]) for side in sides),
        "tasks": of_both(side[0].facts["test_tasks"] for side in sides),
        "seeds": of_both(seeds_of(side) for side in sides),
        "settings": in_words(change.first, [name for name in change.telling if name not in _SHOWN]),
    }


def _cells(change: Change) -> dict[str, Cell]:
    unit = change.first.score.unit
    cells = {name: interval_cell(estimate_of(side), unit) for name, side in (("A", change.a), ("B", change.b))}
    if change.decision:
        cells["B minus A"] = signed_cell(change.decision.estimate, unit)
    if change.compared:
        cells["p, Holm"] = Cell(change.p_holm, None, _p_text(change.p_holm))
    return cells | {"verdict": Cell(math.nan, None, change.verdict)}


def _p_text(p: float) -> str:
    return "<0.0001" if p < 0.0001 else f"{p:.2g}"


def _notes(shown: Sequence[Change], found: Sequence[Change]) -> Iterator[str]:
    total = sum(change.compared for change in found)
    yield (
        "A, B: mean over test tasks, and over trainings where there are several seeds, ± 95 % half-width. B minus A: "
        "the same of the differences task by task and seed by seed, over the seeds that both have, where both folders "
        "have the same test tasks: the same bench, data, queries and number of tasks. Without a seed in common each is "
        "averaged over its own. Scores of a task that agree to six digits count as equal."
    )
    if any(change.how == "unpaired" for change in shown):
        yield "Where queries or the number of tasks differ, B minus A is unpaired, with Welch's interval over tasks."
    if any(change.how == "data differ" for change in shown):
        yield "data differ: not compared, since scores on unlike data say nothing of what was changed."
    if any(entry.facts["test_tasks"] == "1" for change in shown for entry in (*change.a, *change.b)):
        yield NO_INTERVAL_NOTE
    yield (
        "p, Holm: of the t test with the interval of B minus A, corrected by Holm's method for all "
        f"{total} differences of all metrics here. verdict, on B: better or worse, and bold, if it is below {LEVEL:g}, "
        "else undecided, which does not say equal: --margin does."
    )
    decisions = [change.decision for change in shown if change.decision]
    if note := models_note(decisions):
        yield note
    if margin := next((d.margin for d in decisions if d.margin), ""):
        yield f"equal within {margin}: two one-sided tests at 5 %, Holm-corrected, show that the difference is smaller."
    if any(change.mark for change in shown):
        yield STAND_IN_NOTE


def _count(found: Sequence[Change]) -> str:
    compared = [change for change in found if change.compared]
    models, methods = (
        [change for change in compared if change.decision and change.decision.of_methods is several]
        for several in (False, True)
    )
    parts = []
    if methods:
        real = sum(change.p_holm < LEVEL for change in methods)
        parts.append(f"{real} of {len(methods)} differences over several trainings are real, after Holm's correction.")
    if models or not methods:
        left = sum(change.p_holm < LEVEL for change in models)
        parts.append(
            f"{left} of {len(models)} differences set two trained models off from each other, after Holm's correction. "
            "One seed shows no more: another training of the same method may differ as much."
        )
    return " ".join(parts)


def _alone(found: Sequence[Change], how: str) -> str:
    """What one folder has and the other has not: the methods of each bench by what was measured."""
    metrics: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for change in found:
        if change.how == how:
            settings = in_words(change.first, [name for name in change.telling if name != "inductive"])  # norm tells it
            name = change.first.record.method + (f" ({settings})" if settings else "")
            metrics[change.first.column, name][change.first.score.metric] = None
    groups = grouped(metrics, lambda key: (key[0], ", ".join(metrics[key])))
    return "; ".join(
        f"{names} on {column}: {', '.join(name for _, name in keys)}" for (column, names), keys in groups.items()
    )


def _unlike(both: Sequence[Change]) -> dict[str, tuple[str, str]]:
    """How what is in both folders was made: by name, the values in A and in B, where these are not the same."""
    sides = [
        grouped(_facts_and_environments(itertools.chain(*entries)), lambda pair: pair[0])
        for entries in ([change.a for change in both], [change.b for change in both])
    ]
    texts = {
        name: tuple(
            value_in_words(name, ", ".join(sorted({value for _, value in side.get(name, [])}))) for side in sides
        )
        for name in sorted(sides[0].keys() | sides[1].keys())
    }
    return {name: (a, b) for name, (a, b) in texts.items() if a != b}


def _unlike_table(unlike: Mapping[str, tuple[str, str]]) -> WideTable:
    cells = {
        name: {side: Cell(math.nan, None, text) for side, text in zip("AB", texts, strict=True)}
        for name, texts in unlike.items()
    }
    return WideTable(
        name="compared_folders",
        title="how what is in both folders was made, where it differs",
        benches=("A", "B"),
        rows=tuple(Row(name, {}, own) for name, own in cells.items()),
        published=(),
        notes=("Nothing else that the records tell differs.",),
        row_name="what",
    )


def _facts_and_environments(entries: Iterable[Entry]) -> Iterator[tuple[str, str]]:
    """Facts of configurations and environments, by name."""
    for entry in entries:
        yield "seed", str(entry.record.seed)
        yield from ((bare(name), value) for name, value in entry.facts.items() if name not in ("record", "inductive"))
        environment = entry.record.environment
        for name, value in {**environment, "build": environment.get("code", {}).get("build", "unset")}.items():
            if name not in ("mlpip_bench", "code", "session"):  # two are facts already, and one is never the same
                yield name, as_text(value)


def changes_csv(found: Iterable[Change]) -> str:
    """All changes as CSV; floats in full and in the metric's own unit."""
    rows = []
    for change in found:
        a, b = (
            (estimate_of(side).mean, estimate_of(side).ci95) if side else (math.nan, math.nan)
            for side in (change.a, change.b)
        )
        rows.append(
            {
                "metric": change.first.score.metric,
                "method": change.first.record.method,
                **_attributes(change),
                "differs": "; ".join(change.differs),
                "a": a[0],
                "a_ci95": finite(a[1]),
                "b": b[0],
                "b_ci95": finite(b[1]),
                "how": change.how,
                "difference": change.mean,
                "ci95": finite(change.ci95),
                "p": change.p,
                "p_holm": change.p_holm,
                "p_equal_holm": change.decision.p_equal if change.decision else math.nan,
                "trainings": change.decision.estimate.trainings if change.decision else None,
                "verdict": change.verdict,
                "unit": change.first.score.unit,
            }
        )
    return csv_text(pd.DataFrame(rows))
