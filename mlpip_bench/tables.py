"""Records -> tables: one long form for machines, and one wide table a metric for Markdown, LaTeX and the terminal.

A wide table has a row per configuration and a column per bench. Nothing is averaged across configurations: if two
records of one method meet in a cell, the row splits by what differs between them. What is the same everywhere is said
once, and what differs between the benches or the methods stands in a numbered note at the row. Two more kinds of table
have the same form: paired differences of methods, and the normalisation modes with queries together and alone.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TypeAlias, TypeVar

import pandas as pd

from mlpip_bench import published as published_data
from mlpip_bench.datasets.base import STAND_INS
from mlpip_bench.errors import UserError, unknown_name
from mlpip_bench.paired import mean_over_seeds, paired_difference, unpaired_ci95, verdict
from mlpip_bench.published import Published
from mlpip_bench.rendering import ATTRIBUTES, BOLD_NOTE, Cell, Row, WideTable, to_latex, to_markdown
from mlpip_bench.results import Better, Model, Record, Scores, facts, mean_ci95, write_atomically
from mlpip_bench.timing_tables import timed, timing_csv, timing_tables

LONG_COLUMNS = (
    "bench", "method", "protocol", "metric", "way", "shot", "queries", "norm", "preset", "iterations", "source",
    "seed", "device", "tasks", "mean", "ci95", "unit",
)  # fmt: skip
_INTEGERS = ("way", "shot", "queries", "iterations", "seed", "tasks")
_FLOATS = ("mean", "ci95")

_ROW_FACTS = ("method", "norm", "inductive", "queries", "preset", "source", "device", "protocol")
"""Facts that always make rows of their own."""

_OWN_COLUMN = {*_ROW_FACTS, "iterations", "test_tasks", "way", "shot"}
"""Facts that a column or the bench's name shows, so that settings and notes leave them out."""

_ONLY_IF_TELLING = {"record", "method code", "protocol code"}
"""Facts that are told only of rows which nothing else sets apart."""

_FAMILIES = ("omni", "tiny", "mini", "toy", "context", "views", "linear")
_UNIT_LABELS = {"fraction": "%"}
_STAND_IN = (
    "stand-in: measured on data that stand in for the real data set; not comparable with real or published results."
)
_NO_INTERVAL = "n/a: one test task has no interval."
_PUBLISHED_UNITS = {"accuracy": "fraction", "nll": "nats per query"}

_T = TypeVar("_T")
_K = TypeVar("_K", bound=Hashable)
_Natural: TypeAlias = tuple[tuple[str, int], ...]


# ---------------------------------------------------------------------------------------------------- long form


def long_form(records: Iterable[Record], published: Iterable[Published]) -> pd.DataFrame:
    """One row a value: ours by bench, method, protocol and seed, then the paper's in its order.

    Args:
        records: what was run; seeds are not averaged.
        published: what the paper reports.

    Returns:
        A frame with the columns ``LONG_COLUMNS``; an interval that does not exist is missing.
    """
    rows: list[dict[str, object]] = []
    for record in sorted(records, key=_record_order):
        for score in record.scores:
            if score.over != "tasks":  # timings, whose tables are their own
                continue
            mean, ci95 = mean_ci95(score.per_task)
            rows.append(
                {
                    "bench": record.bench,
                    "method": record.method,
                    "protocol": record.protocol,
                    "metric": _metric(score) + _bracketed(score.condition),
                    "way": score.way,
                    "shot": score.shot,
                    "queries": score.queries,
                    "norm": record.config["norm"],
                    "preset": record.config["preset"],
                    "iterations": record.config["iterations"],
                    "source": record.data["source"],
                    "seed": record.seed,
                    "device": record.device,
                    "tasks": len(score.per_task),
                    "mean": mean,
                    "ci95": _finite(ci95),
                    "unit": score.unit,
                }
            )
    for quoted in published:
        way, shot = _way_shot(quoted.bench)
        rows.append(
            {
                "bench": quoted.bench,
                "method": quoted.method,
                "protocol": quoted.metric,
                "metric": quoted.metric,
                "way": way,
                "shot": shot,
                "source": "published",
                "mean": float(quoted.mean),
                "ci95": None if quoted.ci95 is None else float(quoted.ci95),
                "unit": _PUBLISHED_UNITS[quoted.metric],
            }
        )
    frame = pd.DataFrame(rows, columns=list(LONG_COLUMNS), dtype=object)
    return frame.astype(dict.fromkeys(_INTEGERS, "Int64") | dict.fromkeys(_FLOATS, "float64"))


