"""Means with intervals, paired and unpaired differences, and corrections for their number."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, Literal

from mlpip_bench.records.record import Better
from mlpip_bench.utils.errors import UserError


def _t() -> Any:
    """Student's t; here, since scipy.stats takes a second to import."""
    from scipy import stats

    return stats.t


def mean_ci95(per_task: Sequence[float]) -> tuple[float, float]:
    """Mean and Student-t 95 % half-width over tasks: t(0.975, n-1) s / sqrt(n), with ddof 1.

    Returns:
        The mean and the half-width; the half-width of a single task is infinite, since one score
        says nothing of its spread.
    """
    n = len(per_task)
    mean = math.fsum(per_task) / n
    if n == 1:
        return mean, math.inf
    variance = math.fsum((s - mean) ** 2 for s in per_task) / (n - 1)
    return mean, float(_t().ppf(0.975, n - 1)) * math.sqrt(variance / n)


def mean_over_seeds(runs: Sequence[Sequence[float]]) -> list[float]:
    """Scores ``[seed, task]`` to their means ``[task]``: the seeds of a bench share its test tasks."""
    _check_tasks(runs)
    return [statistics.fmean(scores) for scores in zip(*runs, strict=True)]


def paired_difference(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Mean of ``a - b`` and its Student-t 95 % half-width over the tasks that both were measured on (ddof 1).

    Args:
        a: one score a task.
        b: the other's scores of the same tasks, in the same order.

    Returns:
        In the unit of the scores; the half-width of a single task is infinite.

    Raises:
        UserError: they were not measured on the same number of tasks.
    """
    _check_tasks((a, b))
    return mean_ci95([x - y for x, y in zip(a, b, strict=True)])


def _check_tasks(runs: Sequence[Sequence[float]]) -> None:
    counts = {len(scores) for scores in runs}
    if len(counts) > 1:
        raise UserError(
            "scores are compared task by task only where all have one for each of the same test tasks; these have "
            f"{' and '.join(map(str, sorted(counts)))} scores. Run them again with one number of --test-tasks."
        )


def unpaired_ci95(a: Sequence[float], b: Sequence[float]) -> float:
    """95 % half-width of the difference of two means as if each had tasks of its own: ``sqrt(h_a^2 + h_b^2)``."""
    return math.hypot(mean_ci95(a)[1], mean_ci95(b)[1])


def verdict(mean: float, ci95: float, better: Better) -> Literal["better", "worse", "differs", "unclear"]:
    """What a difference says of the first of the two; ``unclear`` while zero is not outside its interval."""
    if not abs(mean) > ci95:  # so that a mean that is not a number is unclear, too
        return "unclear"
    if better == "neither":
        return "differs"
    return "better" if (mean > 0) == (better == "higher") else "worse"


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
    ci95 = float(_t().ppf(0.975, freedom)) * math.sqrt(sum(squared))
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
    return float(2 * _t().sf(abs(mean) / ci95 * _t().ppf(0.975, freedom), freedom))


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
