"""Calibration against plain NumPy loops, closed forms, scipy and a jackknife."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mlpip_bench.protocols.calibration import Calibration
from scipy import stats
from torch.distributions import Categorical

from mlpip_bench.evaluation.metrics import BRIER, ECE, reliability
from mlpip_bench.evaluation.protocol import Evaluation
from mlpip_bench.tasks.batch import TaskShape
from mlpip_bench.utils.errors import TrialError


def simulated(seed: int, tasks: int, points: int, way: int = 5, temperature: float = 1.0):
    """Probabilities and labels drawn from them: calibrated at temperature 1, over-confident below it."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(tasks, points, way, generator=generator, dtype=torch.float64)
    y = torch.multinomial(logits.softmax(-1).flatten(0, 1), 1, generator=generator).reshape(tasks, points)
    return Categorical(logits=logits / temperature), y


def certain(confidence: float, right: list[list[int]]) -> tuple[Categorical, torch.Tensor]:
    """The same two-class prediction for every query; ``right`` tells which hit."""
    y = 1 - torch.tensor(right)
    probs = torch.tensor([confidence, 1 - confidence], dtype=torch.float64).expand(*y.shape, 2)
    return Categorical(probs), y


def bins_by_loop(probs: np.ndarray, y: np.ndarray, bins: int = 15) -> list[tuple[int, float, float]]:
    """Count, mean confidence and accuracy of each bin, as Guo et al. 2017 write them."""
    found = []
    for b in range(bins):
        confidences, hits = [], []
        for p, label in zip(probs.reshape(-1, probs.shape[-1]), y.flatten(), strict=True):
            if b / bins < p.max() <= (b + 1) / bins:
                confidences.append(p.max())
                hits.append(float(p.argmax() == label))
        found.append((len(hits), float(np.mean(confidences or [0])), float(np.mean(hits or [0]))))
    return found


def ece_by_loop(probs: np.ndarray, y: np.ndarray) -> float:
    return sum(n * abs(confidence - accuracy) for n, confidence, accuracy in bins_by_loop(probs, y)) / y.size


# ------------------------------------------------------------------------------------------------------------- ECE


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_mean_over_tasks_is_the_pooled_ece(temperature):
    predictive, y = simulated(0, 40, 15, temperature=temperature)
    scores = ECE.score(predictive, y)
    assert scores.shape == (40,)
    assert float(scores.mean()) == pytest.approx(ece_by_loop(predictive.probs.numpy(), y.numpy()), abs=1e-12)


def test_a_calibrated_model_scores_almost_nothing_and_an_over_confident_one_does_not():
    assert float(ECE.score(*simulated(1, 600, 75)).mean()) < 0.01
    assert float(ECE.score(*simulated(1, 600, 75, temperature=0.5)).mean()) > 0.1


def test_ece_of_a_constant_confidence_is_its_distance_from_accuracy():
    predictive, y = certain(0.9, [[1, 1, 1, 1, 1], [1, 0, 0, 0, 0]])
    scores = ECE.score(predictive, y)
    assert float(scores.mean()) == pytest.approx(0.9 - 0.6)
    assert scores.tolist() == pytest.approx([0.9 - 1.0, 0.9 - 0.2])  # a task on the other side of its bin is negative


@pytest.mark.parametrize(("label", "error"), [(0, 0.0), (1, 1.0)])
def test_confidence_one_is_in_the_last_bin(label, error):
    predictive, y = Categorical(torch.tensor([[[1.0, 0.0]]], dtype=torch.float64)), torch.tensor([[label]])
    assert ECE.score(predictive, y).tolist() == [error]
    assert reliability(predictive, y)["count"] == (0.0,) * 14 + (1.0,)


def test_confidence_zero_is_in_the_first_bin():
    predictive, y = (
        SimpleNamespace(probs=torch.zeros(1, 1, 2, dtype=torch.float64), batch_shape=(1, 1), event_shape=()),
        torch.tensor([[0]]),
    )
    assert ECE.score(predictive, y).tolist() == [1.0]
    assert reliability(predictive, y)["count"] == (1.0,) + (0.0,) * 14


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_the_pooled_ece_does_not_know_which_task_a_query_is_of(seed, tasks):
    predictive, y = simulated(seed, 6, 8, way=3, temperature=0.7)
    order = torch.randperm(48, generator=torch.Generator().manual_seed(seed))
    shuffled = Categorical(predictive.probs.flatten(0, 1)[order].reshape(tasks, -1, 3))
    assert float(ECE.score(shuffled, y.flatten()[order].reshape(tasks, -1)).mean()) == pytest.approx(
        float(ECE.score(predictive, y).mean()), abs=1e-12
    )


# -------------------------------------------------------------------------------------------------------- the bins


def test_bins_are_those_of_a_loop():
    predictive, y = simulated(2, 30, 15)
    detail = reliability(predictive, y)
    expected = bins_by_loop(predictive.probs.numpy(), y.numpy())
    assert expected[0] == (0, 0.0, 0.0)  # there is an empty bin: the top probability of 5 is at least 0.2
    for name, values in zip(("count", "confidence", "accuracy"), zip(*expected, strict=True), strict=True):
        assert detail[name] == pytest.approx(values, abs=1e-12)
    assert detail["accuracy_ci95"][0] == 0


