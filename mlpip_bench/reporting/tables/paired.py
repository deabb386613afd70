"""Paired differences: each two methods, or settings of one, that were measured in the same way, task by task."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from mlpip_bench.records.record import Better, Record
from mlpip_bench.records.statistics import paired_difference, unpaired_ci95, verdict
from mlpip_bench.reporting.entries import (
    COMPARABLE,
    NORM_FACTS,
    Entry,
    Natural,
    comparable_groups,
    conflicts,
    entries_of,
    grouped,
    natural,
    row_groups,
    seeds_of,
    shared_scores,
    telling_facts,
)
from mlpip_bench.reporting.table import ATTRIBUTES, Cell, Row, WideTable
from mlpip_bench.reporting.wording import (
    NO_INTERVAL_NOTE,
    STAND_IN_NOTE,
    Notes,
    fact_in_words,
    finite,
    in_words,
    interval_cell,
    named,
    number_text,
    qualities_of_differences,
    span,
    stand_in_mark,
    varies,
)
from mlpip_bench.utils.errors import UserError, unknown_name


@dataclass(frozen=True)
class Comparison:
    """A paired difference on one bench: the first's scores minus the second's.

    Attributes:
        metric, unit, better: of the scores.
        method, against: the first and the second; two configurations of one method with what differs in brackets.
        attributes: how both were measured, by name of the column.
        differs: what was not the same for both, beyond settings that only one of them has; empty if nothing.
        mean: mean difference over the test tasks; not a number where they have no seed in common.
        ci95: its half-width over tasks, paired.
        unpaired_ci95: the half-width that it would have if each of the two had tasks of its own.
    """

    metric: str
    unit: str
    better: Better
    method: str
    against: str
    attributes: Mapping[str, str]
    differs: str
    mean: float
    ci95: float
    unpaired_ci95: float

    @property
    def verdict(self) -> str:
        """``better``, ``worse``, ``differs`` where neither is better, or ``unclear``, on the first."""
        return verdict(self.mean, self.ci95, self.better)


def method_differences(records: Sequence[Record], against: str | None = None) -> list[Comparison]:
    """Differences of each two methods that were measured in the same way, of the models that are best on validation.

    Configurations of a method that differ are compared separately, and with each other where nothing but settings of
    the method or the norm differs. Seeds are averaged task by task first, those that both have.

    Args:
        records: what was run.
        against: only differences to this method.

    Returns:
        By metric, bench and condition of measurement; empty if no two were measured in the same way.

    Raises:
        UserError: no record is of the method ``against``.
    """
    methods = {record.method for record in records}
    if against is not None and against not in methods:
        raise unknown_name("method for --against", against, methods)
    entries = _pairable(records)
    data_keys = sorted(n for n in conflicts(entries, lambda e: (e.facts["source"], e.bench)) if n.startswith("data."))
    found = []
    for group in comparable_groups(entries, (*COMPARABLE, "protocol")):
        telling, runs = telling_facts(group), []
        for part, keys in row_groups(group, set()):
            # The norm has columns of its own.
            names = [name for name in telling[part[0].record.method] if name not in NORM_FACTS]
            runs.append((part, [*names, *({"record"} & set(keys))]))
        runs.sort(key=lambda run: run[0][0].record.method == against)  # so that it is the second of a pair
        for (first, names), (second, other_names) in sorted(itertools.combinations(runs, 2), key=_pair_order):
            a, b = first[0], second[0]
            choices: list[str] = []
            if a.record.method == b.record.method:
                choices = _differing_choices(a, b)
                varied = [in_words(a, [name for name in names if name not in choices])]
            else:
                varied = [f"{e.record.method} {in_words(e, own)}" for e, own in ((a, names), (b, other_names)) if own]
            pairs = bool(choices) or (a.record.method != b.record.method and a.facts["norm"] == b.facts["norm"])
            if pairs and against in (None, b.record.method):
                settings = filter(None, (*varied, in_words(a, data_keys)))
                found.append(_comparison(first, second, choices, "; ".join(settings)))
    return found


def _pair_order(pair: tuple[tuple[list[Entry], list[str]], ...]) -> tuple[bool, Natural]:
    """Pairs of methods by norm, then those within a method."""
    first, second = (run[0] for run, _ in pair)
    within = first.record.method == second.record.method
    return within, natural("" if within else first.facts["norm"])


def _differing_choices(a: Entry, b: Entry) -> list[str]:
    """Which settings, norm and code two configurations of a method differ in; nothing if they differ in more."""
    names = {n for n in a.facts.keys() | b.facts.keys() if a.facts.get(n) != b.facts.get(n)} - {"record"}
    if any(name not in (*NORM_FACTS, "method code") and not name.startswith("settings.") for name in names):
        return []
    return sorted(names - {"inductive"})


def nothing_to_pair(records: Sequence[Record]) -> UserError:
    """The error where :func:`method_differences` finds nothing: what there is, and why that is not enough."""
    names = ("norm", *COMPARABLE, "protocol", "data.fingerprint")
    have = dict.fromkeys(f"{e.bench} {e.record.method} ({in_words(e, names)})" for e in _pairable(records))
    return UserError(
        "a paired difference needs two methods measured in the same way on one bench: same norm, queries, preset, "
        "source, test tasks, protocol and data; or one method twice, with nothing but its settings, the norm or its "
        f"code changed. There are: {'; '.join(have) or 'none'}. Run another method in the same way."
    )


def _pairable(records: Iterable[Record]) -> list[Entry]:
    return [e for e in entries_of(records) if e.score.model == "best" and not e.score.condition]


def _comparison(first: Sequence[Entry], second: Sequence[Entry], choices: Sequence[str], settings: str) -> Comparison:
    score = first[0].score
    method, against = (named(entries[0], choices) for entries in (first, second))
    facts, others = first[0].facts, second[0].facts
    seeds, a, b = shared_scores(first, second)
    differs = [
        fact_in_words(name, {method: facts[name], against: others[name]})
        for name in sorted(facts.keys() & others.keys() - {"method", "method code", "record"})
        if facts[name] != others[name] and not choices
    ]
    each = {method: seeds_of(first), against: seeds_of(second)}
    differs += [fact_in_words("seeds", each)] if varies(each) else []
    mean, ci95 = paired_difference(a, b) if seeds else (math.nan, math.inf)
    unpaired = unpaired_ci95(a, b) if seeds else math.inf
    both = ("norm", "inductive", "queries", "device", "protocol", "source")
    attributes = {
        **{name: "/".join(dict.fromkeys((facts[name], others[name]))) for name in both},
        "bench": first[0].bench,
        "budget": f"{facts['preset']}, {span((facts['iterations'], others['iterations']))} it",
        "settings": settings,
        "seeds": ",".join(map(str, seeds)) or "none in common",
        "tasks": facts["test_tasks"],
    }
    return Comparison(
        score.metric, score.unit, score.better, method, against, attributes, "; ".join(differs), mean, ci95, unpaired
    )


def paired_tables(comparisons: Iterable[Comparison], numbers: dict[str, int] | None = None) -> list[WideTable]:
    """One table for each metric, with a row for each comparison.

    Args:
        comparisons: as :func:`method_differences` gives them.
        numbers: numbers of notes so far, as for :func:`~mlpip_bench.reporting.tables.scores.wide_tables`.
    """
    by_metric = grouped(comparisons, lambda c: c.metric)
    return [_paired_table(metric, group, Notes(numbers)) for metric, group in by_metric.items()]


def _paired_table(metric: str, comparisons: Sequence[Comparison], marks: Notes) -> WideTable:
    unit, better = comparisons[0].unit, comparisons[0].better
    rows = []
    for c in comparisons:
        label = f"{c.method} minus {c.against}{stand_in_mark(c.attributes['source'])}"
        cells = {
            "difference": interval_cell(c.mean, c.ci95, unit, sign="+" if c.mean > 0 else ""),
            "unpaired ±": Cell(c.unpaired_ci95, None, number_text(c.unpaired_ci95, unit)),
            "verdict": Cell(math.nan, None, c.verdict),
        }
        rows.append(Row(marks.mark(label, c.differs and f"measured differently: {c.differs}"), c.attributes, cells))
    notes = [
        "difference: mean over the test tasks of the first's score less the second's on the same task; ± is the "
        "95 % Student-t half-width over these differences (ddof 1), not over seeds.",
        "unpaired ±: the half-width if each of the two had tasks of its own, the root of the sum of the squares of "
        "their half-widths. Where it is the larger, pairing gains the rest.",
        "verdict, on the first: better or worse if zero is outside the difference's interval, else unclear.",
        f"Comparisons of one metric: {len(rows)}. Intervals and verdicts are not corrected for their number: between "
        "two that are equal, one interval in twenty leaves out zero.",
    ]
    if any("," in c.attributes["seeds"] for c in comparisons):
        notes.append("Several seeds: scores are averaged task by task over the seeds that both have.")
    if any(c.attributes["tasks"] == "1" for c in comparisons):
        notes.append(NO_INTERVAL_NOTE)
    if any(stand_in_mark(c.attributes["source"]) for c in comparisons):
        notes.append(STAND_IN_NOTE)
    return WideTable(
        name=f"paired_{metric}",
        title=f"{metric}, paired differences ({qualities_of_differences(unit, better)})",
        benches=("difference", "unpaired ±", "verdict"),
        rows=tuple(rows),
        published=(),
        notes=(*notes, *marks),
        row_name="methods",
    )


def paired_csv(comparisons: Iterable[Comparison]) -> str:
    """Paired differences as CSV; floats in full and in the metric's own unit."""
    rows = [
        {
            "metric": c.metric,
            "method": c.method,
            "against": c.against,
            **{name: c.attributes[name] for name in ATTRIBUTES},
            "differs": c.differs,
            "difference": c.mean,
            "ci95": finite(c.ci95),
            "ci95_unpaired": finite(c.unpaired_ci95),
            "verdict": c.verdict,
            "unit": c.unit,
        }
        for c in comparisons
    ]
    text: str = pd.DataFrame(rows).to_csv(index=False, lineterminator="\n")
    return text
