"""Means with intervals over trainings and tasks, differences, what they decide, and corrections for their number."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from mlpip_bench.records.record import Better
from mlpip_bench.utils.errors import UserError

LEVEL = 0.05
"""Of all tests, after Holm's correction."""

ROUNDING = 1e-6
"""Relative; scores that agree to it are equal: machines round float32 differently, by like amounts on all tasks."""

Runs: TypeAlias = Sequence[Sequence[float]] | NDArray[np.float64]
"""Scores ``[training, task]`` of one configuration, all on the same test tasks."""

Bounds: TypeAlias = tuple[float, float] | None
_BOUNDS: Mapping[str, tuple[float, float]] = {"fraction": (0.0, 1.0)}


@functools.cache
def _t975(freedom: float) -> float:
    """The quantile of Student's t that a two-sided 95 % interval has."""
    from scipy import special  # here and below, since it takes time to import; scipy.stats takes four times as much

    return float(special.stdtrit(freedom, 0.975))


def _t_beyond(t: float, freedom: float) -> float:
    """The chance that Student's t is above a value."""
    from scipy import special

    return float(special.stdtr(freedom, -t))


def exact_mean(scores: Sequence[float] | NDArray[np.float64]) -> float:
    """The mean of finite numbers from their exact sum, as ``math.fsum`` has it, many of them in a fifth of the time.

    Of each number the digits down to a common one are taken, so few that their sum has no rounding; then of what
    remains, until nothing does (ExtractVector of Rump, Ogita & Oishi, SIAM J. Sci. Comput. 31, 2008).
    """
    rest = np.asarray(scores, dtype=np.float64).ravel()
    count, sums = len(rest), []
    while (largest := float(np.abs(rest).max())) > 0:
        above = 2.0 ** (math.frexp(largest)[1] + count.bit_length() + 1)  # twice what the sum can be
        leading = (rest + above) - above
        sums.append(float(leading.sum()))
        rest = rest - leading
    return math.fsum([*sums, float(rest.sum())]) / count  # the last is 0, or not a number where one was not


@dataclass(frozen=True)
class Estimate:
    """A mean with its uncertainty.

    Attributes:
        mean: in the unit of the scores.
        standard_error: of the mean; infinite where one task says nothing of its spread.
        freedom: degrees of freedom of Student's t.
        trainings, tasks: how many it is over. One training: the interval is over tasks, of this trained model alone.
        half_width: of the 95 % interval, where that is no Student-t one.
        reach: how far the mean may be from the farthest possible score, where all scores are the same; 0 where they
            are and the scores have no bounds; None where they differ.
    """

    mean: float
    standard_error: float
    freedom: float
    trainings: int = 1
    tasks: int = 1
    half_width: float | None = None
    reach: float | None = None

    @property
    def ci95(self) -> float:
        """Half-width of the 95 % interval; infinite where there is none."""
        if self.half_width is not None:
            return self.half_width
        if not math.isfinite(self.standard_error):
            return math.inf
        return _t975(self.freedom) * self.standard_error

    @property
    def p(self) -> float:
        """Of the two-sided test of a zero mean; not a number where there is no interval or no spread to test with."""
        if self.reach is not None:
            return min(1.0, 2 * self._beyond(abs(self.mean)))
        if not 0 < self.standard_error < math.inf:
            return math.nan
        return 2 * _t_beyond(abs(self.mean) / self.standard_error, self.freedom)

    def p_within(self, margin: float) -> float:
        """Of two one-sided tests of a mean that is ``margin`` or more away from zero (Schuirmann 1987)."""
        room = margin - abs(self.mean)
        if self.reach is not None:
            return self._beyond(room) if room > 0 else 1.0
        if not 0 < self.standard_error < math.inf:
            return math.nan
        return _t_beyond(room / self.standard_error, self.freedom)  # the larger of the two

    def _beyond(self, distance: float) -> float:
        """The chance that all tasks score the same though the true mean is ``distance`` away, at most."""
        if not self.reach:
            return math.nan
        return float(max(0.0, 1 - distance / self.reach)) ** self.tasks


