"""Tasks from a model that is known: Bayesian linear regression, whose posterior has a closed form.

``psi ~ N(0, I)``, one weight an input and a bias; ``x ~ N(0, I)``; ``y = psi . (x, 1) + noise_std * e``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mlpip_bench.tasks.regression import FunctionModel


@dataclass(frozen=True)
class LinearGaussian(FunctionModel):
    """The model.

    Attributes:
        dimension: of x.
        noise_std: standard deviation of y given psi and x.
    """

    dimension: int
    noise_std: float
    name: ClassVar[str] = "linear-gaussian"

    @property
    def options(self) -> Mapping[str, str | int | float]:
        """Its parameters."""
        return {"dimension": self.dimension, "noise_std": self.noise_std, "version": 1}

    def draw(
        self, rng: np.random.Generator, tasks: int, points: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Inputs ``[task, point, dimension]`` and targets ``[task, point]``."""
        psi = rng.standard_normal((tasks, self.dimension + 1))
        x = rng.standard_normal((tasks, points, self.dimension))
        mean = np.einsum("tpd,td->tp", x, psi[:, :-1]) + psi[:, -1:]
        return x, mean + self.noise_std * rng.standard_normal(mean.shape)
