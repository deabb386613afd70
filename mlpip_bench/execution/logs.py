"""The log of a trial, to watch its training: no part of any key, and nothing that could end the trial."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mlpip_bench.benches.pictures import figure_of_task
from mlpip_bench.execution.trial import Trial
from mlpip_bench.records.record import Record
from mlpip_bench.records.statistics import mean_ci95
from mlpip_bench.reporting.entries import entries_of
from mlpip_bench.tasks.stream import Stream
from mlpip_bench.training.loggers import LOGGERS, Logger
from mlpip_bench.training.loop import Points
from mlpip_bench.utils.choices import Log
from mlpip_bench.utils.errors import one_line
from mlpip_bench.utils.progress import Reporter


class TrialLog:
    """The log of a trial, a context; none where no library is named, and none any more from the first failure on.

    Args:
        log: the library.
        trial: what is trained and measured.
        results: folder in which ``logs`` is.
        reporter: is said why nothing more is logged.
    """

    def __init__(self, log: Log | None, trial: Trial, results: Path, reporter: Reporter) -> None:
        self._log, self._trial, self._results, self._reporter = log, trial, results, reporter
        self._logger: Logger | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._logger is not None:
            with self._surviving():
                self._logger.close(failed=kind is not None)

    def begin(self, iteration: int, streams: Mapping[str, Stream]) -> None:
        """A training starts, or goes on from an iteration.

        Args:
            iteration: that training has come to.
            streams: of which a new log shows a task of training and one of validation.
        """
        with self._surviving():
            self._open(iteration, streams)

    def points(self, points: Points) -> None:
        """What there is to see of a training that has begun."""
        if self._logger is not None:
            with self._surviving():
                self._logger.scalars(points)

    def scores(self, record: Record) -> None:
        """Means of test scores, each with the half-width of its interval over tasks."""
        with self._surviving():
            iterations = record.training["iterations"]
            logger = self._logger or self._open(iterations, {})
            if logger is not None:
                logger.scalars({iterations: _means(record)})

    def _open(self, iteration: int, streams: Mapping[str, Stream]) -> Logger | None:
        if self._log is None:
            return None
        folder = self._results / "logs" / self._log
        place = self._trial.path(self._results, f"logs/{self._log}", "")
        resumed = iteration > 0 and place.exists()
        folder.mkdir(parents=True, exist_ok=True)
        self._logger = logger = LOGGERS[self._log](folder, place, self._trial.title, resumed=resumed)
        if not resumed:
            logger.configuration(_flat(_facts(self._trial)))
            for split in [name for name in ("train", "validation") if name in streams]:
                if (pixels := _picture(self._trial, split, streams[split])) is not None:
                    logger.picture(f"tasks/{split}", pixels)
        return logger

    @contextlib.contextmanager
    def _surviving(self) -> Iterator[None]:
        """Whatever a library raises, it ends the log alone."""
        try:
            yield
        except (Exception, SystemExit) as error:
            self._reporter.say(f"{self._trial.title}: {self._log} fails, so nothing more is logged: {one_line(error)}")
            broken, self._logger, self._log = self._logger, None, None
            if broken is not None:
                with contextlib.suppress(Exception, SystemExit):
                    broken.close(failed=True)


def _facts(trial: Trial) -> dict[str, Any]:
    """What a record says of what was trained, and how."""
    named = {"bench": trial.bench.name, "method": trial.method, "seed": trial.seed, "device": trial.device.type}
    return {**named, "backbone": trial.backbone_facts, "data": trial.data_facts, **trial.config}


def _flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Values of nested mappings, by names with dots."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _flat(value, f"{above}{name}.") if isinstance(value, Mapping) else {above + name: value}
    return found


def _picture(trial: Trial, split: str, stream: Stream) -> NDArray[np.uint8] | None:
    """The first task of a stream, ``[height, width, 3]``; None where its points are no pictures."""
    figure = figure_of_task(stream.batch(0, 1), trial.bench.name, trial.family, trial.data, f"{split} task 0")
    if figure is None:
        return None
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return np.array(Image.open(png).convert("RGB"))


def _means(record: Record) -> dict[str, float]:
    """Of all scores over tasks, by names that say what of a condition is not the bench's own."""
    found: dict[str, float] = {}
    for entry in entries_of([record]):
        name = f"test/{record.protocol}/{entry.score.metric} {entry.column} {entry.score.model}"
        mean, ci95 = mean_ci95(entry.score.per_task)
        found |= {name: mean} | ({f"{name} ci95": ci95} if math.isfinite(ci95) else {})
    return found
