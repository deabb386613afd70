"""Predictions of the queries of a trial's tasks, in one file next to its records, from which scores are made again.

The file is what ``numpy.load`` reads: arrays in an uncompressed ZIP file without time stamps, so that equal predictions
are equal bytes. Its arrays are ``SPLIT.targets``, ``SPLIT.classes`` and, for the model of each iteration that a record
names, ``SPLIT.ITERATION.of_target`` and so on, with the names of :class:`Predictions`. It is named by a record, with
its SHA-256, and read without pickle.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from mlpip_bench.records.record import PredictionsFile, Record
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import read_file, write_atomically
from mlpip_bench.utils.npz import write_npz

Split: TypeAlias = Literal["test", "validation"]
Array: TypeAlias = NDArray[Any]

SHARED = ("targets", "classes")
"""Arrays of a split, which its models share."""

LARGE_BYTES = 10_000_000
"""Above it a file has, of each query, only the log-probabilities of the true class and of the most probable one."""

LARGEST_BYTES = 2**28
"""A file that is larger is neither written nor read, which bounds the memory that one takes."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """What one model predicts for the queries of one split, with 75 queries of 5 classes in 1,200 bytes a task.

    Attributes:
        of_target: log predictive density of each query's target, ``[task, point]``, in nats; float32.
        targets: class of each query, ``[task, point]``; None in regression, as are all below.
        choices: the most probable class, ``[task, point]``.
        log_probs: log predictive probabilities, ``[task, point, way]``, in half precision; None in a large file.
        of_choice: those of the most probable class, ``[task, point]``; only where ``log_probs`` are left out.
        classes: which of the split's classes each label of a task is, ``[task, way]``; None where that is not known.
    """

    of_target: Array
    targets: Array | None = None
    choices: Array | None = None
    log_probs: Array | None = None
    of_choice: Array | None = None
    classes: Array | None = None

    def __post_init__(self) -> None:
        if fault := _fault(self):
            raise ValueError(fault)

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays, but for those that models share."""
        return sum(array.nbytes for name, array in vars(self).items() if name not in SHARED and array is not None)

    def reduced(self) -> Predictions:
        """Without the classes that are neither a query's own nor the most probable one."""
        if self.log_probs is None or self.choices is None:
            return self
        return replace(self, log_probs=None, of_choice=_at(self.log_probs, self.choices))


OfTrial: TypeAlias = Mapping[tuple[Split, int], Predictions]
"""The predictions of a trial: by split and the iteration after which a model made them."""


def of_classes(targets: Array, log_probs: Array, choices: Array | None = None) -> Predictions:
    """Predictions among classes, in the precision in which they are kept.

    Args:
        targets: class of each query, ``[task, point]``.
        log_probs: ``[task, point, way]``, normalized.
        choices: the most probable classes, ``[task, point]``; left out, they are found here.
    """
    kind = "<u1" if log_probs.shape[-1] <= 256 else "<u2"
    with np.errstate(over="ignore"):  # below exp(-65504) a probability is 0
        half = log_probs.astype("<f2")
    return Predictions(
        _at(log_probs, targets).astype("<f4"),
        targets.astype(kind),
        (log_probs.argmax(-1) if choices is None else choices).astype(kind),
        half,
    )


def _at(log_probs: Array, classes: Array) -> Array:
    found: Array = np.take_along_axis(log_probs, classes[..., None].astype(np.int64), -1)[..., 0]
    return found


