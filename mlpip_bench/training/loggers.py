"""Logs of a training that other programs show; each library is an extra, and imported only where it is asked for."""

from __future__ import annotations

import abc
import importlib
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlpip_bench.training.loop import Points
from mlpip_bench.utils.choices import Log
from mlpip_bench.utils.errors import UserError, one_line
from mlpip_bench.utils.locks import locked

PROJECT = "mlpip_bench"
"""What trainings are below in programs that show several projects, unless a user's environment names another."""


class Logger(abc.ABC):
    """The log of one training; what its library raises is raised by the call that it belongs to.

    Args:
        folder: of all logs of its kind in a results folder, which exists.
        place: the training's own file or folder in it.
        title: of the training.
        resumed: whether to go on with the log that is there; else a new one takes its place.
    """

    @abc.abstractmethod
    def __init__(self, folder: Path, place: Path, title: str, *, resumed: bool) -> None: ...

    @abc.abstractmethod
    def configuration(self, values: Mapping[str, object]) -> None:
        """What is trained, and how."""

    @abc.abstractmethod
    def picture(self, name: str, pixels: NDArray[np.uint8]) -> None:
        """A picture ``[height, width, 3]``, of the time before training."""

    @abc.abstractmethod
    def scalars(self, points: Points) -> None:
        """Values by iterations done, in their order."""

    @abc.abstractmethod
    def close(self, *, failed: bool) -> None:
        """End it; the trial has failed, or was stopped, or not."""


class TensorBoardLogger(Logger):
    """Event files, as TensorBoard reads them; written here and now, where its own writer has a thread do it."""

    def __init__(self, folder: Path, place: Path, title: str, *, resumed: bool) -> None:  # noqa: ARG002
        self._summary: Any = importlib.import_module("torch.utils.tensorboard.summary")
        self._events: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
        records: Any = importlib.import_module("tensorboard.summary.writer.record_writer")
        place.mkdir(parents=True, exist_ok=True)
        for old in place.glob("events.out.tfevents.*") if not resumed else ():
            old.unlink()
        self._file: Any = records.RecordWriter((place / f"events.out.tfevents.{time.time_ns()}").open("xb"))
        self._file.write(self._event(file_version="brain.Event:2"))

    def _event(self, **values: Any) -> bytes:
        content: bytes = self._events.Event(wall_time=time.time(), **values).SerializeToString()
        return content

    def _write(self, step: int, summary: Any) -> None:
        self._file.write(self._event(step=step, summary=summary))
        self._file.flush()

    def configuration(self, values: Mapping[str, object]) -> None:
        """A text, which is shown as it is."""
        lines = "\n".join(f"    {name}: {value}" for name, value in values.items())
        self._write(0, self._summary.text("configuration", lines))

    def picture(self, name: str, pixels: NDArray[np.uint8]) -> None:
        """An image."""
        self._write(0, self._summary.image(name, pixels, dataformats="HWC"))

    def scalars(self, points: Points) -> None:
        """An event a value."""
        for iteration, values in points.items():
            for name, value in values.items():
                self._write(iteration, self._summary.scalar(name, value))

    def close(self, *, failed: bool) -> None:  # noqa: ARG002
        """Close the file."""
        self._file.close()


class WandbLogger(Logger):
    """A run of Weights & Biases, offline unless ``WANDB_MODE`` says otherwise; its place has its id."""

    def __init__(self, folder: Path, place: Path, title: str, *, resumed: bool) -> None:
        self._wandb: Any = importlib.import_module("wandb")
        self._run: Any = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=_kept(place) if resumed else _keep(place, secrets.token_hex(4)),
            resume="allow",
            reinit="create_new",  # next to one of the user's own
            name=title,
            dir=folder.parent,  # it makes a folder ``wandb`` there
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=self._wandb.Settings(silent=True, console="off"),
        )

    def configuration(self, values: Mapping[str, object]) -> None:
        """The run's configuration."""
        self._run.config.update(dict(values), allow_val_change=True)

    def picture(self, name: str, pixels: NDArray[np.uint8]) -> None:
        """An image."""
        self._run.log({name: self._wandb.Image(pixels)}, step=0)

    def scalars(self, points: Points) -> None:
        """A row an iteration."""
        for iteration, values in points.items():
            self._run.log(dict(values), step=iteration)

    def close(self, *, failed: bool) -> None:
        """Finish the run."""
        self._run.finish(exit_code=int(failed))


_METRICS, _PARAMETERS = 1000, 100
"""How many one call of MLflow takes."""


class MLflowLogger(Logger):
    """A run in a local database of MLflow, unless ``MLFLOW_TRACKING_URI`` names a server; its place has its id."""

    def __init__(self, folder: Path, place: Path, title: str, *, resumed: bool) -> None:
        self._entities: Any = importlib.import_module("mlflow.entities")
        mlflow: Any = importlib.import_module("mlflow")
        folder = folder.absolute()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        with locked(folder / "mlflow.lock", wait=True):  # or two processes would make its tables at once
            uri = os.environ.get("MLFLOW_TRACKING_URI")
            self._client: Any = mlflow.MlflowClient(uri or f"sqlite:///{folder / 'mlflow.db'}")
            found = self._client.get_experiment_by_name(name)
            files = None if uri else (folder / "artifacts").as_uri()
            experiment = found.experiment_id if found else self._client.create_experiment(name, files)
        self._id = (
            _kept(place) if resumed else _keep(place, self._client.create_run(experiment, run_name=title).info.run_id)
        )
        self._client.update_run(self._id, status="RUNNING")

    def _log(self, kind: str, found: Sequence[Any], most: int) -> None:
        for first in range(0, len(found), most):
            self._client.log_batch(self._id, **{kind: found[first : first + most]})

    def configuration(self, values: Mapping[str, object]) -> None:
        """The run's parameters."""
        found = [self._entities.Param(_plain(name), str(value)) for name, value in values.items()]
        self._log("params", found, _PARAMETERS)

    def picture(self, name: str, pixels: NDArray[np.uint8]) -> None:
        """A PNG file among the run's artifacts."""
        self._client.log_image(self._id, pixels, artifact_file=f"{name}.png")

    def scalars(self, points: Points) -> None:
        """Metrics."""
        now = time.time_ns() // 1_000_000
        found = [
            self._entities.Metric(_plain(name), value, now, iteration)
            for iteration, values in points.items()
            for name, value in values.items()
        ]
        self._log("metrics", found, _METRICS)

    def close(self, *, failed: bool) -> None:
        """End the run."""
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")


def _plain(name: str) -> str:
    """A name of the characters that MLflow takes."""
    return re.sub(r"[^\w./ -]", "", name)


def _keep(place: Path, name: str) -> str:
    """Write down the id of a run, for the one that goes on with it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(name, encoding="utf-8")
    return name


def _kept(place: Path) -> str:
    return place.read_text(encoding="utf-8")


LOGGERS: Mapping[Log, type[Logger]] = {
    "tensorboard": TensorBoardLogger,
    "wandb": WandbLogger,
    "mlflow": MLflowLogger,
}


def check_installed(log: Log) -> None:
    """Refuse a log whose library is not there.

    Raises:
        UserError: it cannot be imported.
    """
    try:
        importlib.import_module(log)
    except Exception as error:  # whatever an installation that is not whole raises
        raise UserError(
            f"--log {log} needs the library {log}, which cannot be imported ({one_line(error)}). Install the extra: "
            f"pip install 'mlpip_bench[{log}]'."
        ) from error
