"""What is measured: functions (predictive distribution, targets) -> one score a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution


@dataclass(frozen=True)
class Metric:
    """A score with its unit and its direction.

    Attributes:
        name: lower case with underscores, as in the table's long form.
        unit: ``fraction``, ``nats per query``, ``seconds``, ...
        better: which way is good.
        score: (predictive with batch shape ``(task, point)``, targets ``[task, point]``) -> ``[task]``.
    """

    name: str
    unit: str
    better: Literal["higher", "lower"]
    score: Callable[[Distribution, Tensor], Float[Tensor, " task"]]


def _accuracy(predictive: Distribution, y: Tensor) -> Tensor:
    probs: Tensor = predictive.probs  # type: ignore[attr-defined]  # every distribution over classes has it
    return (probs.argmax(-1) == y).to(torch.float64).mean(-1)


def _nll(predictive: Distribution, y: Tensor) -> Tensor:
    log_density: Tensor = predictive.log_prob(y)
    return -log_density.mean(-1)


ACCURACY = Metric("accuracy", "fraction", "higher", _accuracy)
"""Share of queries whose class is the argmax of the mean predictive probability (not of mean raw logits)."""

NLL = Metric("nll", "nats per query", "lower", _nll)
"""Negative log predictive density, averaged over a task's queries (paper, Table 2)."""