def _fault(p: Predictions) -> str:
    """Why arrays are no predictions; empty where they are."""
    tasks = p.of_target.shape
    if p.of_target.ndim != 2 or not p.of_target.size:
        return f"of_target must be [task, point], and not empty; it has the shape {tasks}"
    if np.isnan(p.of_target).any() or np.isposinf(p.of_target).any():
        return "of_target has values that are not log-densities"
    if p.targets is None:
        given = [name for name in ("choices", "log_probs", "of_choice", "classes") if getattr(p, name) is not None]
        return f"{given[0]} comes without targets" if given else ""
    if p.choices is None or (p.log_probs is None) == (p.of_choice is None):
        return "there must be targets, choices, and one of log_probs and of_choice"
    for name in ("targets", "choices", "of_choice"):
        if (array := getattr(p, name)) is not None and array.shape != tasks:
            return f"{name} must have the shape {tasks} of of_target; it has {array.shape}"
    if p.classes is not None and (
        p.classes.ndim != 2 or len(p.classes) != tasks[0] or p.targets.max() >= p.classes.shape[1]
    ):
        return (
            f"classes must be [task, way], with all labels of {tasks[0]} tasks; they have the shape {p.classes.shape}"
        )
    top = p.of_choice
    if p.log_probs is not None:
        if p.log_probs.shape[:-1] != tasks or p.log_probs.ndim != 3:
            return f"log_probs must be [task, point, way] with tasks and points {tasks}; they are {p.log_probs.shape}"
        if max(p.targets.max(), p.choices.max()) >= p.log_probs.shape[-1]:
            return f"there are classes beyond the {p.log_probs.shape[-1]} that have probabilities"
        full = p.log_probs.astype(np.float64)
        with np.errstate(invalid="ignore"):  # NaN is not close to 1
            if not (np.abs(np.exp(full).sum(-1) - 1) < 0.01).all():
                return "probabilities must add up to 1"
        if not _close(_at(full, p.targets), p.of_target):
            return "of_target is not what log_probs have for the targets"
        top = _at(full, p.choices)
        if not _close(top, full.max(-1)):
            return "choices are not the most probable classes"
    assert top is not None
    if not ((p.of_target < 1e-6).all() and (top < 1e-6).all()):
        return "there are probabilities above 1"
    if not _close(top[p.choices == p.targets], p.of_target[p.choices == p.targets]):
        return "of_target and of_choice differ where the choice is right"
    if (top < p.of_target - _step(p.of_target)).any():
        return "choices are less probable than targets"
    return ""


def _step(x: Array) -> Array:
    """What rounding to half precision may change."""
    step: Array = 1e-3 * np.abs(np.where(np.isfinite(x), x, 0).astype(np.float64)) + 1e-6
    return step


def _close(a: Array, b: Array) -> bool:
    """Whether log-probabilities are equal but for rounding; those below -65504 are minus infinity in half precision."""
    a, b = (np.where(x < -65_000, -65_000, x.astype(np.float64)) for x in (a, b))
    return bool((np.abs(a - b) <= _step(b)).all())


# ------------------------------------------------------------------------------------------------------ bytes


def to_bytes(predictions: OfTrial) -> bytes:
    """Predictions as the bytes of a file, the same for equal predictions."""
    members: dict[str, Array] = {}
    large = sum(p.nbytes for p in predictions.values()) > LARGE_BYTES
    for (split, iteration), whole in predictions.items():
        kept = whole.reduced() if large else whole
        for name, array in vars(kept).items():
            if array is not None:
                members[f"{split}.{name}" if name in SHARED else f"{split}.{iteration}.{name}"] = array
    out = io.BytesIO()
    write_npz(out, members)
    return out.getvalue()


_NAMES = re.compile(
    rf"({'|'.join(get_args(Split))})\.(?:({'|'.join(SHARED)})|(\d{{1,12}})\.(of_target|choices|log_probs|of_choice))\.npy"
)
_HEADER = re.compile(
    rb"\{'descr': '([<|][fu][124])', 'fortran_order': False, 'shape': \((\d{1,9}(?:, \d{1,9})+)\), \} *\n"
)
_TYPES = {"targets": "u", "classes": "u", "choices": "u", "of_target": "f", "log_probs": "f", "of_choice": "f"}


