"""From a trained model to a file for others, and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load as tensors_of
from safetensors.torch import save as as_file

from mlpip_bench.execution.restoring import Trained, checked, trial_of
from mlpip_bench.records import exports
from mlpip_bench.records.record import Record
from mlpip_bench.training.checkpoints import State, TrainingState
from mlpip_bench.utils.errors import UserError, message_in_one_line
from mlpip_bench.utils.files import write_atomically

_OF_TEST = ("test_on", "test_classes")
"""What a record says of data that the trained model knows nothing of."""


def of_training(record: Record) -> Record:
    """What a record says of its trained model, under the key of the training, and nothing of a test.

    Raises:
        UserError: its method, bench or backbone is not installed.
    """
    trial = trial_of(record)
    return replace(
        record,
        key=trial.training_key,
        bench=trial.bench.name,
        config={name: value for name, value in record.config.items() if name != "protocol_settings"},
        data={name: value for name, value in record.data.items() if name not in _OF_TEST},
        scores=(),
        predictions=None,
    )


def write(path: Path, record: Record, state: State) -> None:
    """Write an export atomically; :mod:`mlpip_bench.records.exports` says what is in it.

    Args:
        path: its file.
        record: from :func:`of_training`.
        state: of the model's parameters and buffers.

    Raises:
        UserError: the file cannot be written.
    """
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}
    write_atomically(path, as_file(tensors, exports.header(record, as_file(tensors))))


def read(path: Path, device: torch.device, *, trust_code: bool = False) -> Trained:
    """The model of an export.

    Args:
        path: its file.
        device: where the model is to be.
        trust_code: whether code of somebody's own, whose file or module the export names, may be run.

    Raises:
        UserError: the file is damaged or none, or its method or backbone is not installed or has changed since.
    """
    record, file = exports.read(path)
    trial = checked(
        record,
        path,
        lambda trial: trial.training_key,
        advice="Install the version that its model card names.",
        trust_code=trust_code,
    )
    try:
        tensors = tensors_of(file)
    except Exception as error:  # safetensors has an error of its own, and raises others
        raise _damaged(path, message_in_one_line(error)) from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise _damaged(path, f"{name} has values that are not finite numbers")
    training = record.training
    state = TrainingState(
        iteration=training.get("iterations", 0),
        model=tensors,
        optimizer={},
        best_model=tensors,
        best_iteration=training.get("best_iteration", -1),
        history=list(training.get("history", ())),
        seconds=training.get("seconds", 0.0),
        key=record.key,
    )
    return Trained(record, replace(trial, device=device), state)


def _damaged(path: Path, wrong: str) -> UserError:
    return UserError(f"an exported model must be whole, as export wrote it; {path} is not: {wrong}. Export it again.")
