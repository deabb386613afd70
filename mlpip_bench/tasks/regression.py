"""Tasks of regression: functions from a model that is known, seen at a few points with noise."""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from mlpip_bench.tasks.batch import TaskBatch, TaskShape
from mlpip_bench.tasks.stream import BLOCK, block_generator, blocks
from mlpip_bench.utils.provenance import Source


class FunctionModel(abc.ABC):
    """A model of functions and of the points at which they are seen: one function a task.

    Attributes:
        name: what it is.
        dimension: of x.
        noise_std: standard deviation of y given the function and x.
    """

    name: ClassVar[str]
    source: ClassVar[Source] = "synthetic"
    dimension: int
    noise_std: float

    @property
    @abc.abstractmethod
    def options(self) -> Mapping[str, str | int | float]:
        """Its parameters."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of its parameters."""
        return hashlib.sha256(f"{self.name} {sorted(self.options.items())}".encode()).hexdigest()

    @abc.abstractmethod
    def draw(
        self, rng: np.random.Generator, tasks: int, points: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Inputs ``[task, point, dimension]`` and targets ``[task, point]``, noise included, of new functions."""


class Curves(FunctionModel):
    """Functions of one number, at points that are uniform in an interval: support set and queries from all of it.

    Attributes:
        low, high: ends of the interval.
    """

    low: ClassVar[float]
    high: ClassVar[float]

    def draw_x(self, rng: np.random.Generator, tasks: int, points: int) -> NDArray[np.float64]:
        """Inputs ``[task, point, 1]``."""
        return rng.uniform(self.low, self.high, (tasks, points, 1))


class RegressionStream:
    """A stream of its tasks, as :class:`~mlpip_bench.tasks.stream.Stream` describes.

    Inputs have the shape ``[task, point, dimension, 1, 1]``, an image of one pixel, so that they pass
    through an extractor without blocks as they are.
    """

    def __init__(self, model: FunctionModel, shape: TaskShape, device: torch.device, *seed: str | int) -> None:
        self.model = model
        self.shape = shape
        self.device = device
        self.seed = seed

    def batch(self, first: int, tasks: int) -> TaskBatch:
        """Tasks ``first .. first+tasks-1``, in float32."""
        parts = [[array[rows] for array in self._draw(block)] for block, rows in blocks(first, tasks)]
        x, y = (torch.from_numpy(np.concatenate(p)).to(self.device) for p in zip(*parts, strict=True))
        return TaskBatch.parted(x, y, self.shape.shots_per_class[0])

    def _draw(self, block: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        points = self.shape.shots_per_class[0] + self.shape.queries
        x, y = self.model.draw(block_generator(self.seed, block), BLOCK, points)
        return x[..., None, None].astype(np.float32), y.astype(np.float32)