def to_csv(records: Iterable[Record], published: Iterable[Published]) -> str:
    """The long form as CSV; floats in full."""
    text: str = long_form(records, published).to_csv(index=False, lineterminator="\n")
    return text


def _metric(score: Scores, *, of: str = "") -> str:
    return f"{score.metric}{of}" if score.model == "best" else f"{score.metric}{of}_last"


def _bracketed(condition: Mapping[str, object]) -> str:
    inside = ",".join(f"{name}={_text(value)}" for name, value in sorted(condition.items()))
    return f"[{inside}]" if inside else ""


def _way_shot(bench: str) -> tuple[int, int] | tuple[None, None]:
    """Way and shot of a published bench such as ``omni5w1s``."""
    match = re.search(r"(\d+)w(\d+)s$", bench)
    return (int(match[1]), int(match[2])) if match else (None, None)


def _natural(text: str) -> _Natural:
    """Sort key that puts 5w before 20w."""
    return tuple((word, int(digits or 0)) for word, digits in re.findall(r"(\D*)(\d*)", text))


def _bench_order(bench: str) -> tuple[int, _Natural]:
    family = next((i for i, name in enumerate(_FAMILIES) if bench.startswith(name)), len(_FAMILIES))
    return family, _natural(bench)


def _record_order(record: Record) -> tuple[tuple[int, _Natural], str, str, int, str]:
    return _bench_order(record.bench), record.method, record.protocol, record.seed, record.key


# --------------------------------------------------------------------------------------------------- wide tables


@dataclass(frozen=True)
class _Entry:
    """Scores of one record, with all that tells them from others, as text.

    Attributes:
        bench: bench, with way and shot of the test where they are not the bench's own.
        column: the bench under the scores' condition.
        facts: all else, by name.
    """

    record: Record
    score: Scores
    bench: str
    column: str
    facts: Mapping[str, str]


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

    def table(entry: _Entry) -> tuple[str, tuple[int, _Natural]]:
        condition = entry.score.condition
        name = _metric(entry.score, of="".join(f"_by_{name}" for name in sorted(condition)))
        return name, _bench_order(entry.bench if condition else "")

    by_table = _group(_entries(records), table)
    quoted = list(published)
    return [_wide_table(name, entries, quoted, _Notes(numbers)) for (name, _), entries in sorted(by_table.items())]


def _entries(records: Iterable[Record]) -> list[_Entry]:
    ordered = sorted(records, key=_record_order)
    return [_entry(record, score) for record in ordered for score in record.scores if score.over == "tasks"]


def _entry(record: Record, score: Scores) -> _Entry:
    known = facts(record, score) | {"record": record.key[:12]}
    bench = record.bench
    of_bench = (record.config.get("way"), record.config.get("shot")) == (score.way, score.shot)
    if not of_bench and "way" not in score.condition:
        bench += f" at {score.way}w{score.shot}s"
    column = ", ".join([bench, *(f"{name} {_text(value)}" for name, value in sorted(score.condition.items()))])
    return _Entry(record, score, bench, column, {name: _text(value) for name, value in known.items()})


def _column_order(entry: _Entry) -> tuple[tuple[int, _Natural], tuple[tuple[float, _Natural], ...]]:
    """Benches in their order, and below a bench the values of a condition in theirs."""
    values = [value for _, value in sorted(entry.score.condition.items())]
    order = ((math.inf, _natural(v)) if isinstance(v, str) else (v, ()) for v in values)
    return _bench_order(entry.bench), tuple(order)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _wide_table(metric: str, entries: Sequence[_Entry], quoted: Sequence[Published], notes: _Notes) -> WideTable:
    kinds = {(e.score.unit, e.score.better) for e in entries}
    if len(kinds) > 1:
        raise UserError(
            f"a metric has one unit and one direction; the records give {metric} {sorted(kinds)}. Rename one."
        )
    ((unit, better),) = kinds
    where = ""
    if entries[0].score.condition:  # all are of one bench, which is said once, so that columns are narrow
        where = f" on {entries[0].bench}"
        entries = [replace(e, column=e.column.removeprefix(f"{e.bench}, ")) for e in entries]
    benches = tuple(dict.fromkeys(e.column for e in sorted(entries, key=_column_order)))
    varying = _conflicts(entries, lambda e: (e.facts["source"], e.column))
    data_keys = {key for key in varying if key.startswith("data.")}
    if "data.name" in data_keys:  # which tells most of the rest
        varying = _conflicts(entries, lambda e: (e.facts["source"], e.column, e.facts["data.name"]))
        data_keys = {"data.name"} | {key for key in varying if key.startswith("data.")}
    groups = list(_row_groups(entries, data_keys))
    telling: dict[str, set[str]] = defaultdict(set)  # what sets rows of one method apart
    for group, keys in groups:
        telling[group[0].record.method] |= set(keys)
    common = _common(entries)
    common_keys = {key for key, _ in common}

    rows = [_own_row(group, telling[group[0].record.method], common_keys, unit, notes) for group, _ in groups]
    rows = _bold(rows, better, lambda row: row.attributes["source"])
    theirs = _published_rows(metric, benches, quoted, notes)
    theirs = _bold(theirs, better, lambda _: "published")

    return WideTable(
        metric=metric,
        title=f"{metric}{where} ({_qualities(unit, better, entries[0].score.model)})",
        benches=benches,
        rows=tuple(rows),
        published=tuple(theirs),
        notes=(*_general_notes(entries, rows, theirs), *_configuration_notes(entries, common, data_keys), *notes),
    )


