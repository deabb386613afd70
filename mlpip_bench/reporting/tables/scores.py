"""Records -> one wide table a metric, for Markdown, LaTeX and the terminal.

A wide table has a row per configuration and a column per bench. Nothing is averaged across configurations: if two
records of one method meet in a cell, the row splits by what differs between them. What is the same everywhere is said
once, and what differs between the benches or the methods stands in a numbered note at the row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from mlpip_bench.records.published import Published
from mlpip_bench.records.record import Better, Record, Scores
from mlpip_bench.records.statistics import LEVEL
from mlpip_bench.reporting.decisions import all_pairs
from mlpip_bench.reporting.entries import (
    Entry,
    Natural,
    bench_order,
    column_order,
    common_facts,
    conflicts,
    entries_of,
    grouped,
    row_groups,
    seeds_of,
    shown_of,
)
from mlpip_bench.reporting.table import ATTRIBUTES, BOLD_NOTE, PUBLISHED_BOLD_NOTE, Row, WideTable
from mlpip_bench.reporting.wording import (
    ONLY_IF_TELLING,
    OWN_COLUMN,
    STAND_IN_NOTE,
    Notes,
    budget_in_words,
    configuration_notes,
    fact_in_words,
    in_words,
    interval_notes,
    mean_cell,
    pretraining_in_words,
    published_cell,
    qualities,
    span,
    stand_in_mark,
    training_cost,
    varies,
)
from mlpip_bench.utils.errors import UserError


def metric_name(score: Scores, *, of: str = "") -> str:
    """The metric's name, with a suffix for the last model of training."""
    return f"{score.metric}{of}" if score.model == "best" else f"{score.metric}{of}_last"


def wide_tables(
    records: Iterable[Record], published: Iterable[Published], numbers: dict[str, int] | None = None
) -> list[WideTable]:
    """One table for each metric among the records; scores under a condition have a table for each bench.

    Args:
        records: what was run.
        published: what the paper reports.
        numbers: numbers of notes so far, to which these are added; for tables that are printed together.

    Raises:
        UserError: records disagree on what a metric is, or one cell is there twice.
    """

    def table(entry: Entry) -> tuple[str, tuple[int, Natural]]:
        condition = entry.score.condition
        name = metric_name(entry.score, of="".join(f"_by_{name}" for name in sorted(condition)))
        return name, bench_order(entry.bench if condition else "")

    by_table = grouped(entries_of(records), table)
    quoted = list(published)
    return [_wide_table(name, entries, quoted, Notes(numbers)) for (name, _), entries in sorted(by_table.items())]


def _wide_table(name: str, entries: Sequence[Entry], quoted: Sequence[Published], notes: Notes) -> WideTable:
    first = entries[0].score
    kinds = {(e.score.unit, e.score.better) for e in entries}
    if len(kinds) > 1:
        raise UserError(
            f"a metric has one unit and one direction; the records give {name} {sorted(kinds)}. Rename one."
        )
    ((unit, better),) = kinds
    where = ""
    if first.condition:  # all are of one bench, which is said once, so that columns are narrow
        where = f" on {entries[0].bench}"
        entries = [replace(e, column=e.column.removeprefix(f"{e.bench}, ")) for e in entries]
    benches = tuple(dict.fromkeys(e.column for e in sorted(entries, key=column_order)))
    varying = conflicts(entries, lambda e: (e.facts["source"], e.column))
    data_keys = {key for key in varying if key.startswith("data.")}
    if "data.name" in data_keys:  # which tells most of the rest
        varying = conflicts(entries, lambda e: (e.facts["source"], e.column, e.facts["data.name"]))
        data_keys = {"data.name"} | {key for key in varying if key.startswith("data.")}
    groups = list(row_groups(entries, data_keys))
    telling: dict[str, set[str]] = defaultdict(set)  # what distinguishes rows of one method
    for group, keys in groups:
        telling[group[0].record.method] |= set(keys)
    common = common_facts(entries)
    common_keys = {key for key, _ in common}

    rows = [_own_row(group, telling[group[0].record.method], common_keys, unit, notes) for group, _ in groups]
    rows = _bold(rows, [group for group, _ in groups], better)
    theirs = _bold_published(_published_rows(name, benches, quoted, notes), better)

    choices = {e.score.chosen_by for e in entries}
    choice = next(iter(choices))
    return WideTable(
        name=name,
        title=f"{name}{where} ({qualities(unit, better, first.model, choice if len(choices) == 1 else '')})",
        benches=benches,
        rows=tuple(rows),
        published=tuple(theirs),
        notes=(*_general_notes(entries, rows, theirs), *configuration_notes(entries, common, data_keys)),
        row_notes=tuple(notes),
        better=better,
        heading=f"{name}{where}",
        model=first.model,
        conditions=tuple(sorted(first.condition)),
    )


