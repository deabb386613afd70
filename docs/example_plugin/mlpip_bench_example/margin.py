"""Margin: by how much the most probable class leads the next, on average over the queries.

1/M sum_m p(first | x_m, D) - p(second | x_m, D), whether the first is right or not: 0 where a method guesses, 1 where
it is sure.
"""

from __future__ import annotations

from torch import Tensor
from torch.distributions import Distribution

from mlpip_bench.evaluation.metrics import Metric
from mlpip_bench.evaluation.protocol import EvalProtocol, Evaluation
from mlpip_bench.records.record import Scores


def _margin(predictive: Distribution, y: Tensor) -> Tensor:  # noqa: ARG001  # the right class plays no part
    first, second = predictive.probs.topk(2).values.unbind(-1)  # type: ignore[attr-defined]
    mean: Tensor = (first - second).mean(-1)
    return mean


MARGIN = Metric("margin", "probability", "neither", _margin)
"""Probability of the most probable class, minus that of the next."""


class Margin(EvalProtocol):
    """Margin on the bench's fixed test tasks."""

    description = "lead of the most probable class over the next, right or not"
    metrics = (MARGIN,)

    def measure(self, evaluation: Evaluation) -> list[Scores]:
        """One mean over queries a test task."""
        return evaluation.scores(self.metrics)
