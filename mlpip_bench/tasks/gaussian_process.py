"""Curves from a Gaussian process: the bench of neural processes (Garnelo et al., ICML 2018, section 4.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from mlpip_bench.tasks.kernels import RBF, Matern, Periodic
from mlpip_bench.tasks.regression import Curves


@dataclass(frozen=True)
class GaussianProcess(Curves):
    """The model: ``y = f(x) + noise_std * e`` with f of mean 0 and x uniform in [-2, 2].

    Attributes:
        kernel: covariance function of f.
        noise_std: standard deviation of y given f and x.
        dimension: of x.
    """

    kernel: RBF | Matern | Periodic
    noise_std: float
    dimension: int = 1
    name: ClassVar[str] = "gaussian-process"
    low: ClassVar[float] = -2.0
    high: ClassVar[float] = 2.0

    @property
    def options(self) -> Mapping[str, str | int | float]:
        """Its parameters."""
        kernel = {"kernel": type(self.kernel).__name__.lower(), **dataclasses.asdict(self.kernel)}
        return {**kernel, "noise_std": self.noise_std, "version": 1}

    def draw(
        self, rng: np.random.Generator, tasks: int, points: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Inputs ``[task, point, 1]`` and targets ``[task, point]``, whose covariance has the noise in it."""
        x = self.draw_x(rng, tasks, points)
        inputs = torch.from_numpy(x)
        covariance = self.kernel(inputs, inputs) + self.noise_std**2 * torch.eye(points, dtype=inputs.dtype)
        root = torch.linalg.cholesky(covariance).numpy()
        return x, np.einsum("tpq,tq->tp", root, rng.standard_normal((tasks, points)))
