"""Tasks from a model that is known: Bayesian linear regression, whose posterior has a closed form.

``psi ~ N(0, I)``, one weight an input and a bias; ``x ~ N(0, I)``; ``y = psi . (x, 1) + noise_std * e``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from mlpip_bench.tasks.batch import TaskBatch, TaskShape
from mlpip_bench.tasks.stream import BLOCK, block_generator, blocks
from mlpip_bench.utils.provenance import Source


@dataclass(frozen=True)
class LinearGaussian:
    """The task family.

    Attributes:
        dimension: of x.
        noise_std: standard deviation of y given psi and x.
    """

    dimension: int
    noise_std: float
    name: ClassVar[str] = "linear-gaussian"
    source: ClassVar[Source] = "synthetic"

    @property
    def options(self) -> Mapping[str, str | int | float]:
        """Its parameters."""
        return {"dimension": self.dimension, "noise_std": self.noise_std, "version": 1}

    @property
    def fingerprint(self) -> str:
        """SHA-256 of its parameters."""
        return hashlib.sha256(f"{self.name} {sorted(self.options.items())}".encode()).hexdigest()


class LinearGaussianStream:
    """A stream of its tasks, as :class:`~mlpip_bench.tasks.stream.Stream` describes.

    Inputs have the shape ``[task, point, dimension, 1, 1]``, an image of one pixel, so that they pass
    through an extractor without blocks as they are.
    """

    def __init__(self, family: LinearGaussian, shape: TaskShape, device: torch.device, *seed: str | int) -> None:
        self.family = family
        self.shape = shape
        self.device = device
        self.seed = seed

    def batch(self, first: int, tasks: int) -> TaskBatch:
        """Tasks ``first .. first+tasks-1``, in float32."""
        parts = [[array[rows] for array in self._draw(block)] for block, rows in blocks(first, tasks)]
        x, y = (torch.from_numpy(np.concatenate(p)).to(self.device) for p in zip(*parts, strict=True))
        return TaskBatch.parted(x, y, self.shape.shots_per_class[0])

    def _draw(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        rng = block_generator(self.seed, block)
        dimension, points = self.family.dimension, self.shape.shots_per_class[0] + self.shape.queries
        psi = rng.standard_normal((BLOCK, dimension + 1))
        x = rng.standard_normal((BLOCK, points, dimension))
        mean = np.einsum("tpd,td->tp", x, psi[:, :-1]) + psi[:, -1:]
        y = mean + self.family.noise_std * rng.standard_normal(mean.shape)
        return x[..., None, None].astype(np.float32), y.astype(np.float32)
