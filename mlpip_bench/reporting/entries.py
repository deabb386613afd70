"""Entries: the scores of records with all facts that distinguish them, and how tables order and group them."""

from __future__ import annotations

import functools
import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from mlpip_bench.records.left_out import left_out
from mlpip_bench.records.record import Record, Scores, facts
from mlpip_bench.records.score_array import ScoreArray
from mlpip_bench.records.statistics import Estimate, Runs, bounds_of, difference, estimate, mean_over_seeds, welch
from mlpip_bench.utils.errors import UserError

ROW_FACTS = ("method", "norm", "inductive", "queries", "preset", "source", "device", "protocol")
"""Facts that always make rows of their own."""

COMPARABLE = ("queries", "preset", "source", "test_tasks")
"""Facts, in addition to bench and data, that must agree before scores are compared task by task."""

NORM_FACTS = ("norm", "inductive")
"""Facts that the norm decides."""

_OF_BACKBONE = "backbone."
"""Beginning of the names of a backbone's settings."""

_OF_SOME = ("pretrained.", "pretraining.", _OF_BACKBONE)
"""Beginnings of facts that only some networks have, and that say nothing where they are not."""

_FAMILIES = ("omni", "tiny", "mini", "toy", "context", "views", "linear")

_T = TypeVar("_T")
_K = TypeVar("_K", bound=Hashable)
Natural: TypeAlias = tuple[tuple[str, int], ...]
"""A sort key: words, each with the number after it."""


@dataclass(frozen=True, slots=True)
class Entry:
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


def entries_of(records: Iterable[Record]) -> list[Entry]:
    """One entry a score over tasks, by bench, method, protocol and seed; timings have tables of their own."""
    global _last
    asked = list(records)
    if len(asked) != len(_last[0]) or any(a is not b for a, b in zip(asked, _last[0], strict=True)):
        _last = [], []  # or both would be in memory
        ordered = sorted(asked, key=record_order)
        _last = asked, completed([entry for record in ordered for entry in _entries(record)])
    return list(_last[1])


def completed(entries: Sequence[Entry]) -> list[Entry]:
    """Entries that are shown together; what some leave out at its default and others name, all have."""
    found = left_out((e.record.bench, e.facts) for e in entries)
    defaults = {bench: {name: as_text(value) for name, value in own.items()} for bench, own in found.items()}
    return [
        replace(e, facts={**own, **e.facts}) if (own := defaults[e.record.bench]).keys() - e.facts.keys() else e
        for e in entries
    ]


_last: tuple[list[Record], list[Entry]] = ([], [])
"""The records that were asked for last, and their entries: several tables of one command are of the same records."""


def _entries(record: Record) -> Iterator[Entry]:
    known: dict[tuple[int, int], dict[str, str]] = {}
    for score in record.scores:
        if score.over == "tasks":
            measured = score.queries, len(score.per_task)  # all that facts have of a score
            if measured not in known:
                found = facts(record, score) | {"record": record.key[:12]}
                # The same few texts are in all records: each is in memory once.
                known[measured] = {name: sys.intern(as_text(value)) for name, value in found.items()}
            yield _entry(record, score, known[measured])


def _entry(record: Record, score: Scores, known: Mapping[str, str]) -> Entry:
    bench = record.bench
    of_bench = (record.config.get("way"), record.config.get("shot")) == (score.way, score.shot)
    if not of_bench and "way" not in score.condition:
        bench += f" at {score.way}w{score.shot}s"
    column = ", ".join([bench, *(f"{name} {as_text(value)}" for name, value in sorted(score.condition.items()))])
    return Entry(record, score, bench, column, known)


def as_text(value: object) -> str:
    """A text as it is, all else as JSON."""
    if isinstance(value, str):
        return value
    return str(value) if type(value) is int else json.dumps(value, sort_keys=True, default=str)


def natural(text: str) -> Natural:
    """Sort key that puts 5w before 20w."""
    return tuple((word, int(digits or 0)) for word, digits in re.findall(r"(\D*)(\d*)", text))


@functools.cache
def bench_order(bench: str) -> tuple[int, Natural]:
    """Sort key: by data set, then by way and shot."""
    family = next((i for i, name in enumerate(_FAMILIES) if bench.startswith(name)), len(_FAMILIES))
    return family, natural(bench)