def from_bytes(content: bytes) -> dict[tuple[Split, int], Predictions]:
    """Predictions of a file.

    Raises:
        ValueError: they are not such predictions.
    """
    shared: dict[str, dict[str, Array]] = {}
    arrays: dict[tuple[Any, Any], dict[str, Array]] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            if len({member.filename for member in members}) < len(members):
                raise ValueError("it has an array twice")
            for member in members:
                name = _NAMES.fullmatch(member.filename)
                if name is None or member.compress_type != zipfile.ZIP_STORED or member.file_size > len(content):
                    raise ValueError(f"it has {member.filename[:60]!r}, which is in no file of predictions")
                array = _array(archive.read(member), name[4] or name[2])
                if name[2]:
                    shared.setdefault(name[1], {})[name[2]] = array
                else:
                    arrays.setdefault((name[1], int(name[3])), {})[name[4]] = array
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, OSError, struct.error) as error:
        raise ValueError(str(error)) from error
    if not arrays or shared.keys() - {split for split, _ in arrays}:
        raise ValueError("it has no predictions of some targets, or none at all")
    if missing := [f"{s} {i}" for (s, i), found in arrays.items() if "of_target" not in found]:
        raise ValueError(f"it has no log-densities of {missing[0]}")
    return {key: Predictions(**shared.get(key[0], {}), **found) for key, found in arrays.items()}


def _array(content: bytes, name: str) -> Array:
    """An array in numpy's format, whose header is not evaluated but matched."""
    end = 10 + int.from_bytes(content[8:10], "little")
    header = _HEADER.fullmatch(content[10:end])
    if content[:8] != b"\x93NUMPY\x01\x00" or header is None:
        raise ValueError(f"its {name} are no array of numbers")
    kind, shape = np.dtype(header[1].decode()), tuple(map(int, header[2].split(b", ")))
    if kind.kind != _TYPES[name] or math.prod(shape) * kind.itemsize != len(content) - end:
        raise ValueError(f"its {name} are {kind} of the shape {shape} in {len(content) - end} bytes")
    return np.frombuffer(content, kind, offset=end).reshape(shape)


# ------------------------------------------------------------------------------------------------------ files


def stem(seed: int, training_key: str) -> str:
    """What the file of a trained model's predictions is called, without its digest."""
    return f"predictions-seed{seed}-{training_key[:12]}"


def save(predictions: OfTrial, folder: Path, name: str) -> PredictionsFile:
    """Write a file into the folder of its records; its name has its digest, so that no other record's is replaced.

    Args:
        predictions: of a trial.
        folder: that of the trial's records.
        name: from :func:`stem`.

    Raises:
        ValueError: there are too many to be read again.
        UserError: it cannot be written.
    """
    content = to_bytes(predictions)
    if len(content) > LARGEST_BYTES:
        raise ValueError(f"predictions take {len(content):,} bytes, more than the {LARGEST_BYTES:,} that are read")
    digest = hashlib.sha256(content).hexdigest()
    kept = PredictionsFile(f"{name}.{digest[:12]}.npz", digest)
    write_atomically(folder / kept.file, content)
    return kept


def load(record: Record, folder: Path) -> dict[tuple[Split, int], Predictions]:
    """The predictions behind a record.

    Args:
        record: which names their file.
        folder: where the record lies.

    Raises:
        UserError: the record names none, or they are not readable, not what was written, or no predictions.
    """
    kept = record.predictions
    if kept is None:
        raise UserError(
            f"a record names its predictions where they were kept; {record.filename} names none. Run its command again "
            "with --predictions, after moving the record away: a trained model is not trained again."
        )
    path = folder / kept.file
    try:
        content = read_file(path, LARGEST_BYTES)
        if hashlib.sha256(content).hexdigest() != kept.sha256:
            raise ValueError("its SHA-256 is not the one that the record names")
        return from_bytes(content)
    except (OSError, ValueError) as error:
        wrong = error.strerror if isinstance(error, OSError) else error
        raise UserError(
            f"predictions must be readable and whole; {path} is not: {wrong}. "
            "Restore it, or move its records away and run their command again."
        ) from error
