"""Checkpoints: the state of a training run on the disk."""

from __future__ import annotations

import io
import math
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import write_atomically

State = dict[str, Tensor]


@dataclass
class TrainingState:
    """How far training is: all that a checkpoint holds.

    Attributes:
        iteration: optimizer steps done.
        model, optimizer: states after them.
        best_model, best_iteration, best_score: the best on validation so far, by the first of the metrics.
        history: one entry a validation.
        seconds: wall-clock seconds of training and validation.
        best_by: the best by each metric but the first, by its name: ``model``, ``iteration`` and ``score``.
    """

    iteration: int
    model: State
    optimizer: dict[str, Any]
    best_model: State = field(default_factory=dict)
    best_iteration: int = -1
    best_score: float = -math.inf
    history: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    best_by: dict[str, dict[str, Any]] = field(default_factory=dict)


def save_checkpoint(state: TrainingState, path: Path) -> None:
    """Write a checkpoint atomically; it loads with ``torch.load(path, weights_only=True)``."""
    buffer = io.BytesIO()
    torch.save(vars(state), buffer)
    write_atomically(path, buffer.getvalue())


def load_checkpoint(path: Path) -> TrainingState:
    """Read a checkpoint.

    Raises:
        UserError: it is damaged. Members carry checksums, so flipped bits are found as well.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if (bad := archive.testzip()) is not None:
                raise ValueError(f"checksum of {bad} is wrong")
        return TrainingState(**torch.load(path, weights_only=True, map_location="cpu"))
    except Exception as error:  # torch, pickle and zipfile each raise their own kinds for damaged files
        raise UserError(
            f"a checkpoint must be whole; {path} is not: {error}. Delete it to train that model again from the start."
        ) from error


def iterations_done(checkpoint: Path) -> int:
    """How far training has come; 0 where there is no checkpoint.

    Raises:
        UserError: it is damaged.
    """
    return load_checkpoint(checkpoint).iteration if checkpoint.exists() else 0
