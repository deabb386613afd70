"""Paired statistics: all methods see the same fixed test tasks, so two of them are compared task by task."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

from mlpip_bench.errors import UserError
from mlpip_bench.results import Better, mean_ci95


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