def _qualities(unit: str, better: Better, model: Model) -> str:
    trained = "last iteration of training" if model == "last" else "best on validation"
    direction = "" if better == "neither" else f", {better} is better"
    return f"{_UNIT_LABELS.get(unit, unit)}{direction}; model: {trained}"


def _common(entries: Iterable[_Entry]) -> set[tuple[str, str]]:
    return set.intersection(*(set(e.facts.items()) for e in entries))


def _group(items: Iterable[_T], key: Callable[[_T], _K]) -> dict[_K, list[_T]]:
    groups: dict[_K, list[_T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups


def _conflicts(entries: Iterable[_Entry], key: Callable[[_Entry], Hashable]) -> set[str]:
    """Facts, other than the record's name, that take several values among entries of one key."""
    conflicts: set[str] = set()
    for group in _group(entries, key).values():
        names = {name for e in group for name in e.facts}
        conflicts |= {name for name in names if len({e.facts.get(name, "") for e in group}) > 1}
    return conflicts - {"record"}


def _row_groups(entries: Sequence[_Entry], data_keys: set[str]) -> Iterator[tuple[list[_Entry], list[str]]]:
    """The entries of each row, and the facts beyond ``_ROW_FACTS`` that set it apart.

    Rows of one method split by every fact that differs within a bench: budget, a setting, a data option.
    """
    by_facts = _group(entries, lambda e: tuple(e.facts.get(name, "") for name in _ROW_FACTS))
    for group in sorted(by_facts.values(), key=lambda group: _order(group[0], _ROW_FACTS)):
        keys = sorted(data_keys | _conflicts(group, lambda e: e.column))
        if not _unique(group, keys):  # the same configuration twice, told apart by nothing but the record
            keys.append("record")
        parts = _group(group, lambda e: tuple(e.facts.get(key, "") for key in keys)).values()  # noqa: B023  # used at once
        for part in sorted(parts, key=lambda part: _order(part[0], keys)):
            if not _unique(part, []):
                raise UserError(
                    f"a cell has one record; {part[0].record.filename} is there twice, or gives "
                    f"{part[0].score.metric} twice. Move the copy away."
                )
            yield part, keys


def _order(entry: _Entry, names: Sequence[str]) -> tuple[bool, tuple[_Natural, ...]]:
    return entry.facts["source"] != "real", tuple(_natural(entry.facts.get(name, "")) for name in names)


def _unique(entries: Sequence[_Entry], keys: Sequence[str]) -> bool:
    cells = {(e.column, e.record.seed, *(e.facts.get(key, "") for key in keys)) for e in entries}
    return len(cells) == len(entries)


def _own_row(entries: Sequence[_Entry], telling: set[str], common: set[str], unit: str, notes: _Notes) -> Row:
    facts = entries[0].facts
    by_bench = _group(entries, lambda e: e.bench)
    seeds = {bench: _seeds(group) for bench, group in by_bench.items()}
    per_bench = {name: {b: g[0].facts.get(name, "") for b, g in by_bench.items()} for e in entries for name in e.facts}
    settings = sorted(name for name in telling - _OWN_COLUMN if not _varies(per_bench.get(name, {})))
    attributes = {
        **{name: facts.get(name, "") for name in ("norm", "inductive", "queries", "device", "protocol", "source")},
        "budget": f"{facts['preset']}, {_range(per_bench['iterations'].values())} it",
        "settings": ", ".join(f"{_bare(name)} {facts.get(name) or 'unset'}" for name in settings),
        "tasks": _range(per_bench["test_tasks"].values()),
        "seeds": _seeds(entries),
    }
    in_columns = {"iterations": per_bench["iterations"], "test_tasks": per_bench["test_tasks"], "seeds": seeds}
    told = [_by_bench(name, values) for name, values in in_columns.items() if _varies(values)]
    untold = set(per_bench) - _OWN_COLUMN - _ONLY_IF_TELLING - common - set(settings)
    told += [_by_bench(name, per_bench[name]) for name in sorted(untold) if not name.startswith("data.")]
    label = facts["method"] + _mark(facts["source"])
    cells = {column: _own_cell(group, unit) for column, group in _group(entries, lambda e: e.column).items()}
    return Row(notes.mark(label, "; ".join(told)), attributes, cells)


def _mark(source: str) -> str:
    return " (stand-in)" if source in STAND_INS else ""


def _bare(name: str) -> str:
    return name.removeprefix("settings.").removeprefix("data.").replace("_", " ")


def _varies(by_bench: Mapping[str, str]) -> bool:
    return len(set(by_bench.values())) > 1


def _by_bench(name: str, by_bench: Mapping[str, str]) -> str:
    if not _varies(by_bench):
        return f"{_bare(name)} {next(iter(by_bench.values())) or 'unset'}"
    groups = _group(by_bench, lambda bench: by_bench[bench])
    return f"{_bare(name)} " + ", ".join(
        f"{value or 'unset'} ({', '.join(benches)})" for value, benches in groups.items()
    )


def _range(values: Iterable[str]) -> str:
    ordered = sorted(set(values), key=_natural)
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]}–{ordered[-1]}"  # noqa: RUF001  # an en dash