def _own_row(entries: Sequence[Entry], telling: set[str], common: set[str], unit: str, notes: Notes) -> Row:
    facts = entries[0].facts
    by_bench = grouped(entries, lambda e: e.bench)
    seeds = {bench: seeds_of(group) for bench, group in by_bench.items()}
    known = dict.fromkeys(name for e in entries for name in e.facts)
    per_bench = {name: {b: g[0].facts.get(name, "") for b, g in by_bench.items()} for name in known}
    settings = shown_of(
        entries[0], sorted(name for name in telling - OWN_COLUMN if not varies(per_bench.get(name, {})))
    )
    attributes = {
        **{
            name: facts.get(name, "")
            for name in ("backbone", "norm", "inductive", "queries", "device", "protocol", "source")
        },
        "budget": budget_in_words(facts["preset"], span(per_bench["iterations"].values())),
        "parameters": span(f"{e.record.parameters:,}" for e in entries),
        "pretraining": "; ".join(dict.fromkeys(pretraining_in_words(e.record) for e in entries)),
        "trained": training_cost([e.record for e in entries]),
        "settings": in_words(entries[0], settings),
        "tasks": span(per_bench["test_tasks"].values()),
        "seeds": seeds_of(entries),
    }
    in_columns = {"iterations": per_bench["iterations"], "test_tasks": per_bench["test_tasks"], "seeds": seeds}
    note = [fact_in_words(name, values) for name, values in in_columns.items() if varies(values)]
    unsaid = set(per_bench) - OWN_COLUMN - ONLY_IF_TELLING - common - set(settings)
    note += [fact_in_words(name, per_bench[name]) for name in sorted(unsaid) if not name.startswith("data.")]
    note += sorted(
        {f"a sweep on test tasks over {', '.join(s)}" for e in entries if (s := e.record.training.get("swept"))}
    )
    checks = [e.record.environment.get("code", {}).get("checks", {}) for e in entries]
    for words, kind in (("fails the checks", "failed"), ("declares not to keep", "declared")):
        if names := sorted({name for found in checks for name in found.get(kind, ())}):
            note.append(f"{words} {', '.join(names)} (see docs/conformance.md)")
    label = facts["method"] + stand_in_mark(facts["source"])
    cells = {column: mean_cell(group, unit) for column, group in grouped(entries, lambda e: e.column).items()}
    if varies(per_bench["iterations"]):
        budgets = {e.column: f"{e.facts['iterations']} it" for e in entries}
        cells = {column: replace(cell, budget=budgets[column]) for column, cell in cells.items()}
    return Row(label, attributes, cells, mark=notes.mark("; ".join(note)))


def _published_rows(metric: str, benches: Sequence[str], quoted: Iterable[Published], notes: Notes) -> list[Row]:
    shown = [q for q in quoted if q.metric == metric and q.bench in benches]
    attributes = dict.fromkeys(ATTRIBUTES, "") | {"source": "published"}
    return [
        Row(
            group[0].label,
            attributes | {"note": group[0].note},
            {q.bench: published_cell(q) for q in group},
            mark=notes.mark(group[0].note),
        )
        for group in grouped(shown, lambda q: q.method).values()
    ]


def _bold(rows: Sequence[Row], groups: Sequence[Sequence[Entry]], better: Better) -> list[Row]:
    """Mark, in each column and among rows of one source, the best mean and all that no test shows to be worse."""
    if better == "neither":
        return list(rows)
    sign = 1 if better == "higher" else -1
    bold: dict[int, set[str]] = defaultdict(set)
    columns = [grouped(group, lambda e: e.column) for group in groups]
    for members in grouped(range(len(rows)), lambda i: rows[i].attributes["source"]).values():
        for bench in {bench for i in members for bench in rows[i].cells}:
            having = [i for i in members if bench in rows[i].cells]
            if len(having) < 2:
                continue
            best = max(range(len(having)), key=lambda place: sign * rows[having[place]].cells[bench].mean)
            pairs = all_pairs([columns[i][bench] for i in having])
            for place, i in enumerate(having):
                if place == best or not pairs[best, place].p_holm < LEVEL:
                    bold[i].add(bench)
    return [replace(row, bold=frozenset(bold[i])) for i, row in enumerate(rows)]


def _bold_published(rows: Sequence[Row], better: Better) -> list[Row]:
    """Mark, in each column, the best mean and all whose intervals overlap with the best's: the paper gives no more."""
    sign = 1 if better == "higher" else -1
    bold: dict[int, set[str]] = defaultdict(set)
    for bench in {bench for row in rows for bench in row.cells}:
        cells = {i: row.cells[bench] for i, row in enumerate(rows) if bench in row.cells}
        best = max(cells.values(), key=lambda cell: sign * cell.mean)
        reach = sign * best.mean - (best.ci95 or 0.0) + 1e-12  # intervals that only touch do not overlap
        for i, cell in cells.items():
            if len(cells) > 1 and (cell.mean == best.mean or sign * cell.mean + (cell.ci95 or 0.0) > reach):
                bold[i].add(bench)
    return [replace(row, bold=frozenset(bold[i])) for i, row in enumerate(rows)]


def _general_notes(entries: Sequence[Entry], rows: Sequence[Row], published: Sequence[Row]) -> Iterator[str]:
    yield from interval_notes(entries, rows)
    if any(row.attributes["trained"] for row in rows):
        yield "trained: training tasks seen, and time of training with its validations on the machine that it ran on."
    if any("recalibrated" in e.record.config for e in entries):
        yield (
            "recalibrated: by one temperature, fitted on validation tasks of the bench's own way and shot, also for "
            "tests at others."
        )
    if any(row.bold for row in rows):
        yield BOLD_NOTE
    if any(row.bold for row in published):
        yield PUBLISHED_BOLD_NOTE
    if any(stand_in_mark(e.facts["source"]) for e in entries):
        yield STAND_IN_NOTE
    if published:
        yield "published: quoted from Gordon et al. (ICLR 2019), not run here; conditions differ between its rows."