def test_the_interval_of_a_bin_that_holds_everything_is_student_t_over_tasks():
    right = [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]]
    low, high = stats.t.interval(0.95, 2, loc=0.5, scale=stats.sem([0.75, 0.25, 0.5]))
    assert reliability(*certain(0.9, right))["accuracy_ci95"][13] == pytest.approx((high - low) / 2)


def test_the_interval_of_a_bin_is_that_of_a_jackknife_over_tasks():
    predictive, y = simulated(3, 400, 15, temperature=0.5)
    confidence, choice = predictive.probs.max(-1)
    detail = reliability(predictive, y)
    checked = 0
    for b in range(15):
        in_bin = ((confidence > b / 15) & (confidence <= (b + 1) / 15)).numpy()
        right = (in_bin & (choice == y).numpy()).sum(1)
        n = in_bin.sum(1)
        if n.sum() < 300:
            continue
        checked += 1
        tasks = np.count_nonzero(n)
        left_out = (right.sum() - right[n > 0]) / (n.sum() - n[n > 0])
        error = math.sqrt((tasks - 1) / tasks * np.square(left_out - left_out.mean()).sum())
        assert detail["accuracy_ci95"][b] == pytest.approx(stats.t.ppf(0.975, tasks - 1) * error, rel=0.02)
    assert checked >= 5


def test_tasks_without_queries_in_a_bin_do_not_narrow_its_interval():
    (high, y), (low, other) = certain(0.9, [[1, 1, 1, 0], [1, 0, 0, 0]]), certain(0.6, [[1, 0, 1, 0]] * 9)
    both = Categorical(torch.cat([high.probs, low.probs]))
    alone = reliability(high, y)["accuracy_ci95"][13]
    assert reliability(both, torch.cat([y, other]))["accuracy_ci95"][13] == pytest.approx(alone)


@pytest.mark.parametrize("hit", [0, 1])
def test_a_bin_with_all_right_or_all_wrong_has_the_exact_binomial_interval_of_its_tasks(hit):
    detail = reliability(*certain(0.9, [[hit] * 3] * 7))
    interval = stats.binomtest(7 * hit, 7).proportion_ci(0.95, method="exact")
    assert detail["accuracy_ci95"][13] == pytest.approx(interval.high - interval.low)


def test_a_bin_with_queries_of_one_task_says_nothing():
    assert reliability(*certain(0.9, [[1, 0]]))["accuracy_ci95"][13] == 1.0


# ------------------------------------------------------------------------------------------------------------ Brier


def test_brier_is_the_sum_of_squares_over_classes():
    predictive, y = simulated(4, 3, 7)
    difference = predictive.probs.numpy() - np.eye(5)[y.numpy()]
    assert BRIER.score(predictive, y).tolist() == pytest.approx((difference**2).sum(-1).mean(-1).tolist())


def test_brier_of_two_classes_and_of_guessing():
    assert BRIER.score(*certain(0.9, [[1, 0]])).tolist() == pytest.approx([(2 * 0.1**2 + 2 * 0.9**2) / 2])
    guess = Categorical(torch.full((1, 4, 5), 0.2, dtype=torch.float64))
    assert BRIER.score(guess, torch.tensor([[0, 1, 2, 3]])).tolist() == pytest.approx([1 - 1 / 5])


# -------------------------------------------------------------------------------------------------------- protocol


def evaluation(chunks) -> Evaluation:
    method = SimpleNamespace(settings=None, problem=SimpleNamespace(kind="classification"))
    made = Evaluation(method, "best", SimpleNamespace(shape=TaskShape(5, 1, 3)), 6)
    made.predictions = chunks
    return made


def test_the_protocol_pools_all_tasks_however_they_were_batched():
    predictive, y = simulated(5, 6, 15)
    chunks = [(Categorical(predictive.probs[i : i + 4]), y[i : i + 4]) for i in (0, 4)]
    ece, brier = Calibration().measure(evaluation(chunks))
    assert (ece.metric, brier.metric) == ("ece", "brier")
    assert ece.per_task == pytest.approx(ECE.score(predictive, y).tolist(), abs=1e-12)
    assert brier.per_task == pytest.approx(BRIER.score(predictive, y).tolist(), abs=1e-12)
    separate = np.concatenate([ECE.score(p, labels).numpy() for p, labels in chunks])
    assert abs(separate.mean() - np.mean(ece.per_task)) > 1e-3  # else this test could not tell
    assert sum(ece.detail["count"]) == 90


def test_predictions_that_are_not_finite_are_an_error():
    nan = Categorical(torch.full((2, 3, 5), math.nan), validate_args=False)
    with pytest.raises(TrialError, match="ece is nan on task 0"):
        Calibration().measure(evaluation([(nan, torch.zeros(2, 3, dtype=torch.long))]))
