"""An index of the records of a results folder, so that they need not be parsed and checked each time they are shown.

It is never the source of truth: a row counts only for the very writing of a file that it was made from, and an index
that is damaged, of another version, or that cannot be written is made anew or done without.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import sys
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from mlpip_bench import __version__
from mlpip_bench.records.record import PredictionsFile, Record, Scores
from mlpip_bench.records.score_array import ScoreArray
from mlpip_bench.utils.files import is_own

NAME = "records.sqlite"
"""The file in a results folder."""

LEAST = 50
"""Records that an index is worth."""

_VERSION = f"2 {__version__}"  # the first number is raised where rows change, or what a record may hold
_SHARED = ("config", "data", "backbone", "training", "environment")  # parts that are the same in several records
_COLUMNS = (*_SHARED, "rest", "scores", "checksum")
_BATCH = 1000
_SETTLED_SECONDS = 2.0  # a file that was changed later might be changed again without a new time
_WAIT_SECONDS = 1.0
_NO_DAMAGE = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


def load(results: Path, paths: Sequence[Path], read: Callable[[Path], Record]) -> list[Record]:
    """The records of some files, from the index as far as it has them.

    Args:
        results: the results folder, where the index lies.
        paths: the files of all its records.
        read: reads one of them.
    """
    if len(paths) < LEAST:
        return [read(path) for path in paths]
    now = time.time()
    stamps = {path: stamp for path in paths if (stamp := _stamp(path, now))}
    found = _indexed(results, stamps)
    missing = [path for path in paths if path not in found]
    for start in range(0, len(missing), _BATCH):
        fresh = {path: read(path) for path in missing[start : start + _BATCH]}
        found |= fresh
        _add(results, [_row(record, stamps[path]) for path, record in fresh.items() if path in stamps])
    return [found[path] for path in paths]


def _stamp(path: Path, now: float) -> str:
    """Which writing of a file it is; empty for one that has only just been changed, or is not there.

    The time of a change of the inode, and its number, cannot be set: an index that came from elsewhere with its records
    has no row that counts.
    """
    try:
        status = path.stat()
    except OSError:
        return ""
    settled = max(status.st_mtime, status.st_ctime) < now - _SETTLED_SECONDS
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}" if settled else ""


def _indexed(results: Path, stamps: Mapping[Path, str]) -> dict[Path, Record]:
    """The records that the index has; none where it cannot be used."""
    by_stamp = {stamp: path for path, stamp in stamps.items()}
    parsed: dict[str, Any] = {}
    found: dict[Path, Record] = {}
    gone = []
    file = results.absolute() / NAME
    with _forgiven(file):
        _check_file(file)
        with _connected(file, "ro") as database:
            _check_version(database)
            for stamp, *columns in database.execute(f"SELECT stamp, {', '.join(_COLUMNS)} FROM records"):
                if path := by_stamp.get(stamp):
                    found[path] = _record(columns, parsed)
                else:
                    gone.append((stamp,))
        if gone:
            with _connected(file, "rw") as database, database:
                database.executemany("DELETE FROM records WHERE stamp = ?", gone)
    return found


def _add(results: Path, rows: Collection[Sequence[Any]]) -> None:
    """Put records into the index, which is made where there is none."""
    if not rows or not os.access(results, os.W_OK):
        return
    file = results.absolute() / NAME
    with _forgiven(file):
        _check_file(file)
        with _connected(file, "rwc") as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS about (version TEXT)")
            database.execute("INSERT INTO about SELECT ? WHERE NOT EXISTS (SELECT * FROM about)", (_VERSION,))
            _check_version(database)
            database.execute(f"CREATE TABLE IF NOT EXISTS records (stamp TEXT PRIMARY KEY, {', '.join(_COLUMNS)})")
            places = ", ".join("?" * (len(_COLUMNS) + 1))
            database.executemany(f"INSERT OR REPLACE INTO records VALUES ({places})", rows)


@contextlib.contextmanager
def _forgiven(file: Path) -> Iterator[None]:
    """Whatever is wrong with the index ends the block, and removes it where making it anew is the remedy."""
    try:
        yield
    except OSError:
        pass
    except (sqlite3.Error, ValueError, TypeError, KeyError, AttributeError) as error:
        if getattr(error, "sqlite_errorcode", None) not in _NO_DAMAGE:
            for leftover in (file, file.with_name(f"{NAME}-journal")):
                with contextlib.suppress(OSError):
                    leftover.unlink()


def _check_file(file: Path) -> None:
    """Refuse what is there in its place: a link, a pipe, somebody else's file."""
    if os.path.lexists(file) and not (file.is_file() and not file.is_symlink() and is_own(file.stat())):
        raise OSError(f"{file} is not an index of this user's")