def record_order(record: Record) -> tuple[tuple[int, Natural], str, str, int, str]:
    """Sort key: by bench, method, protocol and seed."""
    return bench_order(record.bench), record.method, record.protocol, record.seed, record.key


def column_order(entry: Entry) -> tuple[tuple[int, Natural], tuple[tuple[float, Natural], ...]]:
    """Sort key: benches in their order, and below a bench the values of a condition in theirs."""
    values = [value for _, value in sorted(entry.score.condition.items())]
    order = ((math.inf, natural(v)) if isinstance(v, str) else (v, ()) for v in values)
    return bench_order(entry.bench), tuple(order)


def facts_order(entry: Entry, names: Sequence[str]) -> tuple[bool, tuple[Natural, ...]]:
    """Sort key: real data first, then by the named facts."""
    return entry.facts["source"] != "real", tuple(natural(entry.facts.get(name, "")) for name in names)


def grouped(items: Iterable[_T], key: Callable[[_T], _K]) -> dict[_K, list[_T]]:
    """Items by key, in their order."""
    groups: dict[_K, list[_T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups


def conflicts(entries: Iterable[Entry], key: Callable[[Entry], Hashable]) -> set[str]:
    """Facts, other than the record's name, that take several values among entries of one key.

    Settings of a backbone do so only among entries of that backbone: two backbones are distinguished by their names.
    """
    found: set[str] = set()
    for group in grouped(entries, key).values():
        found |= _several(group, lambda name: not name.startswith(_OF_BACKBONE))
        for part in grouped(group, lambda e: e.facts.get("backbone", "")).values():
            found |= _several(part, lambda name: name.startswith(_OF_BACKBONE))
    return found - {"record"}


def _several(entries: Sequence[Entry], among: Callable[[str], bool]) -> set[str]:
    names = {name for e in entries for name in e.facts if among(name)}
    return {name for name in names if len({e.facts.get(name, "") for e in entries}) > 1}


def shown_of(entry: Entry, names: Iterable[str]) -> list[str]:
    """Those of the names that say something of an entry: what only some networks have, only where it is."""
    return [name for name in names if entry.facts.get(name) or not name.startswith(_OF_SOME)]


def common_facts(entries: Iterable[Entry]) -> set[tuple[str, str]]:
    """Names and values of the facts that all entries share."""
    return set.intersection(*(set(e.facts.items()) for e in entries))


def row_groups(entries: Sequence[Entry], data_keys: set[str]) -> Iterator[tuple[list[Entry], list[str]]]:
    """The entries of each row, and the facts beyond ``ROW_FACTS`` that distinguish it.

    Rows of one method split by every fact that differs within a bench: budget, a setting, a data option.

    Args:
        entries: of one metric.
        data_keys: facts of the data that separate rows in any case.

    Raises:
        UserError: one score is there twice.
    """
    by_facts = grouped(entries, lambda e: tuple(e.facts.get(name, "") for name in ROW_FACTS))
    for group in sorted(by_facts.values(), key=lambda group: facts_order(group[0], ROW_FACTS)):
        keys = sorted(data_keys | conflicts(group, lambda e: e.column))
        if not unique(group, keys):  # the same configuration twice, distinguished by nothing but the record
            keys.append("record")
        parts = grouped(group, lambda e: tuple(e.facts.get(key, "") for key in keys)).values()  # noqa: B023  # used at once
        for part in sorted(parts, key=lambda part: facts_order(part[0], keys)):
            if not unique(part, []):
                raise UserError(
                    f"a score has one record; {part[0].record.filename} is there twice, or gives "
                    f"{part[0].score.metric} twice. Move the copy away."
                )
            yield part, keys


def unique(entries: Sequence[Entry], keys: Sequence[str]) -> bool:
    """Whether column, seed and the facts ``keys`` distinguish all entries."""
    places = {(e.column, e.record.seed, *(e.facts.get(key, "") for key in keys)) for e in entries}
    return len(places) == len(entries)


def comparable_groups(entries: Iterable[Entry], names: Sequence[str]) -> list[list[Entry]]:
    """Entries of one metric on one bench whose data and named facts agree."""

    def key(entry: Entry) -> Hashable:
        data = sorted(fact for fact in entry.facts.items() if fact[0].startswith("data."))
        return entry.score.metric, entry.bench, *(entry.facts[name] for name in names), *data

    groups = grouped(entries, key).values()
    return sorted(groups, key=lambda g: (g[0].score.metric, bench_order(g[0].bench), facts_order(g[0], names)))


def of_best_models(records: Iterable[Record]) -> list[Entry]:
    """What is compared: scores of the models that are best on validation, at no other condition.

    A recalibrated model's are left out where its temperature has left them as they are, as it does all accuracies.
    """

    def plain(entry: Entry) -> bool:
        return entry.facts.get("recalibrated", "no") == "no"

    def scored(entry: Entry) -> Hashable:
        facts = sorted(fact for fact in entry.facts.items() if fact[0] not in ("recalibrated", "record"))
        return entry.score.metric, entry.column, entry.record.seed, tuple(entry.score.per_task), *facts

    entries = [e for e in entries_of(records) if e.score.model == "best" and not e.score.condition]
    if all(map(plain, entries)):
        return entries
    known = {scored(e) for e in entries if plain(e)}
    return [e for e in entries if plain(e) or scored(e) not in known]


def telling_facts(entries: Iterable[Entry]) -> dict[str, list[str]]:
    """Names of the facts that distinguish the configurations of each method."""
    by_method = grouped(entries, lambda e: e.record.method)
    return {method: sorted(conflicts(members, lambda e: e.bench)) for method, members in by_method.items()}


def seeds_of(entries: Iterable[Entry]) -> str:
    """Their seeds as text, with commas."""
    return ",".join(str(seed) for seed in sorted({e.record.seed for e in entries}))


def estimate_of(entries: Sequence[Entry]) -> Estimate:
    """Mean of one configuration over its seeds and tasks."""
    runs, bounds = [e.score.per_task for e in entries], bounds_of(entries[0].score.unit)
    return _once((bounds, *_digests(runs)), lambda: estimate(runs, bounds))


_found: dict[Hashable, Estimate] = {}


def _once(key: Hashable, compute: Callable[[], Estimate]) -> Estimate:
    """An estimate, which several tables show, and tables are shown and written."""
    if key not in _found:
        _found[key] = compute()
    return _found[key]


def _digests(runs: Runs) -> tuple[bytes, ...]:
    return tuple((run if isinstance(run, ScoreArray) else ScoreArray(run)).digest for run in runs)


def same_tasks(a: Entry, b: Entry) -> bool:
    """Whether two entries of one bench and condition were measured on the same test tasks."""
    names = {"queries", "test_tasks", "source"} | {n for n in a.facts.keys() | b.facts.keys() if n.startswith("data.")}
    return all(a.facts.get(name) == b.facts.get(name) for name in names)


def difference_of(first: Sequence[Entry], second: Sequence[Entry]) -> tuple[list[int], Estimate]:
    """The seeds that two configurations have in common, and the mean of the first less the second over these.

    Without a seed in common each is averaged over its own seeds, task by task, and the difference is one of trained
    models. On test tasks that are not the same it is unpaired.
    """
    paired = same_tasks(first[0], second[0])
    bounds = bounds_of(first[0].score.unit)
    seeds = sorted({e.record.seed for e in first} & {e.record.seed for e in second})
    if paired and seeds:
        runs, others = shared_seeds(first, second)
        key = (bounds, _digests(runs), _digests(others))
        return seeds, _once(key, lambda: difference(runs, others, bounds))
    a, b = ([mean_over_seeds([e.score.per_task for e in entries])] for entries in (first, second))
    return [], difference(a, b, bounds) if paired else welch(b, a)


def shared_seeds(first: Iterable[Entry], second: Iterable[Entry]) -> tuple[Runs, Runs]:
    """The scores of both on the seeds that both have, a row a seed."""
    a, b = ({e.record.seed: e.score.per_task for e in entries} for entries in (first, second))
    seeds = sorted(a.keys() & b.keys())
    return [a[seed] for seed in seeds], [b[seed] for seed in seeds]
