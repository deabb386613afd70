"""Fits of classifiers, against other libraries and against loops written out."""

import dataclasses
import math

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn import functional as F

from mlpip_bench.inference import fitting
from mlpip_bench.inference.distributions import linear_outputs
from mlpip_bench.inference.fitting import FitSettings, fit, logistic_regression
from mlpip_bench.tasks.batch import Labeled
from mlpip_bench.utils.errors import TrialError

SHOTS = [(1, 1, 1, 1, 1), (5, 5), (1, 2, 6), (3,) * 8]


def features_of(shots: tuple[int, ...], *, tasks: int = 3, dimension: int = 7, spread: float = 1.0):
    """Features of support sets with so many points of each class, in random order."""
    torch.manual_seed(len(shots))
    y = torch.stack([torch.arange(len(shots)).repeat_interleave(torch.tensor(shots)) for _ in range(tasks)])
    y = torch.stack([labels[torch.randperm(len(labels))] for labels in y])
    means = torch.randn(tasks, len(shots), dimension, dtype=torch.float64)
    x = means.gather(1, y[..., None].expand(-1, -1, dimension)) + torch.randn(*y.shape, dimension, dtype=torch.float64)
    return spread * x, Labeled(x, y, len(shots))


# -- logistic regression ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("shots", SHOTS)
@pytest.mark.parametrize("dimension", [2, 40])  # fewer than the points, and more
def test_a_logistic_regression_is_that_of_scikit_learn(shots, penalty, dimension):
    features, support = features_of(shots, tasks=2, dimension=dimension)
    psi = logistic_regression(features, support, penalty)
    new = torch.randn(2, 20, dimension, dtype=torch.float64)
    ours = linear_outputs(new, psi).softmax(-1).numpy()
    for t in range(2):
        rows = 1 if len(shots) > 2 else 2  # of two classes scikit-learn has one row, and half the penalty
        theirs = LogisticRegression(C=rows / penalty, tol=1e-8, max_iter=10_000)
        theirs.fit(features[t].numpy(), support.y[t].numpy())
        expected = theirs.predict_proba(new[t].numpy())
        assert abs(ours[t] - expected).max() < 1e-4


@pytest.mark.parametrize("shots", SHOTS)
@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0])
def test_the_gradient_of_a_logistic_regression_is_zero(shots, spread):
    features, support = features_of(shots, spread=spread)
    psi = logistic_regression(features, support, 0.5).requires_grad_()
    loss = F.cross_entropy(linear_outputs(features, psi).flatten(0, 1), support.y.flatten(), reduction="sum")
    (gradient,) = torch.autograd.grad(loss + 0.25 * psi[..., :-1].square().sum(), psi)
    assert float(gradient.abs().max()) < 1e-8


def test_two_opposite_points_have_the_weight_that_solves_their_equation():
    """Points 1 and -1 of two classes: the weights are w and -w with penalty w = 1/(1 + exp(2 w))."""
    x = torch.tensor([[[1.0], [-1.0]]], dtype=torch.float64)
    psi = logistic_regression(x, Labeled(x, torch.tensor([[0, 1]]), 2), 0.5)
    w = float(psi[0, 0, 0])
    # d/dw of 2 log(1 + exp(-2 w)) + 0.5 w^2, the penalty of both rows.
    assert -4 / (1 + math.exp(2 * w)) + w == pytest.approx(0, abs=1e-8)
    torch.testing.assert_close(psi, torch.tensor([[[w, 0.0], [-w, 0.0]]], dtype=torch.float64))


def test_a_task_alone_and_points_in_another_order_have_the_same_logistic_regression():
    features, support = features_of((2, 1, 4))
    psi = logistic_regression(features, support, 1.0)
    for t in range(3):
        alone = logistic_regression(features[t : t + 1], support.task(t), 1.0)
        torch.testing.assert_close(alone[0], psi[t], rtol=0, atol=1e-8)
    order = torch.randperm(7)
    turned = Labeled(support.x[:, order], support.y[:, order], 3)
    torch.testing.assert_close(logistic_regression(features[:, order], turned, 1.0), psi, rtol=0, atol=1e-8)


def test_a_logistic_regression_has_the_dtype_of_its_features_and_float64_within():
    features, support = features_of((2, 2, 2))
    single = logistic_regression(features.float(), support, 1.0)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), logistic_regression(features, support, 1.0), rtol=1e-5, atol=1e-5)


def test_a_logistic_regression_that_is_not_solved_says_so(monkeypatch):
    monkeypatch.setattr(fitting, "_MOST_STEPS", 3)
    with pytest.raises(TrialError, match=r"after 3 steps the gradient is .* larger penalty"):
        logistic_regression(*features_of((2, 2), spread=100.0), 1e-6)


# -- SGD -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shots", SHOTS)
def test_sgd_is_the_update_written_out(shots):
    settings = FitSettings(epochs=3, batch_size=4, rate=0.2, weight_decay=0.05)
    features, support = features_of(shots)
    start = torch.randn(3, len(shots), 8, dtype=torch.float64)
    found = fit(start, lambda psi: linear_outputs(features, psi), support, settings)
    steps = 3 * -(-sum(shots) // 4)
    assert settings.steps(sum(shots)) == steps
    x = F.pad(features, (0, 1), value=1.0)
    for t in range(3):
        psi, velocity = start[t].clone(), None
        for _ in range(steps):
            wrong = (x[t] @ psi.T).softmax(-1) - F.one_hot(support.y[t], len(shots))
            gradient = wrong.T @ x[t] / len(x[t]) + 0.05 * psi
            velocity = gradient if velocity is None else 0.9 * velocity + 0.1 * gradient
            psi = psi - 0.2 * velocity
        torch.testing.assert_close(found[t], psi)


def test_a_fit_leaves_its_start_and_needs_no_gradients_of_the_caller():
    features, support = features_of((2, 2))
    start = torch.zeros(3, 2, 8, dtype=torch.float64)
    with torch.no_grad():
        found = fit(start, lambda psi: linear_outputs(features, psi), support, FitSettings())
    assert not start.any()
    assert not found.requires_grad
    assert (linear_outputs(features, found).argmax(-1) == support.y).float().mean() > 0.9


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epochs", -1),
        ("batch_size", 0),
        ("rate", 0.0),
        ("rate", math.nan),
        ("weight_decay", -0.1),
        ("momentum", 1.0),
        ("dampening", 1.1),
    ],
)
def test_settings_that_are_no_fit_are_refused(field, value):
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(FitSettings(), **{field: value})
