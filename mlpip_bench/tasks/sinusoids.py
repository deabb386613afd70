"""Sine curves, the regression of MAML's paper (Finn, Abbeel & Levine, ICML 2017, section 5.1).

``y = amplitude * sin(x - phase) + noise_std * e``; the amplitude is uniform in [0.1, 5], the phase in [0, pi], and x in
[-5, 5]. The minus is that of their code. They have no noise; here there is some, so that there is a likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mlpip_bench.tasks.regression import Curves


@dataclass(frozen=True)
class Sinusoids(Curves):
    """The model.

    Attributes:
        noise_std: standard deviation of y given the curve.
        dimension: of x.
    """

    noise_std: float
    dimension: int = 1
    name: ClassVar[str] = "sinusoids"
    low: ClassVar[float] = -5.0
    high: ClassVar[float] = 5.0

    @property
    def options(self) -> Mapping[str, str | int | float]:
        """Its parameters."""
        return {"noise_std": self.noise_std, "version": 1}

    def draw(
        self, rng: np.random.Generator, tasks: int, points: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Inputs ``[task, point, 1]`` and targets ``[task, point]``."""
        amplitude = rng.uniform(0.1, 5.0, (tasks, 1))
        phase = rng.uniform(0.0, math.pi, (tasks, 1))
        x = self.draw_x(rng, tasks, points)
        curve = amplitude * np.sin(x[..., 0] - phase)
        return x, curve + self.noise_std * rng.standard_normal(curve.shape)
