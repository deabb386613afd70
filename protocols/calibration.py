"""Calibration: do the predictive probabilities mean what they say? Expected calibration error and Brier score.

References: Guo, Pleiss, Sun & Weinberger, On Calibration of Modern Neural Networks, ICML 2017 (ECE, 15 bins);
Brier, Verification of Forecasts Expressed in Terms of Probability, Monthly Weather Review 1950.

The ECE is sum_b (n_b / n) |accuracy of b - mean confidence of b| over 15 equal bins b of the top probability,
which pool the queries of all test tasks; :data:`mlpip_bench.evaluation.metrics.ECE` says how it is split into
scores of tasks. The bins are kept with the scores, for the reliability diagram. The Brier score is 1/M sum_m
sum_c (p(c | x_m, D) - [c = y_m])^2.
"""

from __future__ import annotations

import torch
from torch.distributions import Categorical

from mlpip_bench.evaluation.metrics import BRIER, ECE, reliability
from mlpip_bench.evaluation.predict import score
from mlpip_bench.evaluation.protocol import EvalProtocol, Evaluation
from mlpip_bench.records.record import Scores


class Calibration(EvalProtocol):
    """Expected calibration error and Brier score on the bench's fixed test tasks."""

    description = "gap between confidence and accuracy (15 bins over all queries), and squared error of probabilities"
    metrics = (ECE, BRIER)
    ranges = False  # a bin's error is split into scores of tasks that have as many queries

    def measure(self, evaluation: Evaluation) -> list[Scores]:
        """One score a test task; a single task's ECE score may be negative."""
        probs = torch.cat([predictive.probs for predictive, _ in evaluation.predictions])  # type: ignore[attr-defined]
        y = torch.cat([y for _, y in evaluation.predictions])
        pooled = Categorical(probs, validate_args=False)
        ece = evaluation.labeled(ECE, score(ECE, [(pooled, y)]), detail=reliability(pooled, y))
        return [ece, *evaluation.scores((BRIER,))]
