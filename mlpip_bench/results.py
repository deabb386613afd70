"""Records: one JSON file a cell, written once and atomically; everything shown is derived from them."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError
from scipy import stats

from mlpip_bench.errors import UserError

SCHEMA = 1
"""Version of the record format; a record of another version is an error, not a guess."""

LARGEST_SEED = 2**63
"""Seeds are below it, so that tables hold them as 64-bit integers."""

Json = Mapping[str, Any]

_STRICT = ConfigDict(extra="forbid")
Better: TypeAlias = Literal["higher", "lower", "neither"]
Model: TypeAlias = Literal["best", "last"]
Over: TypeAlias = Literal["tasks", "repeats"]


@dataclass(frozen=True)
class Scores:
    """Per-task scores of one metric under one condition of evaluation.

    Attributes:
        metric: name of the metric.
        unit: its unit.
        better: ``higher``, ``lower``, or ``neither`` where a number has a right value or only tells.
        way, shot, queries: the test condition; queries are per class.
        model: ``best`` (on validation) or ``last`` (of training).
        per_task: one score a test task, in the order of the bench's fixed task stream; or one a repeat.
        condition: what else of the test condition differs from the bench's own, by name; for example
            ``{"asked": "one at a time"}`` or ``{"steps": 10}``. Scores of unlike conditions never mix.
        detail: what a figure of the metric needs beyond the scores, by name: numbers, or a PNG file in base64.
        over: what the scores are one of each for: ``tasks``, or ``repeats`` of one measurement.
    """

    __pydantic_config__: ClassVar = _STRICT

    metric: str
    unit: str
    better: Better
    way: int
    shot: int
    queries: int
    model: Model
    per_task: tuple[float, ...]
    condition: Mapping[str, str | int | float] = field(default_factory=dict)
    detail: Mapping[str, tuple[float, ...] | str] = field(default_factory=dict)
    over: Over = "tasks"

    def __post_init__(self) -> None:
        if not self.per_task or not all(math.isfinite(s) for s in self.per_task):
            raise ValueError(
                f"{self.metric}: scores must be finite and at least one; the first are {self.per_task[:3]}"
            )
        for name, words in (("better", Better), ("model", Model), ("over", Over)):
            if (word := getattr(self, name)) not in get_args(words):
                raise ValueError(f"{self.metric}: {name} must be one of {', '.join(get_args(words))}; it is {word!r}")


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

    __pydantic_config__: ClassVar = _STRICT

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

    def __post_init__(self) -> None:
        if not 0 <= self.seed < LARGEST_SEED:
            raise ValueError(f"seed must be from 0 to {LARGEST_SEED - 1}; got {self.seed}")
        # Files are named after them: records, tables and figures, which must stay in their folder.
        named = (self.bench, self.method, self.protocol, self.data.get("name", ""), *(s.metric for s in self.scores))
        if bad := [name for name in named if {"/", "\\", "\0"} & set(str(name))]:
            raise ValueError(f"names must be parts of file names, without / or \\; got {bad[0]!r}")

    @property
    def filename(self) -> str:
        """Where the record lies below ``records/``."""
        return _filename(self.bench, self.method, self.protocol, self.seed, self.key)


def _filename(bench: str, method: str, protocol: str, seed: int, key: str) -> str:
    return f"{bench}/{method}/{protocol}-seed{seed}-{key[:12]}.json"


def path_of(results: Path, bench: str, method: str, protocol: str, seed: int, key: str) -> Path:
    """Where a record of a results folder lies, or would lie."""
    return results / "records" / _filename(bench, method, protocol, seed, key)


_RECORD = TypeAdapter(Record)


_PLUGIN_CODE = ("method", "protocol")


def facts(record: Record, score: Scores) -> dict[str, object]:
    """All that tells a measured configuration from others, by name; its seed is no part of it."""
    return {
        **{name: value for name, value in record.config.items() if name not in ("settings", "seed")},
        **{f"settings.{name}": value for name, value in record.config.get("settings", {}).items()},
        **{f"data.{name}": value for name, value in record.data.get("options", {}).items()},
        "data.name": record.data.get("name", ""),
        "data.fingerprint": record.data["fingerprint"][:12],
        **{name: getattr(record, name) for name in ("method", "device", "protocol")},
        "source": record.data["source"],
        "inductive": "yes" if record.inductive else "no",
        "queries": score.queries,
        "test_tasks": len(score.per_task),
        **({"version": record.environment["mlpip_bench"]} if "mlpip_bench" in record.environment else {}),
        **{f"{name} code": record.environment["code"][name] for name in _PLUGIN_CODE if "code" in record.environment},
    }


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
        raise cannot_write(path, error) from error


_ADVICE = {
    errno.ENOSPC: "Free some space",
    errno.EDQUOT: "Free some space",
    errno.EFBIG: "Raise the limit on the size of files (ulimit -f)",
}


def cannot_write(path: Path, error: OSError) -> UserError:
    """What to tell of a file that could not be written."""
    advice = _ADVICE.get(error.errno or 0, "Choose a folder that can be written")
    return UserError(
        f"cannot write {path}: {error.strerror or error}. {advice}, then run the same command again: "
        "what is already there is kept."
    )


def remove_leftovers(path: Path) -> None:
    """Remove temporary files of a writer of this file that was killed; for the only one who may write it now."""
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*"):
        with contextlib.suppress(OSError):
            temporary.unlink()


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
        if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
            schema = f"schema {raw.get('schema')}" if isinstance(raw, dict) else f"a {type(raw).__name__}"
            raise ValueError(f"it is {schema}; this version reads schema {SCHEMA}")
        checksum = raw.pop("checksum", None)  # records of the first weeks have none
        canonical = _canonical(raw)
        record = _RECORD.validate_json(canonical, strict=True)
        if checksum is not None and checksum != _checksum(canonical):
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
    """Cells that failed, each with its error; a file that cannot be read is one, too."""
    folder = results / "failures"
    return [
        load_failure(path) or (path.relative_to(folder).as_posix(), "its file cannot be read")
        for path in sorted(folder.glob("*/*/*.json"))
    ]


def load_failure(path: Path) -> tuple[str, str] | None:
    """A cell that failed, and its error; ``None`` for a file that cannot be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        told = json.loads(path.read_bytes())
        return str(told["cell"]), str(told["error"])
    return None


def load_all(results: Path) -> list[Record]:
    """All records below ``results/records``, sorted by bench, method, protocol and seed."""
    records = [load(path) for path in _record_paths(results)]
    return sorted(records, key=lambda r: (r.bench, r.method, r.protocol, r.seed, r.key))


def _record_paths(results: Path) -> Iterator[Path]:
    # Names that begin with a dot are files of a writer that was killed before its rename.
    yield from (p for p in sorted((results / "records").glob("*/*/*.json")) if not p.name.startswith("."))