def bounds_of(unit: str) -> Bounds:
    """The least and the greatest score that a unit allows, where it allows not every number."""
    return _BOUNDS.get(unit)


def estimate(runs: Runs, bounds: Bounds = None) -> Estimate:
    """Mean over trainings and tasks, with the uncertainty of both.

    With two or more trainings, two-way random effects, training x task, without repeats in a cell: SE^2 = (MS_training
    + MS_task - MS_residual) / (S n) for S trainings and n tasks, with Satterthwaite's degrees of freedom (Searle,
    Casella & McCulloch, Variance Components, 1992, ch. 4). Where MS_training is below MS_residual, nothing of a spread
    between trainings is seen, and the estimate is that over tasks, MS_task / (S n), with n - 1 degrees of freedom; it
    is never below that.

    With one training it is s / sqrt(n) over tasks, ddof 1. All-or-nothing scores have the exact binomial interval of
    Clopper and Pearson (Biometrika 26, 1934), of which the longer side is taken. Where all scores are the same, a task
    that would score otherwise has, at 95 %, at most the chance 1 - 0.025^(1/n) (the same interval, none of n tasks):
    the mean is off by at most this, times the distance to the farthest bound.

    Args:
        runs: a row a training.
        bounds: the least and the greatest possible score, if there are any.

    Raises:
        UserError: the trainings were not measured on the same number of tasks.
    """
    scores = _table(runs)
    trainings, tasks = scores.shape
    mean = exact_mean(scores)
    low, high = float(scores.min()), float(scores.max())
    if bounds and (low < bounds[0] or high > bounds[1]):
        bounds = None
    if tasks == 1:
        return Estimate(mean, math.inf, 0, trainings, tasks)
    if high - low <= ROUNDING**2 * max(1.0, abs(mean)):
        reach = max(bounds[1] - mean, mean - bounds[0]) if bounds else 0.0
        return Estimate(mean, 0.0, tasks - 1, trainings, tasks, (1 - 0.025 ** (1 / tasks)) * reach, reach)
    by_task = scores.mean(0)
    ms_task = trainings * float(by_task.var(ddof=1))
    squared, freedom = ms_task / scores.size, float(tasks - 1)
    half_width = _clopper_pearson(scores[0]) if bounds == (0, 1) and trainings == 1 else None
    if trainings > 1:
        by_training = scores.mean(1)
        ms_training = tasks * float(by_training.var(ddof=1))
        residual = scores - by_task - by_training[:, None] + mean
        both = (trainings - 1) * (tasks - 1)
        ms_residual = float((residual**2).sum()) / both
        if ms_training > ms_residual:
            total = ms_training + ms_task - ms_residual
            parts = ((ms_training, trainings - 1), (ms_task, tasks - 1), (ms_residual, both))
            squared, freedom = total / scores.size, total**2 / sum(ms**2 / f for ms, f in parts)
    return Estimate(mean, math.sqrt(squared), freedom, trainings, tasks, half_width)


def _clopper_pearson(scores: NDArray[np.float64]) -> float | None:
    """The longer side of the exact 95 % interval of a share; None where a score is neither 0 nor 1."""
    if not ((scores == 0) | (scores == 1)).all():
        return None
    from scipy import special

    right, wrong = int(scores.sum()), int((1 - scores).sum())
    low, high = special.betaincinv(right, wrong + 1, 0.025), special.betaincinv(right + 1, wrong, 0.975)
    return float(max(high - scores.mean(), scores.mean() - low))


