"""Negative log-likelihood: that of the queries under the predictive, in float64 (paper, Table 1).

-1/M sum_m log p(y_m | x_m, D). Guessing among C classes costs log C nats. With samples of psi, p is their
mean; their number L is shown in the tables.
"""

from __future__ import annotations

from mlpip_bench.evaluation.metrics import NLL
from mlpip_bench.evaluation.protocol import EvalProtocol, Evaluation
from mlpip_bench.records.record import Scores


class NegativeLogLikelihood(EvalProtocol):
    """Held-out log-loss on the bench's fixed test tasks."""

    description = "negative log predictive density of the queries; guessing among classes costs log(way) nats"
    metrics = (NLL,)
    handles = ("classification", "regression")
    default = True

    def measure(self, evaluation: Evaluation) -> list[Scores]:
        """One mean over queries a test task."""
        return evaluation.scores(self.metrics)
