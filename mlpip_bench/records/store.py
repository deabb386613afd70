"""Records on the disk: one JSON file each, written once and atomically; everything shown is derived from them."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mlpip_bench.records import index
from mlpip_bench.records.migration import migrated
from mlpip_bench.records.record import SCHEMA, Record
from mlpip_bench.records.schema import Json
from mlpip_bench.records.score_array import ScoreArray
from mlpip_bench.utils.encoding import printable
from mlpip_bench.utils.errors import UserError, message_in_one_line
from mlpip_bench.utils.files import read_file, write_atomically

LARGEST_FILE = 2**28
"""Bytes of a record."""
_LONGEST_NOTE = 2000
_RECORD = TypeAdapter(Record)


def save(record: Record, results: Path) -> Path:
    """Write a record below ``results/records`` and return its path."""
    path = results / "records" / record.filename
    scores = tuple(replace(score, per_task=tuple(score.per_task)) for score in record.scores)
    raw = asdict(replace(record, scores=scores))
    content = json.dumps({**raw, "checksum": _checksum(_canonical(raw))}, indent=1, allow_nan=False, sort_keys=True)
    write_atomically(path, content.encode())
    return path


def _canonical(raw: Json) -> str:
    return json.dumps(raw, sort_keys=True)


def _canonical_of_file(text: str, checksum: object) -> str:
    """The canonical form of a file as :func:`save` writes it, without parsing a number or writing one.

    Line breaks in JSON are between its parts alone.
    """
    line = "".join(map(str.lstrip, text.replace(",\n", ", \n").split("\n")))
    return line.replace(f'"checksum": "{checksum}", ', "", 1)


def _checksum(canonical: str) -> str:
    """Tells a number that was changed on the disk from the one that was written: either is valid JSON."""
    return hashlib.sha256(canonical.encode()).hexdigest()


def load(path: Path) -> Record:
    """Read one record.

    Raises:
        UserError: it is not readable, of another schema, incomplete, or not what was written.
    """
    try:
        text = _text(path)
        raw = parsed(text)
        if not isinstance(raw, dict):
            raise ValueError(f"it is a {type(raw).__name__}")
        checksum = raw.pop("checksum", None)
        canonical = _canonical_of_file(text, checksum)
        if checksum != _checksum(canonical):  # it is not formatted as it was written
            canonical = _canonical(raw)
        intact = checksum == _checksum(canonical)
        if raw.get("schema") != SCHEMA:
            canonical = _canonical(migrated(raw, SCHEMA))
        record = _RECORD.validate_json(canonical, strict=True)
        if checksum is None:
            raise ValueError("it has no checksum, and may have been changed after it was written")
        if not intact:
            raise ValueError("its checksum is wrong: it was changed after it was written")
        return _packed(record)
    except FileNotFoundError as error:
        raise UserError(f"a record must be there; {path} is not. Name one that is.") from error
    except (OSError, ValueError, RecursionError) as error:  # pydantic's and json's errors are ValueErrors
        wrong = first_fault(error) if isinstance(error, ValidationError) else message_in_one_line(error)
        raise UserError(
            f"a record must be readable and whole; {path} is not: {wrong}. "
            "Restore it, or move it away and run its command again."
        ) from error


def _packed(record: Record) -> Record:
    """The record with its scores in a quarter of the memory."""
    scores = tuple(replace(score, per_task=ScoreArray(score.per_task)) for score in record.scores)
    return replace(record, scores=scores)


def _text(path: Path) -> str:
    """The content of a file.

    Raises:
        OSError: it cannot be read, or is too large.
        ValueError: it is not UTF-8.
    """
    return read_file(path, LARGEST_FILE).decode("utf-8")


def parsed(text: str) -> Any:
    """What JSON says, which means one thing only.

    Raises:
        ValueError: it is no JSON, has a name twice, or a number that is none.
        RecursionError: it is nested too deeply.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
        return found

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no number")

    return json.loads(text, object_pairs_hook=once, parse_constant=refuse)


def first_fault(error: ValidationError) -> str:
    """The place and the message of what is wrong first."""
    fault = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, fault["loc"]))[:200]
    return printable(": ".join(part for part in (place, fault["msg"][:1000]) if part))


def load_failures(results: Path) -> list[tuple[str, str]]:
    """Trials that failed, each with its error; a file that cannot be read is one, too."""
    folder = results / "failures"
    return [
        load_failure(path) or (path.relative_to(folder).as_posix(), "its file cannot be read")
        for path in sorted(folder.glob("*/*/*.json"))
    ]


def load_failure(path: Path) -> tuple[str, str] | None:
    """A trial that failed, and its error; ``None`` for a file that cannot be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        failure = parsed(_text(path))
        texts = failure.get("trial", failure.get("cell")), failure["error"]  # cell: of version 0.1
        trial, error = (printable(str(t)[:_LONGEST_NOTE]) for t in texts)
        return trial, error
    return None


def load_all(results: Path) -> list[Record]:
    """All records below ``results/records``, sorted by bench, method, protocol and seed.

    Raises:
        UserError: a record is not readable or whole, or is there twice.
    """
    paths = list(record_paths(results))
    records = index.load(results, paths, load)
    found: dict[str, Path] = {}
    for path, record in zip(paths, records, strict=True):
        if (other := found.setdefault(record.filename, path)) != path:
            raise UserError(
                f"a trial has one record of a protocol; {other} and {path} are of the same one. Move the copy away."
            )
    return sorted(records, key=lambda r: (r.bench, r.method, r.protocol, r.seed, r.key))


def record_paths(results: Path) -> Iterator[Path]:
    """The files of all records of a results folder.

    Raises:
        UserError: a folder of records may not be read; without it a method would be missing from what is shown.
    """
    for bench in _within(results / "records"):
        for method in _within(bench):
            # Names that begin with a dot are files of a writer that was killed before its rename.
            yield from (p for p in _within(method) if p.suffix == ".json" and not p.name.startswith("."))


def _within(folder: Path) -> list[Path]:
    """What a folder holds, in order; nothing where it is none."""
    try:
        return sorted(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise UserError(
            f"all records of a results folder must be readable; {folder} is not: {message_in_one_line(error)}. "
            "Make it readable, or move it away."
        ) from error
