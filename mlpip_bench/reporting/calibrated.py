"""The expected calibration error that a perfectly calibrated model would have: above zero, since bins are finite."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from mlpip_bench.records.record import Scores


def expected_ece(scores: Sequence[Scores]) -> float | None:
    """Mean over seeds of the expectation of sum_b (n_b / n) |accuracy of b - confidence of b| under calibration.

    Args:
        scores: of one configuration, one a seed.

    Returns:
        None where the scores are no ECE, or have no bins.
    """
    if not all(score.metric == "ece" and {"count", "confidence"} <= set(score.detail) for score in scores):
        return None
    return statistics.fmean(_expected(s.detail["count"], s.detail["confidence"]) for s in scores)


def _expected(counts: Iterable[Any], confidences: Iterable[Any]) -> float:
    pairs = [(int(n), float(p)) for n, p in zip(counts, confidences, strict=True) if n]
    return math.fsum(_mean_deviation(n, min(p, 1.0)) for n, p in pairs) / sum(n for n, _ in pairs)


def _mean_deviation(n: int, p: float) -> float:
    """E |X - n p| of a binomial X, in closed form (de Moivre 1730; Diaconis & Zabell, Statist. Sci. 6, 1991)."""
    if not 0 < p < 1:
        return 0.0
    v = math.floor(n * p) + 1
    choose = math.lgamma(n + 1) - math.lgamma(v + 1) - math.lgamma(n - v + 1)
    return 2 * v * math.exp(choose + v * math.log(p) + (n - v + 1) * math.log1p(-p))
