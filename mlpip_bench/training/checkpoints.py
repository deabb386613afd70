"""Checkpoints: the state of a training run on the disk."""

from __future__ import annotations

import hashlib
import io
import math
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mlpip_bench.utils.errors import UserError, message_in_one_line
from mlpip_bench.utils.files import open_file, write_atomically

State = dict[str, Tensor]

_HOW = ("foreach", "fused", "capturable")
"""Settings of an optimizer that change the operations of an update, and not what it is."""


@dataclass
class TrainingState:
    """How far training is: all that a checkpoint holds.

    Attributes:
        iteration: optimizer steps done.
        model, optimizer: states after them.
        best_model, best_iteration, best_score: the best on validation so far, by the first of the metrics.
        history: one entry a validation.
        seconds: wall-clock seconds of training and validation.
        key: hash of all that decides the trained model.
        environments: versions and threads of training, each with the iteration from which on; one where it never went
            on in another.
        best_by: the best by each metric but the first, by its name: ``model``, ``iteration`` and ``score``.
        seconds_at: wall-clock seconds until the end of the validation after an iteration; not in the history, which is
            the same however fast a machine is.
        pretraining: what a record says of what was trained before meta-training; nothing where nothing was.
        unvalidated: loss of the last iteration where its validation is still to be made, since a signal came.
    """

    iteration: int
    model: State
    optimizer: dict[str, Any]
    best_model: State = field(default_factory=dict)
    best_iteration: int = -1
    best_score: float = -math.inf
    history: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0
    key: str = ""
    environments: list[dict[str, Any]] = field(default_factory=list)
    best_by: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds_at: dict[int, float] = field(default_factory=dict)
    pretraining: dict[str, Any] = field(default_factory=dict)
    unvalidated: float | None = None


def save_checkpoint(state: TrainingState, path: Path) -> None:
    """Write a checkpoint atomically; it loads with ``torch.load(path, weights_only=True)``."""
    buffer = io.BytesIO()
    torch.save({**vars(state), "checksum": _checksum(vars(state))}, buffer)
    write_atomically(path, buffer.getvalue())


def load_checkpoint(path: Path, key: str | None = None) -> TrainingState:
    """Read a checkpoint.

    Args:
        path: its file.
        key: hash of all that decides the model that is wanted; None where any will do.

    Raises:
        UserError: it is damaged, has been changed, or is of another training. Its members carry checksums, so flipped
            bits are found, and so does its content as a whole.
    """
    try:
        with open_file(path) as file:
            with zipfile.ZipFile(file) as archive:
                if (bad := archive.testzip()) is not None:
                    raise ValueError(f"checksum of {bad} is wrong")
            file.seek(0)
            try:
                content = torch.load(file, weights_only=True, map_location="cpu")
            except pickle.UnpicklingError as error:  # whose own advice is to load it without this care
                raise ValueError("it holds something else than numbers, texts and tensors") from error
        checksum = content.pop("checksum", None)
        if checksum is None:
            raise ValueError("it has no checksum of its content")
        state = TrainingState(**content)
        if checksum != _checksum(content):  # as it was written, maybe before there were all fields of today
            raise ValueError("its content was changed after it was written")
        if key is not None and state.key != key:
            raise ValueError("it is the checkpoint of another training")
        if fault := _fault(state):
            raise ValueError(fault)
    except Exception as error:  # torch, pickle and zipfile each raise their own kinds for damaged files
        raise _unusable(path, error) from error
    return state


def restore(state: TrainingState, path: Path, method: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put a checkpoint's state into a model and its optimizer.

    Raises:
        UserError: it does not fit them.
    """
    # Of each group of parameters, but for what the loop sets at each step, and for how the update is computed.
    settings = [{k: v for k, v in g.items() if k not in ("params", "lr", *_HOW)} for g in optimizer.param_groups]
    how = [{k: v for k, v in g.items() if k in _HOW} for g in optimizer.param_groups]
    try:
        method.load_state_dict(state.best_model or state.model)  # what is wrong with it is to be known now
        method.load_state_dict(state.model)
        found = state.optimizer["param_groups"]
        groups = [{**group, **ours} for group, ours in zip(found, how, strict=True)]
        optimizer.load_state_dict({**state.optimizer, "param_groups": groups})
        for wanted, group in zip(settings, optimizer.param_groups, strict=True):
            if other := [name for name, value in wanted.items() if group.get(name, value) != value]:
                raise ValueError(f"its optimizer has another {other[0]}")
        for parameter, moments in optimizer.state.items():
            if any(m.shape not in (parameter.shape, ()) for m in moments.values() if isinstance(m, Tensor)):
                raise ValueError("its optimizer's state is of parameters of another shape")
    except Exception as error:  # whatever torch raises for what does not fit
        raise _unusable(path, error) from error


def add_environment(state: TrainingState, environment: Mapping[str, Any]) -> list[str]:
    """Note where training goes on, unless that is where it was before.

    Returns:
        What differs, each as ``torch 2.13 in place of 2.12``; nothing at the start.
    """
    before = state.environments[-1] if state.environments else {}
    changed = [name for name, value in environment.items() if before.get(name) != value]
    if changed:
        state.environments.append({"iteration": state.iteration, **environment})
    return [f"{name} {environment[name]} in place of {before.get(name)}" for name in changed if before]


def iterations_done(checkpoint: Path, key: str | None = None) -> int:
    """How far training has come, validations included; 0 where there is no checkpoint.

    Raises:
        UserError: it is damaged, has been changed, or is of another training.
    """
    if not checkpoint.exists():
        return 0
    state = load_checkpoint(checkpoint, key)
    return state.iteration - (state.unvalidated is not None)


def _unusable(path: Path, error: Exception) -> UserError:
    return UserError(
        f"a checkpoint must be whole, and of its own trial; {path} is not: {message_in_one_line(error)}. Delete it to "
        "train that model again from the start."
    )


def _fault(state: TrainingState) -> str:
    """What is wrong with a state that is well formed; empty where nothing is."""
    for name, least in (("iteration", 0), ("best_iteration", -1)):
        value = getattr(state, name)
        if type(value) is not int or value < least:
            return f"its {name} is {value!r}"
    if not isinstance(state.seconds, float | int) or not 0 <= state.seconds < math.inf:
        return f"its seconds are {state.seconds!r}"
    for name in ("model", "best_model"):
        tensors = getattr(state, name)
        if not isinstance(tensors, dict) or not all(isinstance(t, Tensor) for t in tensors.values()):
            return f"its {name} is no mapping of names to tensors"
        if bad := [key for key, tensor in tensors.items() if tensor.is_floating_point() and tensor.isnan().any()]:
            return f"{bad[0]} of its {name} is not a number"
    return "" if state.best_iteration <= state.iteration else "its best iteration is after its last one"


def _checksum(content: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    _digest(digest, content)
    return digest.hexdigest()


def _digest(digest: Any, value: Any) -> None:
    """Add a value of a checkpoint to a digest, tensors by their bytes."""
    if isinstance(value, Tensor):
        plain = value.detach().cpu().contiguous()
        digest.update(repr((plain.dtype, tuple(plain.shape))).encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().data if plain.numel() else b"")
    elif isinstance(value, Mapping):
        digest.update(f"mapping of {len(value)}".encode())
        for key, item in value.items():
            digest.update(repr(key).encode())
            _digest(digest, item)
    elif isinstance(value, list | tuple):
        digest.update(f"list of {len(value)}".encode())
        for item in value:
            _digest(digest, item)
    else:
        digest.update(repr(value).encode())