def difference(a: Runs, b: Runs, bounds: Bounds = None) -> Estimate:
    """Mean of ``a - b`` over the trainings and tasks that both have, in the same order; see :func:`estimate`.

    Args:
        a: scores ``[training, task]``.
        b: the other's, of the same seeds and tasks.
        bounds: of the scores.

    Raises:
        UserError: they were not measured on the same tasks.
    """
    x, y = _table([*a, *b]).reshape(2, -1, len(a[0]))
    less = np.where(np.isclose(x, y, rtol=ROUNDING, atol=0), 0.0, x - y)
    reach = None if bounds is None else (bounds[0] - bounds[1], bounds[1] - bounds[0])
    return estimate(less, reach)


def welch(a: Runs, b: Runs) -> Estimate:
    """Mean of ``b`` less that of ``a`` for tasks that are not the same: unequal variances, Welch-Satterthwaite."""
    one, other = estimate(a), estimate(b)
    return combined([other, one], [1.0, -1.0])


def combined(parts: Sequence[Estimate], weights: Sequence[float]) -> Estimate:
    """A weighted sum of independent estimates, with Satterthwaite's degrees of freedom."""
    mean = math.fsum(w * e.mean for w, e in zip(weights, parts, strict=True))
    squared = [(w * e.standard_error) ** 2 for w, e in zip(weights, parts, strict=True)]
    total = sum(squared)
    freedom = sum(s**2 / e.freedom for s, e in zip(squared, parts, strict=True) if s and math.isfinite(s))
    trainings, tasks = (min(getattr(e, name) for e in parts) for name in ("trainings", "tasks"))
    half_width = None
    if any(e.half_width is not None for e in parts):  # exact ones have no standard error that says as much
        half_width = math.hypot(*(w * e.ci95 for w, e in zip(weights, parts, strict=True)))
    return Estimate(mean, math.sqrt(total), total**2 / freedom if freedom else 1, trainings, tasks, half_width)


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
    return mean, _t975(n - 1) * math.sqrt(variance / n)


def mean_over_seeds(runs: Runs) -> list[float]:
    """Scores ``[seed, task]`` to their means ``[task]``: the seeds of a bench share its test tasks."""
    return [math.fsum(scores) / len(runs) for scores in _table(runs).T.tolist()]


def _table(runs: Runs) -> NDArray[np.float64]:
    counts = {len(scores) for scores in runs}
    if len(counts) > 1:
        raise UserError(
            "scores are compared task by task only where all have one for each of the same test tasks; these have "
            f"{' and '.join(map(str, sorted(counts)))} scores. Run them again with one number of --test-tasks."
        )
    return np.asarray(runs, dtype=np.float64)


def verdict(mean: float, p: float, better: Better, p_equal: float = math.nan, margin: str = "") -> str:
    """What a difference says of the first of the two: ``undecided`` unless a test rejects at 5 %.

    Args:
        mean: the difference.
        p: of the test that it is zero, corrected for the number of differences.
        better: whether a high score is good.
        p_equal: of the tests that it is beyond the margin, corrected.
        margin: what is practically equal, in words.

    Returns:
        ``equal within MARGIN`` where the difference is shown to be smaller than what matters, be it zero or not; else
        ``better``, ``worse``, or ``differs`` for scores that have no direction; else ``undecided``.
    """
    if p_equal < LEVEL:
        return f"equal within {margin}"
    if not p < LEVEL:  # so that a p that is not a number decides nothing
        return "undecided"
    if better == "neither":
        return "differs"
    return "better" if (mean > 0) == (better == "higher") else "worse"


def holm(p_values: Sequence[float]) -> list[float]:
    """P values corrected for their number by Holm's step-down method (Scand. J. Statist. 6, 1979), in their order.

    Those below a level are rejected with a chance of at most that level that any true hypothesis is among them,
    however the tests depend on each other. What is not a number was not tested: it stays, and does not count.
    """
    tested = [i for i, p in enumerate(p_values) if not math.isnan(p)]
    corrected = list(p_values)
    highest = 0.0
    for rank, i in enumerate(sorted(tested, key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(tested) - rank) * p_values[i]))
        corrected[i] = highest
    return corrected
