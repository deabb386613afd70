"""What of the records is shown, from which folders, and under which names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mlpip_bench.records import published as published_data
from mlpip_bench.records.published import Published
from mlpip_bench.records.record import Record, conformance
from mlpip_bench.records.store import load_all
from mlpip_bench.utils.errors import UserError


@dataclass(frozen=True)
class Shown:
    """What tables and figures are made of: methods have the names that they are shown under."""

    records: list[Record]
    quoted: list[Published]


def load_union(folders: Sequence[Path]) -> list[Record]:
    """The records of several results folders, each once.

    Raises:
        UserError: two folders have unlike records of one trial.
    """
    found: dict[str, tuple[Record, Path]] = {}
    for folder in folders:
        for record in load_all(folder):
            known, where = found.setdefault(record.filename, (record, folder))
            if known != record:
                raise UserError(
                    "several --results are shown as their union, where a trial has one record; "
                    f"{where / 'records' / record.filename} and {folder / 'records' / record.filename} differ. "
                    "Move one of them away, or compare the folders: python -m mlpip_bench compare A B."
                )
    return [record for record, _ in found.values()]


def selected(
    records: Iterable[Record],
    *,
    benches: Collection[str] = (),
    methods: Collection[str] = (),
    metrics: Collection[str] = (),
) -> list[Record]:
    """Records of some benches and methods, with their scores of some metrics; an empty choice is all.

    Raises:
        UserError: there are none.
    """
    every = list(records)
    if not (benches or methods or metrics):
        return every
    kept = [
        replace(record, scores=scores)
        for record in every
        if (not benches or record.bench in benches) and (not methods or record.method in methods)
        if (scores := tuple(s for s in record.scores if not metrics or s.metric in metrics))
    ]
    if every and not kept:
        asked = [
            f"--{k} {','.join(v)}" for k, v in (("bench", benches), ("methods", methods), ("metric", metrics)) if v
        ]
        have = ", ".join(sorted({f"{r.bench} {r.method}" for r in every}))
        of = f" Metrics: {', '.join(sorted({s.metric for r in every for s in r.scores}))}." if metrics else ""
        raise UserError(f"no record matches {' '.join(asked)}. There are: {have}.{of}")
    return kept


def parse_names(text: str | None) -> dict[str, str]:
    """Names such as ``versa=Versa,maml=MAML (ours)``, by method.

    Raises:
        UserError: it is written otherwise.
    """
    names: dict[str, str] = {}
    for part in filter(None, (text or "").split(",")):
        method, equals, name = (piece.strip() for piece in part.partition("="))
        if not (equals and method and name) or {"/", "\\", "\0"} & set(name) or method in names:
            raise UserError(f"--names takes METHOD=NAME with commas between, each NAME without / and \\; got {part!r}.")
        names[method] = name
    return names


def shown(
    records: Sequence[Record], names: Mapping[str, str] | None = None, quoted: Sequence[Published] | None = None
) -> Shown:
    """Records and published rows with the names that methods are shown under: the paper's, where it has one.

    The name of a method that does not pass the conformance suite says so, wherever it is shown.

    Args:
        records: what was run.
        names: other names, by method.
        quoted: published rows; left out, all.

    Raises:
        UserError: two methods would have one name, or a name is given to a method that there is not.
    """
    every = published_data.load()
    methods = {record.method for record in records}
    if strange := sorted((names or {}).keys() - methods):
        raise UserError(
            f"--names takes methods of the records, {', '.join(sorted(methods))}; got {', '.join(strange)}."
        )
    named = {row.method: row.label for row in every} | dict(names or {})
    taken: dict[str, str] = {}
    for method in sorted(methods):
        if (other := taken.setdefault(named.get(method, method), method)) != method:
            raise UserError(
                f"methods are shown under names of their own; {other} and {method} would both be "
                f"{named.get(method, method)!r}. Give one of them another with --names."
            )

    def name(record: Record) -> str:
        marks = f" ({found})" if (found := conformance(record)) else ""
        return named.get(record.method, record.method) + marks

    return Shown(
        [replace(record, method=name(record)) for record in records],
        [replace(row, method=named[row.method]) for row in (every if quoted is None else quoted)],
    )