def _own_cell(entries: Sequence[_Entry], unit: str) -> Cell:
    """Mean over seeds task by task, then over tasks."""
    spread = ""
    if len(entries) > 1:
        spread = f"sd {_number(statistics.stdev(statistics.fmean(e.score.per_task) for e in entries), unit)}"
    return replace(_cell(*mean_ci95(mean_over_seeds([e.score.per_task for e in entries])), unit), spread=spread)


def _cell(mean: float, ci95: float, unit: str, sign: str = "") -> Cell:
    return Cell(mean, _finite(ci95), f"{sign}{_number(mean, unit)} ± {_number(ci95, unit)}")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: float, unit: str) -> str:
    if not math.isfinite(value):
        return "n/a"
    if unit == "fraction":
        return f"{100 * value:z.2f}"  # z: no minus before a zero
    return f"{value:z.4f}" if unit.startswith("nats") else f"{value:.4g}"


def _published_rows(metric: str, benches: Sequence[str], quoted: Iterable[Published], notes: _Notes) -> list[Row]:
    shown = [q for q in quoted if q.metric == metric and q.bench in benches]
    attributes = dict.fromkeys(ATTRIBUTES, "") | {"source": "published"}
    return [
        Row(notes.mark(group[0].label, group[0].note), attributes, {q.bench: _published_cell(q) for q in group})
        for group in _group(shown, lambda q: q.method).values()
    ]


def _published_cell(quoted: Published) -> Cell:
    def number(value: Decimal) -> str:
        return str(value.scaleb(2) if _PUBLISHED_UNITS[quoted.metric] == "fraction" else value)

    text = number(quoted.mean) + ("" if quoted.ci95 is None else f" ± {number(quoted.ci95)}")
    return Cell(float(quoted.mean), None if quoted.ci95 is None else float(quoted.ci95), text)


def _bold(rows: Sequence[Row], better: Better, group: Callable[[Row], str]) -> list[Row]:
    """Mark, in each column and group of rows, the best mean and all whose intervals overlap with the best's."""
    if better == "neither":
        return list(rows)
    sign = 1 if better == "higher" else -1
    bold: dict[int, set[str]] = defaultdict(set)
    for members in _group(range(len(rows)), lambda i: group(rows[i])).values():
        for bench in {bench for i in members for bench in rows[i].cells}:
            cells = {i: rows[i].cells[bench] for i in members if bench in rows[i].cells}
            best = max(cells.values(), key=lambda cell: sign * cell.mean)
            reach = sign * best.mean - (best.ci95 or 0.0) + 1e-12  # intervals that only touch do not overlap
            for i, cell in cells.items():
                if len(cells) > 1 and (cell.mean == best.mean or sign * cell.mean + (cell.ci95 or 0.0) > reach):
                    bold[i].add(bench)
    return [replace(row, bold=frozenset(bold[i])) for i, row in enumerate(rows)]


