"""Statistics against scipy, an analysis of variance written with loops, numbers worked out by hand, and simulation."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from mlpip_bench.records.statistics import (
    bounds_of,
    combined,
    difference,
    estimate,
    exact_mean,
    holm,
    mean_ci95,
    mean_over_seeds,
    verdict,
    welch,
)
from mlpip_bench.utils.errors import UserError

RNG = np.random.default_rng(0)
SHARE = bounds_of("fraction")

# ------------------------------------------------------------------------------------------------ one training


@pytest.mark.parametrize("tasks", [2, 5, 600])
def test_the_difference_of_two_trained_models_is_scipys(tasks):
    level = RNG.normal(size=tasks)  # that both share, so that pairing matters
    a, b = level + RNG.normal(0.1, 0.2, tasks), level + RNG.normal(0, 0.3, tasks)
    found = difference([a.tolist()], [b.tolist()])
    expected = stats.ttest_rel(a, b)
    low, high = expected.confidence_interval(0.95)
    assert (found.mean - found.ci95, found.mean + found.ci95) == pytest.approx((low, high))
    assert found.p == pytest.approx(expected.pvalue)
    back = difference([b.tolist()], [a.tolist()])
    assert (back.mean, back.ci95, back.p) == pytest.approx((-found.mean, found.ci95, found.p))


def test_one_task_has_no_interval_and_unlike_tasks_are_not_paired():
    single = difference([[0.75]], [[0.5]])
    assert (single.mean, single.ci95, math.isnan(single.p)) == (0.25, math.inf, True)
    with pytest.raises(UserError, match=r"task by task only .* these have 1 and 2 scores\. Run them again"):
        difference([[0.1, 0.2]], [[0.1]])
    with pytest.raises(UserError, match="these have 2 and 3 scores"):
        mean_over_seeds([(0.1, 0.2), (0.1, 0.2, 0.3)])


def test_seeds_are_averaged_task_by_task():
    assert mean_over_seeds([(1.0, 2.0, 3.0), (3.0, 2.0, 5.0)]) == [2.0, 2.0, 4.0]


def test_the_unpaired_difference_is_welchs():
    a, b = RNG.normal(0, 1, 40).tolist(), RNG.normal(1, 2, 25).tolist()
    expected = stats.ttest_ind(b, a, equal_var=False)
    low, high = expected.confidence_interval(0.95)
    found = welch([a], [b])
    assert (found.mean - found.ci95, found.mean + found.ci95) == pytest.approx((low, high))
    assert found.p == pytest.approx(expected.pvalue)
    assert welch([[0.5]], [[0.5, 0.6]]).ci95 == math.inf


# ------------------------------------------------------------------------------------------ trainings and tasks


def anova(scores) -> tuple[float, float, float]:
    """Mean squares of rows, columns and residual, as a textbook has them, by loops over the cells."""
    rows, columns = len(scores), len(scores[0])
    grand = sum(map(sum, scores)) / (rows * columns)
    row = [sum(line) / columns for line in scores]
    column = [sum(line[j] for line in scores) / rows for j in range(columns)]
    residual = sum((scores[i][j] - row[i] - column[j] + grand) ** 2 for i in range(rows) for j in range(columns))
    return (
        columns * sum((m - grand) ** 2 for m in row) / (rows - 1),
        rows * sum((m - grand) ** 2 for m in column) / (columns - 1),
        residual / ((rows - 1) * (columns - 1)),
    )


@pytest.mark.parametrize(("trainings", "tasks"), [(2, 7), (3, 40), (10, 5)])
def test_the_interval_over_trainings_and_tasks_is_that_of_two_way_random_effects(trainings, tasks):
    scores = RNG.normal(0, 1, (trainings, 1)) + RNG.normal(0, 0.5, (1, tasks)) + RNG.normal(0, 0.3, (trainings, tasks))
    seed, task, rest = anova(scores.tolist())
    assert seed > rest
    total = seed + task - rest
    freedom = total**2 / (seed**2 / (trainings - 1) + task**2 / (tasks - 1) + rest**2 / ((trainings - 1) * (tasks - 1)))
    found = estimate(scores.tolist())
    assert found.mean == pytest.approx(scores.mean())
    assert found.freedom == pytest.approx(freedom)
    half_width = stats.t.ppf(0.975, freedom) * (total / (trainings * tasks)) ** 0.5
    assert found.ci95 == pytest.approx(half_width)
    assert found.p == pytest.approx(
        2 * stats.t.sf(abs(found.mean) / (half_width / stats.t.ppf(0.975, freedom)), freedom)
    )
    assert (found.trainings, found.tasks) == (trainings, tasks)


def test_by_hand_two_trainings_and_two_tasks():
    # means of trainings 2 and 4, of tasks 1.5 and 4.5: MS 4, 9, 1; (4 + 9 - 1) / 4 = 3
    found = estimate([[0.0, 4.0], [3.0, 5.0]])
    assert (found.mean, found.standard_error**2) == pytest.approx((3.0, 3.0))
    assert found.freedom == pytest.approx(144 / (16 + 81 + 1))


def test_trainings_that_differ_by_less_than_the_residual_leave_the_interval_over_tasks():
    same = [[0.1, 0.5, 0.9, 0.3], [0.3, 0.3, 0.8, 0.4]]  # unlike task by task, with like means
    seed, _, rest = anova(same)
    assert seed < rest
    found = estimate(same)
    assert (found.mean, found.ci95) == pytest.approx(mean_ci95(mean_over_seeds(same)))


def test_a_difference_of_methods_is_paired_over_trainings_and_tasks():
    a, b = RNG.normal(size=(3, 20)), RNG.normal(size=(3, 20))
    found, expected = difference(a.tolist(), b.tolist()), estimate((a - b).tolist())
    assert (found.mean, found.ci95, found.p) == pytest.approx((expected.mean, expected.ci95, expected.p))


def simulated(trainings: int, tasks: int, spread: float, draws: int) -> list[tuple[float, float, float]]:
    """Mean, half-width and p of measured methods whose true mean is zero."""
    rng = np.random.default_rng([trainings, tasks, int(1e4 * spread)])
    found = []
    for _ in range(draws):
        effects = rng.normal(0, spread, (trainings, 1)) + rng.normal(0, 0.05, (1, tasks))
        one = estimate(effects + rng.normal(0, 0.05, (trainings, tasks)))
        found.append((one.mean, one.ci95, one.p))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("trainings", [3, 5, 10])
@pytest.mark.parametrize("spread", [0.0, 0.001, 0.005, 0.02, 0.1])
def test_simulated_intervals_cover_and_verdicts_are_seldom_false(trainings, spread):
    found = simulated(trainings, 200, spread, 4000)
    covered = np.mean([abs(mean) <= ci95 for mean, ci95, _ in found])
    false = np.mean([verdict(mean, p, "higher") != "undecided" for mean, _, p in found])
    assert 0.92 <= covered <= 0.98, covered
    assert false <= 0.08, false


@pytest.mark.slow
@pytest.mark.parametrize("accuracy", [0.55, 0.9, 0.97])
def test_simulated_intervals_over_tasks_cover(accuracy):
    rng = np.random.default_rng(1)
    draws = [rng.binomial(75, rng.beta(20 * accuracy, 20 * (1 - accuracy), 300)) / 75 for _ in range(4000)]
    found = [estimate([scores.tolist()], SHARE) for scores in draws]
    covered = np.mean([abs(one.mean - accuracy) <= one.ci95 for one in found])
    assert 0.93 <= covered <= 0.97, covered


@pytest.mark.slow
@pytest.mark.parametrize(("queries", "tasks"), [(1, 100), (5, 100), (5, 40)])
def test_near_all_right_the_exact_bound_covers_where_students_t_does_not(queries, tasks):
    rng, accuracy = np.random.default_rng(2), 0.997
    draws = [(rng.binomial(queries, accuracy, tasks) / queries).tolist() for _ in range(4000)]
    plain = np.mean([abs(mean - accuracy) <= ci95 for mean, ci95 in map(mean_ci95, draws)])
    exact = np.mean([abs(one.mean - accuracy) <= one.ci95 for one in (estimate([s], SHARE) for s in draws)])
    assert plain < 0.80
    assert exact >= 0.95


# ------------------------------------------------------------------------------------------------- exact bounds


def test_where_all_tasks_score_the_same_the_bound_is_that_of_none_of_n():
    found = estimate([[1.0] * 600], SHARE)
    assert found.ci95 == pytest.approx(1 - stats.binomtest(600, 600).proportion_ci(0.95, "exact").low)
    assert estimate([[0.5] * 10], SHARE).ci95 == pytest.approx(0.5 * (1 - 0.025**0.1))
    assert estimate([[1.0] * 600] * 3, SHARE).ci95 == found.ci95  # more trainings are no more tasks
    assert estimate([[2.5] * 10]).ci95 == 0.0  # without bounds there is none


@pytest.mark.parametrize("right", [1, 97, 99])
def test_all_or_nothing_scores_have_the_interval_of_clopper_and_pearson(right):
    exact = stats.binomtest(right, 100).proportion_ci(0.95, "exact")
    found = estimate([[1.0] * right + [0.0] * (100 - right)], SHARE)
    assert found.ci95 == pytest.approx(max(exact.high - right / 100, right / 100 - exact.low))


def test_a_difference_of_rounding_size_is_no_verdict():
    a = RNG.uniform(0.5, 1, 50)
    rounded = a * (1 + 1e-7)
    assert stats.ttest_rel(rounded, a).pvalue < 0.001
    found = difference([rounded.tolist()], [a.tolist()])
    assert found.mean == 0.0
    assert verdict(found.mean, found.p, "higher") == "undecided"
    other = difference([(a * (1 + 1e-5)).tolist()], [a.tolist()])
    assert verdict(other.mean, other.p, "higher") == "better"


def test_two_tasks_with_one_difference_are_no_verdict_and_six_hundred_are():
    for bounds in (None, SHARE):
        found = difference([[0.5, 0.75]], [[0.25, 0.5]], bounds)
        assert found.mean == 0.25
        assert verdict(found.mean, found.p, "higher") == "undecided"
    many = difference([[0.75] * 600], [[0.5] * 600], SHARE)
    assert verdict(many.mean, many.p, "higher") == "better"
    assert many.mean > many.ci95


# ---------------------------------------------------------------------------------------- verdicts and corrections


@pytest.mark.parametrize(
    ("mean", "p", "higher", "lower"),
    [
        (0.2, 0.01, "better", "worse"),
        (-0.2, 0.049, "worse", "better"),
        (0.1, 0.05, "undecided", "undecided"),
        (0.1, math.nan, "undecided", "undecided"),
        (math.nan, math.nan, "undecided", "undecided"),
    ],
)
def test_the_verdict_follows_the_test_and_the_direction(mean, p, higher, lower):
    assert verdict(mean, p, "higher") == higher
    assert verdict(mean, p, "lower") == lower
    assert verdict(mean, p, "neither") == ("undecided" if higher == "undecided" else "differs")


def test_practical_equivalence_is_scipys_two_one_sided_tests():
    a, b = RNG.normal(0.5, 0.01, 200), RNG.normal(0.5, 0.01, 200)
    found = difference([a.tolist()], [b.tolist()])
    for margin in (0.0005, 0.003):
        sides = [
            stats.ttest_1samp(a - b, -margin, alternative="greater"),
            stats.ttest_1samp(a - b, margin, alternative="less"),
        ]
        assert found.p_within(margin) == pytest.approx(max(side.pvalue for side in sides))
    assert found.p_within(0.003) < 0.05 < found.p_within(0.0005)
    assert verdict(found.mean, 0.5, "higher", found.p_within(0.003), "0.3 points") == "equal within 0.3 points"
    assert verdict(0.001, 0.001, "higher", 0.001, "0.3 points") == "equal within 0.3 points"  # shown, and small
    same = difference([[1.0] * 600], [[1.0] * 600], SHARE)
    assert same.p_within(0.01) == pytest.approx(0.99**600)
    assert same.p_within(0.004) > 0.05


def test_holm_by_hand_leaves_out_what_was_not_tested():
    # sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1: 0.02, 0.03, 0.06, 0.04, the last raised to the one before
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    found = holm([0.01, math.nan, 0.04])
    assert (found[0], found[2], math.isnan(found[1])) == (0.02, 0.04, True)
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_independent_estimates_add_as_their_variances():
    a, b = (estimate([RNG.normal(size=30).tolist()]) for _ in range(2))
    found = combined([a, b], [0.5, 0.5])
    assert found.mean == pytest.approx((a.mean + b.mean) / 2)
    assert found.standard_error == pytest.approx(math.hypot(a.standard_error, b.standard_error) / 2)
    squared = [e.standard_error**2 for e in (a, b)]
    assert found.freedom == pytest.approx(sum(squared) ** 2 / sum(s**2 / 29 for s in squared))


@pytest.mark.parametrize("number", [1, 2, 75, 600])
@pytest.mark.parametrize("kind", ["share", "loss", "wide", "canceling", "tiny", "zero"])
def test_a_mean_is_that_of_the_exact_sum(kind, number):
    chance = np.random.default_rng(number)
    numbers = {
        "share": np.round(chance.beta(9, 1, number) * 75) / 75,
        "loss": chance.gamma(2, 0.1, number),
        "wide": chance.normal(size=number) * 10.0 ** chance.integers(-90, 90, number),
        "canceling": np.concatenate([found := chance.normal(size=number), 1e-17 - found]),
        "tiny": chance.normal(size=number) * 1e-310,
        "zero": np.zeros(number),
    }[kind]
    exact = sum(map(Fraction, numbers.tolist()), Fraction())
    assert exact_mean(numbers) == float(exact) / len(numbers)


def test_a_mean_of_what_is_no_number_is_none():
    assert math.isnan(exact_mean([1.0, math.nan]))
