"""Accuracy: share of queries whose class has the largest mean predictive probability (paper, Table 3).

1/M sum_m [argmax_c p(c | x_m, D) = y_m]. The argmax is that of the mean predictive probability over samples
of psi, not of averaged logits.

Where each task has a way of its own (``omni2..20w1s``), accuracy above chance comes with it, (accuracy - 1/way) /
(1 - 1/way), and the detail ``ways`` has the way of each task.
"""

from __future__ import annotations

import dataclasses

from mlpip_bench.evaluation.metrics import ABOVE_CHANCE, ACCURACY
from mlpip_bench.evaluation.protocol import EvalProtocol, Evaluation
from mlpip_bench.records.record import Scores
from mlpip_bench.tasks.stream import OfShapes


class Accuracy(EvalProtocol):
    """Accuracy on the bench's fixed test tasks."""

    description = "share of queries classified right, by the argmax of the mean predictive probability"
    metrics = (ACCURACY, ABOVE_CHANCE)
    default = True

    def measure(self, evaluation: Evaluation) -> list[Scores]:
        """One accuracy a test task, and where ways vary, one above chance."""
        stream = evaluation.stream
        if not isinstance(stream, OfShapes):
            return evaluation.scores((ACCURACY,))
        ways = tuple(float(shape.way) for shape in stream.shapes(0, evaluation.tasks))
        scores = evaluation.scores(self.metrics)
        return [dataclasses.replace(score, detail={**score.detail, "ways": ways}) for score in scores]