# -------------------------------------------------------------------------------------------- paired differences

_ALIKE = ("queries", "preset", "source", "test_tasks")
"""Facts, besides bench and data, that must agree before scores are compared task by task."""

_NORM = ("norm", "inductive")

_PAIRED_UNITS = {"fraction": "percentage points"}


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


def compare(records: Sequence[Record], against: str | None = None) -> list[Comparison]:
    """Differences of each two methods that were measured alike, of the models that are best on validation.

    Configurations of a method that differ are compared apart, and with each other where nothing but settings of the
    method or the norm differs. Seeds are averaged task by task first, those that both have.

    Args:
        records: what was run.
        against: only differences to this method.

    Returns:
        By metric, bench and condition of measurement; empty if no two were measured alike.

    Raises:
        UserError: no record is of the method ``against``.
    """
    methods = {record.method for record in records}
    if against is not None and against not in methods:
        raise unknown_name("method for --against", against, methods)
    entries = _pairable(records)
    data_keys = sorted(n for n in _conflicts(entries, lambda e: (e.facts["source"], e.bench)) if n.startswith("data."))
    found = []
    for group in _alike(entries, (*_ALIKE, "protocol")):
        telling, runs = _telling(group), []
        for part, keys in _row_groups(group, set()):
            names = [name for name in telling[part[0].record.method] if name not in _NORM]  # it has columns of its own
            runs.append((part, [*names, *({"record"} & set(keys))]))
        runs.sort(key=lambda run: run[0][0].record.method == against)  # so that it is the second of a pair
        for (first, names), (second, other_names) in sorted(itertools.combinations(runs, 2), key=_pair_order):
            a, b = first[0], second[0]
            apart: list[str] = []
            if a.record.method == b.record.method:
                apart = _choices_apart(a, b)
                told = [_words(a, [name for name in names if name not in apart])]
            else:
                told = [f"{e.record.method} {_words(e, own)}" for e, own in ((a, names), (b, other_names)) if own]
            alike = bool(apart) or (a.record.method != b.record.method and a.facts["norm"] == b.facts["norm"])
            if alike and against in (None, b.record.method):
                settings = filter(None, (*told, _words(a, data_keys)))
                found.append(_comparison(first, second, apart, "; ".join(settings)))
    return found


def _pair_order(pair: tuple[tuple[list[_Entry], list[str]], ...]) -> tuple[bool, _Natural]:
    """Pairs of methods by norm, then those within a method."""
    first, second = (run[0] for run, _ in pair)
    within = first.record.method == second.record.method
    return within, _natural("" if within else first.facts["norm"])


def _choices_apart(a: _Entry, b: _Entry) -> list[str]:
    """What tells two configurations of a method apart; nothing if that is more than its settings and the norm."""
    names = {n for n in a.facts.keys() | b.facts.keys() if a.facts.get(n) != b.facts.get(n)} - {"record"}
    if any(name not in _NORM and not name.startswith("settings.") for name in names):
        return []
    return sorted(names - {"inductive"})


def nothing_to_pair(records: Sequence[Record]) -> UserError:
    """The error where :func:`compare` finds nothing: what there is, and why that is not enough."""
    names = ("norm", *_ALIKE, "protocol", "data.fingerprint")
    have = dict.fromkeys(f"{e.bench} {e.record.method} ({_words(e, names)})" for e in _pairable(records))
    return UserError(
        "a paired difference needs two methods measured alike on one bench: same norm, queries, preset, source, test "
        "tasks, protocol and data; or one method twice, with nothing but its settings or the norm changed. "
        f"There are: {'; '.join(have) or 'none'}. Run another method in the same way."
    )


def _pairable(records: Iterable[Record]) -> list[_Entry]:
    return [e for e in _entries(records) if e.score.model == "best" and not e.score.condition]


def _alike(entries: Iterable[_Entry], names: Sequence[str]) -> list[list[_Entry]]:
    """Entries of one metric on one bench whose data and named facts agree."""

    def key(entry: _Entry) -> Hashable:
        data = sorted(fact for fact in entry.facts.items() if fact[0].startswith("data."))
        return entry.score.metric, entry.bench, *(entry.facts[name] for name in names), *data

    groups = _group(entries, key).values()
    return sorted(groups, key=lambda g: (g[0].score.metric, _bench_order(g[0].bench), _order(g[0], names)))