@contextlib.contextmanager
def _connected(file: Path, mode: str) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(f"{file.as_uri()}?mode={mode}", timeout=_WAIT_SECONDS, uri=True)) as found:
        found.execute("PRAGMA trusted_schema = OFF")  # a stranger's file may bring functions along
        yield found


def _check_version(database: sqlite3.Connection) -> None:
    if database.execute("SELECT version FROM about").fetchall() != [(_VERSION,)]:
        raise ValueError("the index is of another version")


# ------------------------------------------------------------------------------------------------------------- rows


def _row(record: Record, stamp: str) -> Sequence[Any]:
    """What is kept of a record: the scores as they are in memory, all else as JSON."""
    raw = {field.name: getattr(record, field.name) for field in fields(record)}
    scores = [{field.name: getattr(score, field.name) for field in fields(score)} for score in record.scores]
    arrays = [np.asarray(score.pop("per_task"), dtype="<f8") for score in scores]
    shared = [json.dumps(raw.pop(name)) for name in _SHARED]
    predictions = None if record.predictions is None else vars(record.predictions)
    rest = json.dumps(raw | {"scores": scores, "lengths": list(map(len, arrays)), "predictions": predictions})
    columns = [*shared, rest, b"".join(array.tobytes() for array in arrays)]
    return [stamp, *columns, _checksum(columns)]


def _checksum(columns: Sequence[Any]) -> int:
    """Finds damage; against strangers there are the stamps."""
    found = 0
    for column in columns:
        found = zlib.crc32(column if isinstance(column, bytes) else column.encode(), found)
    return found


def _record(columns: Sequence[Any], parsed: dict[str, Any]) -> Record:
    """The record of a row.

    Args:
        columns: of the row.
        parsed: parts of other records by their JSON, which records share.

    Raises:
        ValueError: the row is damaged.
    """
    *parts, rest, block, checksum = columns
    if _checksum(columns[:-1]) != checksum:
        raise ValueError("the index is damaged")
    for part in parts:
        if part not in parsed:
            parsed[part] = json.loads(part)
    raw = json.loads(rest)
    ends = np.cumsum(raw.pop("lengths"))[:-1]
    arrays = np.split(np.frombuffer(block, dtype="<f8"), ends)
    scores = tuple(_score(score, array) for score, array in zip(raw.pop("scores"), arrays, strict=True))
    predictions = raw.pop("predictions")
    return Record(
        **_interned(raw),
        **{name: parsed[part] for name, part in zip(_SHARED, parts, strict=True)},
        scores=scores,
        predictions=predictions and PredictionsFile(**predictions),
    )


def _score(raw: dict[str, Any], per_task: Any) -> Scores:
    detail = {name: tuple(held) if isinstance(held, list) else held for name, held in raw.pop("detail").items()}
    return Scores(**_interned(raw), detail=detail, per_task=ScoreArray(per_task))


def _interned(raw: dict[str, Any]) -> dict[str, Any]:
    """With each text in memory once, since most are in many records."""
    return {name: sys.intern(held) if isinstance(held, str) else held for name, held in raw.items()}
