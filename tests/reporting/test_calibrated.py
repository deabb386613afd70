"""The ECE that a calibrated model is to be expected to have, against simulated calibrated models."""

import numpy as np
import pytest

from builders import make_scores
from mlpip_bench.reporting.calibrated import expected_ece


@pytest.mark.parametrize(
    ("counts", "confidences"),
    [((0, 40, 300, 5, 2000), (0.0, 0.31, 0.55, 0.72, 0.97)), ((7,), (0.5,)), ((1, 3), (0.1, 1.0))],
)
def test_the_expectation_is_that_of_simulated_calibrated_models(counts, confidences):
    rng, total = np.random.default_rng(0), sum(counts)
    right = [rng.binomial(n, p, 40_000) for n, p in zip(counts, confidences, strict=True)]
    gaps = sum(abs(k - n * p) for k, n, p in zip(right, counts, confidences, strict=True)) / total
    score = make_scores((0.1, 0.2), "ece", detail={"count": counts, "confidence": confidences})
    expected = expected_ece([score])
    assert expected == pytest.approx(gaps.mean(), abs=4 * gaps.std() / 200 + 1e-12)


def test_over_seeds_it_is_the_mean_and_other_scores_have_none():
    scores = [
        make_scores((0.1, 0.2), "ece", detail={"count": (n,), "confidence": (0.5,)}) for n in (10, 1000)
    ]  # fmt: skip
    assert expected_ece(scores) == pytest.approx((expected_ece(scores[:1]) + expected_ece(scores[1:])) / 2)
    assert expected_ece([make_scores()]) is None
    assert expected_ece([make_scores((0.1, 0.2), "ece")]) is None