def _telling(entries: Iterable[_Entry]) -> dict[str, list[str]]:
    """Names of the facts that set apart the configurations of each method."""
    by_method = _group(entries, lambda e: e.record.method)
    return {method: sorted(_conflicts(members, lambda e: e.bench)) for method, members in by_method.items()}


def _named(entry: _Entry, names: Sequence[str]) -> str:
    """The method, with facts that tell its configuration."""
    return f"{entry.record.method} ({_words(entry, names)})" if names else entry.record.method


def _words(entry: _Entry, names: Iterable[str]) -> str:
    return ", ".join(f"{_bare(name)} {entry.facts.get(name) or 'unset'}" for name in names)


def _comparison(first: Sequence[_Entry], second: Sequence[_Entry], apart: Sequence[str], settings: str) -> Comparison:
    score = first[0].score
    method, against = (_named(entries[0], apart) for entries in (first, second))
    facts, others = first[0].facts, second[0].facts
    seeds, a, b = _shared(first, second)
    differs = [
        _by_bench(name, {method: facts[name], against: others[name]})
        for name in sorted(facts.keys() & others.keys() - {"method", "method code", "record"})
        if facts[name] != others[name] and not apart
    ]
    each = {method: _seeds(first), against: _seeds(second)}
    differs += [_by_bench("seeds", each)] if _varies(each) else []
    mean, ci95 = paired_difference(a, b) if seeds else (math.nan, math.inf)
    unpaired = unpaired_ci95(a, b) if seeds else math.inf
    both = ("norm", "inductive", "queries", "device", "protocol", "source")
    attributes = {
        **{name: "/".join(dict.fromkeys((facts[name], others[name]))) for name in both},
        "bench": first[0].bench,
        "budget": f"{facts['preset']}, {_range((facts['iterations'], others['iterations']))} it",
        "settings": settings,
        "seeds": ",".join(map(str, seeds)) or "none in common",
        "tasks": facts["test_tasks"],
    }
    return Comparison(
        score.metric, score.unit, score.better, method, against, attributes, "; ".join(differs), mean, ci95, unpaired
    )


def _shared(first: Sequence[_Entry], second: Sequence[_Entry]) -> tuple[list[int], list[float], list[float]]:
    """The seeds that both have, and the scores of each averaged over these, one a task."""
    a, b = ({e.record.seed: e.score.per_task for e in entries} for entries in (first, second))
    seeds = sorted(a.keys() & b.keys())
    return seeds, mean_over_seeds([a[seed] for seed in seeds]), mean_over_seeds([b[seed] for seed in seeds])


def _seeds(entries: Iterable[_Entry]) -> str:
    return ",".join(str(seed) for seed in sorted({e.record.seed for e in entries}))


def paired_tables(comparisons: Iterable[Comparison], numbers: dict[str, int] | None = None) -> list[WideTable]:
    """One table for each metric, with a row for each comparison; ``numbers`` as for :func:`wide_tables`."""
    by_metric = _group(comparisons, lambda c: c.metric)
    return [_paired_table(metric, group, _Notes(numbers)) for metric, group in by_metric.items()]


def _paired_table(metric: str, comparisons: Sequence[Comparison], marks: _Notes) -> WideTable:
    unit, better = comparisons[0].unit, comparisons[0].better
    rows = []
    for c in comparisons:
        label = f"{c.method} minus {c.against}{_mark(c.attributes['source'])}"
        cells = {
            "difference": _cell(c.mean, c.ci95, unit, sign="+" if c.mean > 0 else ""),
            "unpaired ±": Cell(c.unpaired_ci95, None, _number(c.unpaired_ci95, unit)),
            "verdict": Cell(math.nan, None, c.verdict),
        }
        rows.append(Row(marks.mark(label, c.differs and f"not measured alike: {c.differs}"), c.attributes, cells))
    notes = [
        "difference: mean over the test tasks of the first's score less the second's on the same task; ± is the "
        "95 % Student-t half-width over these differences (ddof 1), not over seeds.",
        "unpaired ±: the half-width if each of the two had tasks of its own, the root of the sum of the squares of "
        "their half-widths. Where it is the larger, pairing gains the rest.",
        "verdict, on the first: better or worse if zero is outside the difference's interval, else unclear.",
        f"Comparisons of one metric: {len(rows)}. Intervals and verdicts are not corrected for their number: between "
        "two that are alike, one interval in twenty leaves out zero.",
    ]
    if any("," in c.attributes["seeds"] for c in comparisons):
        notes.append("Several seeds: scores are averaged task by task over the seeds that both have.")
    if any(c.attributes["tasks"] == "1" for c in comparisons):
        notes.append(_NO_INTERVAL)
    if any(_mark(c.attributes["source"]) for c in comparisons):
        notes.append(_STAND_IN)
    return WideTable(
        metric=f"paired_{metric}",
        title=f"{metric}, paired differences ({_qualities(_PAIRED_UNITS.get(unit, unit), better, 'best')})",
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
            "ci95": _finite(c.ci95),
            "ci95_unpaired": _finite(c.unpaired_ci95),
            "verdict": c.verdict,
            "unit": c.unit,
        }
        for c in comparisons
    ]
    text: str = pd.DataFrame(rows).to_csv(index=False, lineterminator="\n")
    return text


