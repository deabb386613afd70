"""Records: one JSON file a cell, written once and atomically; everything shown is derived from them."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from scipy import stats

from mlpip_bench.errors import UserError

SCHEMA = 1
"""Version of the record format; a record of another version is an error, not a guess."""

Json = Mapping[str, Any]
Better: TypeAlias = Literal["higher", "lower"]
Model: TypeAlias = Literal["best", "last"]


@dataclass(frozen=True)
class Scores:
    """Per-task scores of one metric under one condition of evaluation.

    Attributes:
        metric: name of the metric.
        unit: its unit.
        better: ``higher`` or ``lower``.
        way, shot, queries: the test condition; queries are per class.
        model: ``best`` (on validation) or ``last`` (of training).
        per_task: one score a test task, in the order of the bench's fixed task stream.
    """

    metric: str
    unit: str
    better: Better
    way: int
    shot: int
    queries: int
    model: Model
    per_task: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.per_task or not all(math.isfinite(s) for s in self.per_task):
            raise ValueError(f"{self.metric}: scores must be finite and at least one; got {self.per_task[:5]}...")
        if self.better not in get_args(Better) or self.model not in get_args(Model):
            raise ValueError(f"{self.metric}: better is {self.better!r} and model {self.model!r}; one is no known word")


@dataclass(frozen=True)
class Record:
    """One cell, bench x method x seed x protocol, with everything that made it.

    Attributes:
        key: hash of all that decides the numbers: configuration, data fingerprint, seed, version.
        config: the resolved configuration: ``norm``, ``preset``, ``iterations``, ``settings`` and so on.
        data: ``name``, ``source``, ``fingerprint`` and ``options`` of the data set.
        inductive: whether each query was predicted without sight of the others.
        device: ``cpu`` or ``cuda``.
        training: ``iterations``, ``tasks_seen``, ``seconds``, ``best_iteration``, ``history``.
        environment: versions, machine, threads.
        seconds: wall-clock seconds of the evaluation.
    """

    key: str
    bench: str
    method: str
    protocol: str
    seed: int
    device: str
    inductive: bool
    config: Json
    data: Json
    scores: tuple[Scores, ...]
    parameters: int
    training: Json
    seconds: float
    environment: Json
    schema: int = field(default=SCHEMA)

    @property
    def filename(self) -> str:
        """Where the record lies below ``records/``."""
        return f"{self.bench}/{self.method}/{self.protocol}-seed{self.seed}-{self.key[:12]}.json"


def mean_ci95(per_task: Sequence[float]) -> tuple[float, float]:
    """Mean and Student-t 95 % half-width over tasks: t(0.975, n-1) s / sqrt(n), with ddof 1.

    Returns:
        The mean and the half-width; the half-width of a single task is infinite, since one score
        says nothing of its spread.
    """
    n = len(per_task)
    mean = math.fsum(per_task) / n
    if n == 1:
        return mean, math.inf
    variance = math.fsum((s - mean) ** 2 for s in per_task) / (n - 1)
    return mean, float(stats.t.ppf(0.975, n - 1)) * math.sqrt(variance / n)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a whole file or none of it: a temporary file beside it, fsync, rename.

    Raises:
        UserError: the folder cannot be written or the disk is full; no partial file is left behind.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(0o644)
            temporary.replace(path)
        except BaseException:  # an interrupt, too
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}. Free some space or choose another folder with --results, "
            "then run the same command again: it goes on from what is already there."
        ) from error


def save(record: Record, results: Path) -> Path:
    """Write a record below ``results/records`` and return its path."""
    path = results / "records" / record.filename
    content = json.dumps(asdict(record), indent=1, allow_nan=False, sort_keys=True)
    write_atomically(path, content.encode())
    return path


def load(path: Path) -> Record:
    """Read one record.

    Raises:
        UserError: it is not readable, of another schema, or incomplete.
    """
    try:
        raw = json.loads(path.read_bytes())
        if raw.get("schema") != SCHEMA:
            raise ValueError(f"schema {raw.get('schema')!r}, this version reads {SCHEMA}")
        raw["scores"] = tuple(Scores(**{**s, "per_task": tuple(s["per_task"])}) for s in raw["scores"])
        return Record(**raw)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"a record must be readable and whole; {path} is not: {error}. "
            "Restore it, or move it away and run its cell again."
        ) from error


def load_all(results: Path) -> list[Record]:
    """All records below ``results/records``, sorted by bench, method, protocol and seed."""
    records = [load(path) for path in _record_paths(results)]
    return sorted(records, key=lambda r: (r.bench, r.method, r.protocol, r.seed, r.key))


def _record_paths(results: Path) -> Iterator[Path]:
    # Names that begin with a dot are files of a writer that was killed before its rename.
    yield from (p for p in sorted((results / "records").glob("*/*/*.json")) if not p.name.startswith("."))
