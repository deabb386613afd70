"""What predictions of a query owe to the other queries, by normalization mode: asked together and one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mlpip_bench.records.record import Record
from mlpip_bench.records.statistics import difference
from mlpip_bench.reporting.entries import (
    COMPARABLE,
    NORM_FACTS,
    Entry,
    common_facts,
    comparable_groups,
    entries_of,
    grouped,
    natural,
    seeds_of,
    shared_seeds,
    shown_of,
    telling_facts,
)
from mlpip_bench.reporting.table import Row, WideTable
from mlpip_bench.reporting.wording import (
    STAND_IN_NOTE,
    Notes,
    configuration_notes,
    fact_in_words,
    interval_cell,
    interval_notes,
    mean_cell,
    named,
    qualities,
    span,
    stand_in_mark,
    varies,
)

_ALONE = {"asked": "one at a time"}
"""The condition of scores whose queries were each predicted without the others."""


def norm_tables(records: Iterable[Record], numbers: dict[str, int] | None = None) -> list[WideTable]:
    """What the methods owe to seeing the queries together, by normalization mode.

    One table for each metric and bench with two modes or more and a method with scores of both kinds; a row for each
    mode, and three columns for each method: together, alone, and their paired difference. ``numbers`` is as for
    :func:`~mlpip_bench.reporting.tables.scores.wide_tables`.
    """
    entries = [e for e in entries_of(records) if e.score.model == "best" and e.score.condition in ({}, _ALONE)]
    return [
        _norm_table(group, Notes(numbers))
        for group in comparable_groups(entries, COMPARABLE)
        if len({e.facts["norm"] for e in group}) > 1 and _asked_both_ways(group)
    ]


def _asked_both_ways(entries: Sequence[Entry]) -> bool:
    together, alone = (
        {(e.record.method, e.facts["norm"]) for e in entries if bool(e.score.condition) is asked}
        for asked in (False, True)
    )
    return not together.isdisjoint(alone)


def _norm_table(entries: Sequence[Entry], marks: Notes) -> WideTable:
    score, bench, facts = entries[0].score, entries[0].bench, entries[0].facts
    telling = telling_facts(entries)

    def method(entry: Entry) -> str:  # configurations of a method have columns of their own
        own = shown_of(entry, telling[entry.record.method])
        return named(entry, [n for n in own if n not in (*NORM_FACTS, "protocol")])

    methods = sorted({method(e) for e in entries}, key=natural)
    by_norm = grouped(entries, lambda e: (e.facts["norm"], e.facts["inductive"]))
    rows = [_norm_row(grouped(by_norm[key], method), marks) for key in sorted(by_norm)]
    measured = (
        f"budget {facts['preset']}, {span(e.facts['iterations'] for e in entries)} it; {facts['queries']} queries a "
        f"class; {facts['test_tasks']} test tasks; source {facts['source']}{stand_in_mark(facts['source'])}"
    )
    notes = [
        "together: all queries of a task are asked at once; alone: one at a time. difference: together less alone, in "
        "the unit of the scores, on the same test tasks; ± is then over the differences of the tasks. It is what the "
        "predictions of a query owe to the other queries; inductive ones owe nothing.",
        *interval_notes(entries, rows),
        *([STAND_IN_NOTE] if stand_in_mark(facts["source"]) else []),
        *configuration_notes(entries, common_facts(entries), set()),
    ]
    return WideTable(
        name=f"norm_modes_{score.metric}_{bench}",
        title=f"{score.metric} on {bench} by norm mode ({qualities(score.unit, score.better, 'best')}; {measured})",
        benches=tuple(f"{name} {column}" for name in methods for column in ("together", "alone", "difference")),
        rows=tuple(rows),
        published=(),
        notes=tuple(notes),
        row_notes=tuple(marks),
        row_name="norm",
    )


def _norm_row(by_method: Mapping[str, Sequence[Entry]], marks: Notes) -> Row:
    cells, seeds = {}, {}
    for method, entries in by_method.items():
        halves = [[e for e in entries if bool(e.score.condition) is asked] for asked in (False, True)]
        for name, half in zip(("together", "alone"), halves, strict=True):
            if half:
                cells[f"{method} {name}"] = mean_cell(half, half[0].score.unit)
                seeds[f"{method} {name}"] = seeds_of(half)
        together, alone = shared_seeds(*halves)
        if together:
            cells[f"{method} difference"] = interval_cell(difference(together, alone), entries[0].score.unit)
    own = [e for entries in by_method.values() for e in entries]
    iterations = {method: entries[0].facts["iterations"] for method, entries in by_method.items()}
    unlike = [fact_in_words(*fact) for fact in (("iterations", iterations), ("seeds", seeds)) if varies(fact[1])]
    attributes = {"inductive": own[0].facts["inductive"], "seeds": seeds_of(own)}
    return Row(own[0].facts["norm"], attributes, cells, mark=marks.mark("; ".join(unlike)))
