"""Search spaces of methods: which settings may be drawn for a tuned row, and from what."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from mlpip_bench.utils.seeding import seed_from


@dataclass(frozen=True)
class LogUniform:
    """A number whose logarithm is uniform.

    Attributes:
        low, high: the interval, both positive.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < math.inf:
            raise ValueError(f"a log-uniform interval must be positive and not empty; got {self.low} to {self.high}")

    def at(self, u: float) -> float:
        """The quantile ``u``, from 0 to 1, with three digits."""
        return float(f"{self.low * (self.high / self.low) ** u:.3g}")


@dataclass(frozen=True)
class OneOf:
    """One of some values, each as probable.

    Attributes:
        values: at least two.
    """

    values: tuple[Any, ...]

    def at(self, u: float) -> Any:
        """The quantile ``u``, from 0 to 1."""
        return self.values[min(int(u * len(self.values)), len(self.values) - 1)]


Space: TypeAlias = Mapping[str, LogUniform | OneOf]
"""By field of the training plan or of a method's settings; never of the budget, which is the same for all draws."""

BUDGET = ("iterations", "tasks_per_batch", "train_queries", "validate_every", "validation_tasks", "test_tasks")
"""Fields that no search space has."""


def drawn(space: Space, seed: int, draw: int) -> dict[str, Any]:
    """The values of a draw; of draw 0, which are the defaults, none.

    A value depends on the training seed, the draw and the setting's name alone: methods whose spaces agree in a
    setting try the same values of it.
    """
    if draw == 0:
        return {}
    return {name: choice.at(seed_from("tune", seed, draw, name) / 2**64) for name, choice in space.items()}