# ------------------------------------------------------------------------------------------- normalisation modes

_ALONE = {"asked": "one at a time"}
"""The condition of scores whose queries were each predicted without the others."""


def norm_tables(records: Iterable[Record], numbers: dict[str, int] | None = None) -> list[WideTable]:
    """What the methods owe to seeing the queries together, by normalisation mode.

    One table for each metric and bench with two modes or more and a method with scores of both kinds; a row for each
    mode, and three columns for each method: together, alone, and their paired difference. ``numbers`` is as for
    :func:`wide_tables`.
    """
    entries = [e for e in _entries(records) if e.score.model == "best" and e.score.condition in ({}, _ALONE)]
    return [
        _norm_table(group, _Notes(numbers))
        for group in _alike(entries, _ALIKE)
        if len({e.facts["norm"] for e in group}) > 1 and _asked_both_ways(group)
    ]


def _asked_both_ways(entries: Sequence[_Entry]) -> bool:
    together, alone = (
        {(e.record.method, e.facts["norm"]) for e in entries if bool(e.score.condition) is asked}
        for asked in (False, True)
    )
    return not together.isdisjoint(alone)


def _norm_table(entries: Sequence[_Entry], marks: _Notes) -> WideTable:
    score, bench, facts = entries[0].score, entries[0].bench, entries[0].facts
    telling = _telling(entries)

    def method(entry: _Entry) -> str:  # configurations of a method have columns of their own
        return _named(entry, [n for n in telling[entry.record.method] if n not in (*_NORM, "protocol")])

    methods = sorted({method(e) for e in entries}, key=_natural)
    by_norm = _group(entries, lambda e: (e.facts["norm"], e.facts["inductive"]))
    rows = [_norm_row(_group(by_norm[key], method), marks) for key in sorted(by_norm)]
    measured = (
        f"budget {facts['preset']}, {_range(e.facts['iterations'] for e in entries)} it; {facts['queries']} queries a "
        f"class; {facts['test_tasks']} test tasks; source {facts['source']}{_mark(facts['source'])}"
    )
    notes = [
        "together: all queries of a task are asked at once; alone: one at a time. difference: together less alone, in "
        "the unit of the scores, on the same test tasks; ± is then over the differences of the tasks. It is what the "
        "predictions of a query owe to the other queries; inductive ones owe nothing.",
        *_interval_notes(entries, rows),
        *([_STAND_IN] if _mark(facts["source"]) else []),
        *_configuration_notes(entries, _common(entries), set()),
    ]
    return WideTable(
        metric=f"norm_modes_{score.metric}_{bench}",
        title=f"{score.metric} on {bench} by norm mode ({_qualities(score.unit, score.better, 'best')}; {measured})",
        benches=tuple(f"{name} {column}" for name in methods for column in ("together", "alone", "difference")),
        rows=tuple(rows),
        published=(),
        notes=(*notes, *marks),
        row_name="norm",
    )


