"""Paired statistics against scipy and numbers worked out by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from mlpip_bench.records.statistics import mean_over_seeds, paired_difference, unpaired_ci95, verdict
from mlpip_bench.utils.errors import UserError

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("tasks", [2, 5, 600])
def test_the_paired_difference_is_scipys(tasks):
    level = RNG.normal(size=tasks)  # that both share, so that pairing matters
    a, b = level + RNG.normal(0.1, 0.2, tasks), level + RNG.normal(0, 0.3, tasks)
    mean, ci95 = paired_difference(a.tolist(), b.tolist())
    low, high = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert (mean - ci95, mean + ci95) == pytest.approx((low, high))
    back, same = paired_difference(b.tolist(), a.tolist())
    assert (back, same) == pytest.approx((-mean, ci95))


def test_one_task_has_no_interval_and_unlike_tasks_are_not_paired():
    assert paired_difference([0.75], [0.5]) == (0.25, math.inf)
    with pytest.raises(UserError, match=r"task by task only .* these have 1 and 2 scores\. Run them again"):
        paired_difference([0.1, 0.2], [0.1])
    with pytest.raises(UserError, match="these have 2 and 3 scores"):
        mean_over_seeds([(0.1, 0.2), (0.1, 0.2, 0.3)])


def test_the_unpaired_interval_ignores_what_the_tasks_share():
    a, b = RNG.normal(size=400), RNG.normal(size=400)
    shared = RNG.normal(0, 10, size=400)
    welch = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert unpaired_ci95(a.tolist(), b.tolist()) == pytest.approx((welch.high - welch.low) / 2, rel=2e-3)
    x, y = (a + shared).tolist(), (b + shared).tolist()
    assert paired_difference(x, y) == pytest.approx(paired_difference(a.tolist(), b.tolist()))
    assert unpaired_ci95(x, y) > 5 * paired_difference(x, y)[1]


def test_seeds_are_averaged_task_by_task():
    assert mean_over_seeds([(1.0, 2.0, 3.0), (3.0, 2.0, 5.0)]) == [2.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("mean", "ci95", "higher", "lower"),
    [
        (0.2, 0.1, "better", "worse"),
        (-0.2, 0.1, "worse", "better"),
        (0.1, 0.1, "unclear", "unclear"),  # zero is at its end, not outside
        (-0.1, 0.3, "unclear", "unclear"),
        (0.0, 0.0, "unclear", "unclear"),
        (0.1, 0.0, "better", "worse"),
        (5.0, math.inf, "unclear", "unclear"),
        (math.nan, math.inf, "unclear", "unclear"),
    ],
)
def test_the_verdict_follows_the_interval_and_the_direction(mean, ci95, higher, lower):
    assert verdict(mean, ci95, "higher") == higher
    assert verdict(mean, ci95, "lower") == lower
