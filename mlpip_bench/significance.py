"""Which differences are real: t tests beside the intervals, and their correction for many comparisons."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from scipy import stats


def welch(a: Sequence[float], b: Sequence[float]) -> tuple[float, float, float]:
    """Welch's t interval and test of two samples of unequal variances (ddof 1, Welch-Satterthwaite degrees of freedom).

    Returns:
        Mean of ``b`` less mean of ``a``, its 95 % half-width, and the two-sided p value; without an interval where a
        sample has one score.
    """
    mean = statistics.fmean(b) - statistics.fmean(a)
    if min(len(a), len(b)) == 1:
        return mean, math.inf, math.nan
    squared = [statistics.variance(scores) / len(scores) for scores in (a, b)]  # standard errors of the two means
    if not any(squared):
        return mean, 0.0, float(mean == 0)
    freedom = sum(squared) ** 2 / sum(e**2 / (len(s) - 1) for e, s in zip(squared, (a, b), strict=True))
    ci95 = float(stats.t.ppf(0.975, freedom)) * math.sqrt(sum(squared))
    return mean, ci95, p_value(mean, ci95, freedom)


def p_value(mean: float, ci95: float, freedom: float) -> float:
    """Of the two-sided t test of a zero mean that goes with a 95 % half-width.

    Args:
        mean: what is tested.
        ci95: its Student-t half-width.
        freedom: degrees of freedom.

    Returns:
        Not a number where the half-width is infinite.
    """
    if not 0 < ci95 < math.inf:
        return math.nan if ci95 else float(mean == 0)
    return float(2 * stats.t.sf(abs(mean) / ci95 * stats.t.ppf(0.975, freedom), freedom))


def holm(p_values: Sequence[float]) -> list[float]:
    """P values corrected for their number by Holm's step-down method (Scand. J. Statist. 6, 1979), in their order.

    Those below a level are rejected with a chance of at most that level that any true hypothesis is among them,
    however the tests depend on each other.
    """
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = highest
    return corrected