def _norm_row(by_method: Mapping[str, Sequence[_Entry]], marks: _Notes) -> Row:
    cells, seeds = {}, {}
    for method, entries in by_method.items():
        halves = [[e for e in entries if bool(e.score.condition) is asked] for asked in (False, True)]
        for name, half in zip(("together", "alone"), halves, strict=True):
            if half:
                cells[f"{method} {name}"] = _own_cell(half, half[0].score.unit)
                seeds[f"{method} {name}"] = _seeds(half)
        shared, together, alone = _shared(*halves)
        if shared:
            cells[f"{method} difference"] = _cell(*paired_difference(together, alone), entries[0].score.unit)
    own = [e for entries in by_method.values() for e in entries]
    iterations = {method: entries[0].facts["iterations"] for method, entries in by_method.items()}
    unlike = [_by_bench(*told) for told in (("iterations", iterations), ("seeds", seeds)) if _varies(told[1])]
    attributes = {"inductive": own[0].facts["inductive"], "seeds": _seeds(own)}
    return Row(marks.mark(own[0].facts["norm"], "; ".join(unlike)), attributes, cells)


# --------------------------------------------------------------------------------------------------------- notes


class _Notes:
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


def _interval_notes(entries: Sequence[_Entry], rows: Sequence[Row]) -> Iterator[str]:
    cells = [cell for row in rows for cell in row.cells.values()]
    tasks = _range(e.facts["test_tasks"] for e in entries)
    yield f"± is the 95 % Student-t half-width over {tasks} test tasks (ddof 1), not over seeds."
    if any(cell.spread for cell in cells):
        yield (
            "Several seeds: scores are averaged over the seeds task by task (all seeds see the same test tasks) "
            "and ± is over those per-task means; sd is the standard deviation (ddof 1) of the seeds' means."
        )
    if any(cell.ci95 is None for cell in cells):
        yield _NO_INTERVAL


def _general_notes(entries: Sequence[_Entry], rows: Sequence[Row], published: Sequence[Row]) -> Iterator[str]:
    yield from _interval_notes(entries, rows)
    if any(row.bold for row in (*rows, *published)):
        yield BOLD_NOTE
    if any(_mark(e.facts["source"]) for e in entries):
        yield _STAND_IN
    if published:
        yield "published: quoted from Gordon et al. (ICLR 2019), not run here; conditions differ between its rows."


def _configuration_notes(entries: Sequence[_Entry], common: set[tuple[str, str]], apart: set[str]) -> Iterator[str]:
    """What all rows share, and the data behind each column."""
    shared = [
        f"{_bare(name)} {value}"
        for name, value in sorted(common)
        if name not in _OWN_COLUMN | _ONLY_IF_TELLING and not name.startswith("data.")
    ]
    if shared:
        yield f"Settings of all our rows: {', '.join(shared)}."
    hidden = {*apart, "data.name"}
    described: dict[str, list[str]] = defaultdict(list)
    for entry in sorted(entries, key=lambda e: (_bench_order(e.bench), e.facts["source"])):
        options = [
            f"{_bare(k)} {v}" for k, v in sorted(entry.facts.items()) if k.startswith("data.") and k not in hidden
        ]
        words = ", ".join([f"{entry.facts['data.name']} ({entry.facts['source']})", *options])
        if entry.bench not in described[words]:
            described[words].append(entry.bench)
    parts = [f"{', '.join(benches)}: {words}" for words, benches in described.items()]
    yield f"Data: {'; '.join(parts)}."


# -------------------------------------------------------------------------------------------------------- writing


def write_tables(records: Sequence[Record], results: Path) -> list[Path]:
    """Write ``long.csv`` and, for each metric, ``<metric>.md`` and ``<metric>.tex`` below ``results/tables``.

    So are ``paired``, ``norm_modes`` and ``timing`` (the last as CSV, too), where the records have what they show. The
    same records give the same bytes.

    Returns:
        The files written.

    Raises:
        UserError: there are no records, or a file cannot be written.
    """
    if not records:
        raise UserError(
            f"tables are made from records; there are none below {results / 'records'}. "
            "Make some first, for example with `python -m mlpip_bench run --methods versa,maml --bench mini5w5s`."
        )
    published = published_data.load()
    contents = {"long.csv": to_csv(records, published)}
    files = _group(wide_tables(records, published), lambda table: table.metric)
    files |= {"paired": paired_tables(compare(records)), "norm_modes": norm_tables(records)}
    if timed(records):
        files["timing"] = timing_tables(records)
        contents["timing.csv"] = timing_csv(records)
    for name, tables in files.items():
        if tables:
            contents[f"{name}.md"] = "\n".join(map(to_markdown, tables))
            contents[f"{name}.tex"] = "\n".join(map(to_latex, tables))
    folder = results / "tables"
    for name, content in contents.items():
        write_atomically(folder / name, content.encode())
    return [folder / name for name in contents]
