"""Records on the disk: one JSON file each, written once and atomically; everything shown is derived from them."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from mlpip_bench.records.migration import migrated
from mlpip_bench.records.record import SCHEMA, Json, Record
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import write_atomically

_RECORD = TypeAdapter(Record)


def save(record: Record, results: Path) -> Path:
    """Write a record below ``results/records`` and return its path."""
    path = results / "records" / record.filename
    raw = asdict(record)
    content = json.dumps({**raw, "checksum": _checksum(_canonical(raw))}, indent=1, allow_nan=False, sort_keys=True)
    write_atomically(path, content.encode())
    return path


def _canonical(raw: Json) -> str:
    return json.dumps(raw, sort_keys=True)


def _checksum(canonical: str) -> str:
    """Tells a number that was changed on the disk from the one that was written: either is valid JSON."""
    return hashlib.sha256(canonical.encode()).hexdigest()


def load(path: Path) -> Record:
    """Read one record.

    Raises:
        UserError: it is not readable, of another schema, incomplete, or not what was written.
    """
    try:
        raw = json.loads(path.read_bytes())
        if not isinstance(raw, dict):
            raise ValueError(f"it is a {type(raw).__name__}")
        checksum = raw.pop("checksum", None)  # records of the first weeks have none
        canonical = _canonical(raw)
        intact = checksum is None or checksum == _checksum(canonical)
        if raw.get("schema") != SCHEMA:
            canonical = _canonical(migrated(raw, SCHEMA))
        record = _RECORD.validate_json(canonical, strict=True)
        if not intact:
            raise ValueError("its checksum is wrong: it was changed after it was written")
        return record
    except (OSError, ValueError) as error:  # pydantic's and json's errors are ValueErrors
        wrong = _first_fault(error) if isinstance(error, ValidationError) else error
        raise UserError(
            f"a record must be readable and whole; {path} is not: {wrong}. "
            "Restore it, or move it away and run its command again."
        ) from error


def _first_fault(error: ValidationError) -> str:
    fault = error.errors()[0]
    return ": ".join([*([".".join(map(str, fault["loc"]))] if fault["loc"] else []), fault["msg"]])


def load_failures(results: Path) -> list[tuple[str, str]]:
    """Trials that failed, each with its error; a file that cannot be read is one, too."""
    folder = results / "failures"
    return [
        load_failure(path) or (path.relative_to(folder).as_posix(), "its file cannot be read")
        for path in sorted(folder.glob("*/*/*.json"))
    ]


def load_failure(path: Path) -> tuple[str, str] | None:
    """A trial that failed, and its error; ``None`` for a file that cannot be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        failure = json.loads(path.read_bytes())
        return str(failure.get("trial", failure.get("cell"))), str(failure["error"])  # cell: of version 0.1
    return None


def load_all(results: Path) -> list[Record]:
    """All records below ``results/records``, sorted by bench, method, protocol and seed."""
    records = [load(path) for path in record_paths(results)]
    return sorted(records, key=lambda r: (r.bench, r.method, r.protocol, r.seed, r.key))


def record_paths(results: Path) -> Iterator[Path]:
    """The files of all records of a results folder."""
    # Names that begin with a dot are files of a writer that was killed before its rename.
    yield from (p for p in sorted((results / "records").glob("*/*/*.json")) if not p.name.startswith("."))
