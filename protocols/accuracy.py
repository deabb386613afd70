"""Accuracy: share of queries whose class has the largest mean predictive probability (paper, Table 3).

1/M sum_m [argmax_c p(c | x_m, D) = y_m]. The argmax is that of the mean predictive probability over samples
of psi, not of averaged logits.
"""

from __future__ import annotations

from mlpip_bench.evaluation.metrics import ACCURACY
from mlpip_bench.evaluation.protocol import EvalProtocol, Evaluation
from mlpip_bench.records.record import Scores


class Accuracy(EvalProtocol):
    """Accuracy on the bench's fixed test tasks."""

    description = "share of queries classified right, by the argmax of the mean predictive probability"
    metrics = (ACCURACY,)
    default = True

    def measure(self, evaluation: Evaluation) -> list[Scores]:
        """One accuracy a test task."""
        return evaluation.scores(self.metrics)
