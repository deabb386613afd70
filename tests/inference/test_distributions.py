import inspect
import math

import numpy as np
import pytest
import torch
from mlpip_bench.methods.versa import Versa
from scipy import special
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from mlpip_bench.inference import distributions
from mlpip_bench.inference.distributions import (
    Delta,
    GaussianSoftmax,
    MonteCarloMixture,
    class_rank,
    evaluation_predictive,
    linear_gaussian_outputs,
    linear_outputs,
    sampled_predictive,
    sobol_normal,
    to_float64,
)
from mlpip_bench.utils.timers import peak_bytes


def test_delta_has_all_its_mass_at_the_point():
    point = torch.randn(3, 4, 2)
    delta = Delta(point, event_dim=1)
    assert delta.batch_shape == (3, 4)
    assert delta.event_shape == (2,)
    assert torch.equal(delta.sample((5,)), point.expand(5, 3, 4, 2))
    assert torch.equal(delta.log_prob(point), torch.zeros(3, 4))
    assert (delta.log_prob(point + 1) == -math.inf).all()
    assert not delta.variance.any()


def test_delta_samples_carry_gradients():
    point = torch.randn(3, requires_grad=True)
    Delta(point).rsample((4,)).sum().backward()
    assert torch.equal(point.grad, torch.full((3,), 4.0))


def test_mixture_over_classes_matches_numpy():
    logits = torch.randn(7, 3, 4, 5, dtype=torch.float64) * 3
    y = torch.randint(5, (3, 4))
    mixture = MonteCarloMixture(Categorical(logits=logits))
    probs = special.softmax(logits.numpy(), -1).mean(0)
    np.testing.assert_allclose(mixture.probs.numpy(), probs, rtol=1e-12)
    np.testing.assert_allclose(
        mixture.log_prob(y).numpy(), np.log(np.take_along_axis(probs, y.numpy()[..., None], -1))[..., 0]
    )


def test_mixture_of_normals_matches_torch_mixture_same_family():
    loc, scale = torch.randn(9, 3, 4, dtype=torch.float64), torch.rand(9, 3, 4, dtype=torch.float64) + 0.1
    ours = MonteCarloMixture(Normal(loc, scale))
    theirs = MixtureSameFamily(
        Categorical(logits=torch.zeros(3, 4, 9)), Normal(loc.movedim(0, -1), scale.movedim(0, -1))
    )
    value = torch.randn(3, 4, dtype=torch.float64)
    torch.testing.assert_close(ours.log_prob(value), theirs.log_prob(value))
    torch.testing.assert_close(ours.mean, theirs.mean)
    torch.testing.assert_close(ours.variance, theirs.variance)


def test_mixture_samples_have_its_moments():
    torch.manual_seed(0)
    components = Independent(Normal(torch.tensor([[-2.0, 0.0], [2.0, 1.0]])[:, None], torch.full((2, 1, 2), 0.5)), 1)
    mixture = MonteCarloMixture(components)
    draws = mixture.sample((40_000,))
    assert draws.shape == (40_000, 1, 2)
    torch.testing.assert_close(draws.mean(0), mixture.mean, atol=0.05, rtol=0)
    torch.testing.assert_close(draws.var(0), mixture.variance, atol=0.1, rtol=0)
    # Both coordinates of a draw come from one component.
    assert float(torch.corrcoef(draws[:, 0].T)[0, 1]) > 0.5


def test_mixture_does_not_underflow_where_every_sample_is_sure():
    mixture = MonteCarloMixture(
        Categorical(logits=torch.tensor([[[0.0, 2000.0]], [[0.0, 3000.0]]], dtype=torch.float64))
    )
    assert float(mixture.log_prob(torch.tensor([0]))) == pytest.approx(-2000 - math.log(2))


def test_logits_of_a_gaussian_classifier_have_the_moments_of_sampled_classifiers():
    torch.manual_seed(0)
    features = torch.randn(2, 6, 3, dtype=torch.float64)
    psi = Normal(torch.randn(2, 4, 4, dtype=torch.float64), torch.rand(2, 4, 4, dtype=torch.float64) + 0.1)
    logits = linear_gaussian_outputs(features, psi)
    draws = torch.stack([linear_outputs(features, psi.sample()) for _ in range(20_000)])
    standard_error = logits.stddev / math.sqrt(len(draws))
    assert ((draws.mean(0) - logits.mean).abs() < 5 * standard_error).all()
    torch.testing.assert_close(draws.std(0), logits.stddev, rtol=0.05, atol=0)


def test_linear_logits_are_weights_times_features_plus_bias():
    features, psi = torch.randn(2, 6, 3, dtype=torch.float64), torch.randn(2, 4, 4, dtype=torch.float64)
    by_hand = torch.stack([features[t] @ psi[t, :, :3].T + psi[t, :, 3] for t in range(2)])
    torch.testing.assert_close(linear_outputs(features, psi), by_hand)


def two_way_integral(mean: np.ndarray, std: np.ndarray) -> float:
    """P(class 0) for two Gaussian logits, by Gauss-Hermite quadrature of the logistic-normal integral."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    difference, spread = mean[0] - mean[1], math.hypot(*std)
    return float((weights * special.expit(difference + spread * nodes)).sum() / weights.sum())


@pytest.mark.parametrize(
    ("mean", "std"), [((1.0, -0.5), (0.5, 2.0)), ((0.0, 3.0), (1.5, 1.5)), ((8.0, 0.0), (4.0, 0.1))]
)
def test_predictive_of_gaussian_logits_approaches_the_exact_integral(mean, std):
    torch.manual_seed(0)
    logits = Normal(torch.tensor([[mean]], dtype=torch.float64), torch.tensor([[std]], dtype=torch.float64))
    exact = two_way_integral(np.array(mean), np.array(std))
    fixed = float(sampled_predictive(logits, 100, fixed_noise=True).probs[0, 0, 0])
    fresh = sampled_predictive(logits, 40_000, fixed_noise=False)
    error = float(fresh.components.probs[..., 0].std()) / math.sqrt(40_000)
    assert abs(float(fresh.probs[0, 0, 0]) - exact) < 4 * error + 1e-12
    assert abs(fixed - exact) < 0.01  # plain sampling has a standard error of up to 0.05 at L = 100


def test_fixed_noise_makes_a_prediction_a_function_of_its_query_alone():
    logits = Normal(torch.randn(2, 6, 5), torch.rand(2, 6, 5) + 0.1)
    together = sampled_predictive(logits, 50, fixed_noise=True).probs
    alone = sampled_predictive(Normal(logits.mean[:1, 2:3], logits.stddev[:1, 2:3]), 50, fixed_noise=True).probs
    assert torch.equal(together[:1, 2:3], alone)


@pytest.mark.parametrize(
    "distribution",
    [
        Categorical(logits=torch.randn(3, 2, 5)),
        Normal(torch.randn(3, 2), torch.rand(3, 2) + 0.1),
        Independent(Normal(torch.randn(3, 2, 4), torch.rand(3, 2, 4) + 0.1), 1),
        MonteCarloMixture(Categorical(logits=torch.randn(6, 3, 2, 5))),
    ],
    ids=lambda d: type(d).__name__,
)
def test_float64_keeps_the_distribution(distribution):
    value = distribution.sample()
    double = to_float64(distribution).log_prob(value.double() if value.is_floating_point() else value)
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), distribution.log_prob(value), rtol=1e-4, atol=1e-5)


def test_float64_resolves_what_float32_rounds_to_certainty():
    sure = Categorical(logits=torch.tensor([[[20.0, 0.0]]]))
    assert float(sure.log_prob(torch.tensor([[0]]))) == 0.0
    assert float(to_float64(sure).log_prob(torch.tensor([[0]]))) == pytest.approx(-math.exp(-20), rel=1e-6)


def test_an_unknown_distribution_is_named():
    with pytest.raises(TypeError, match="Poisson"):
        to_float64(torch.distributions.Poisson(torch.ones(2)))


def gaussian_classifier(
    tasks: int = 3, points: int = 4, way: int = 5, spread: float = 1.0
) -> tuple[torch.Tensor, Normal]:
    features = torch.randn(tasks, points, 6, dtype=torch.float64)
    mean = torch.randn(tasks, way, 7, dtype=torch.float64)
    return features, Normal(mean, spread * (0.1 + torch.rand(tasks, way, 7, dtype=torch.float64)))


def test_the_evaluation_predictive_is_the_mixture_over_the_same_points_part_by_part(monkeypatch):
    features, psi = gaussian_classifier()
    outputs = linear_gaussian_outputs(features, psi)
    whole = sampled_predictive(outputs, 1024, fixed_noise=True, rank=class_rank(psi.mean))
    y = torch.randint(5, (3, 4))
    for at_once in (1, 2 * 15, 7 * 60, 2**18):  # logits of a part: one query's of a sample, two, seven samples, all
        monkeypatch.setitem(distributions._LOGITS_AT_ONCE, "cpu", at_once)
        found = evaluation_predictive(features, psi, 1024, noise_std=None)
        torch.testing.assert_close(found.log_probs, whole.log_probs, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found.log_prob(y), whole.log_prob(y), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 900.0])
def test_the_evaluation_predictive_has_the_logs_of_probabilities_that_vanish(scale):
    mean, std = scale * torch.randn(2, 3, 4, dtype=torch.float64), torch.rand(2, 3, 4, dtype=torch.float64)
    noise, rank = torch.randn(64, 4, dtype=torch.float64), torch.stack([torch.randperm(4) for _ in range(2)])
    found = distributions.GaussianSoftmax(Normal(mean, std), noise, rank).log_probs
    logits = mean + std * noise[:, rank].unsqueeze(2)
    expected = special.logsumexp(special.log_softmax(logits.numpy(), -1), 0) - math.log(64)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-13, atol=1e-13)
    assert (expected.min() < -800) == (scale > 1)  # of which exp is 0


def test_fixed_points_do_not_depend_on_the_default_dtype():
    drawn, points = inspect.unwrap(sobol_normal), []  # not what is cached
    try:
        for dtype in (torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            points.append(drawn(64, 5))
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(*points)
    quantiles = torch.special.ndtr(points[0]) * 2**30
    torch.testing.assert_close(quantiles, quantiles.round(), rtol=0, atol=1e-5)  # torch's sequence has 30 bits


def test_two_scrambles_of_the_default_number_of_points_agree_and_far_better_than_100_did():
    torch.manual_seed(0)
    features, psi = gaussian_classifier(tasks=20, spread=2.0)

    def mean_probability(samples: int, scramble: int) -> torch.Tensor:
        found = evaluation_predictive(features, psi, samples, noise_std=None, scramble=scramble)
        assert isinstance(found, GaussianSoftmax)
        return found.probs

    default = Versa.Settings().eval_samples
    assert default >= 1024
    few, many = (float((mean_probability(n, 0) - mean_probability(n, 1)).abs().mean()) for n in (100, default))
    assert 0 < many < 1e-3
    assert many < few / 4


def test_another_labeling_of_the_classes_gives_the_same_probabilities_at_the_default_number_of_points():
    torch.manual_seed(0)
    features, psi = gaussian_classifier(spread=2.0)
    new = torch.tensor([3, 0, 4, 1, 2])
    renamed = Normal(psi.mean[:, new], psi.stddev[:, new])
    samples = Versa.Settings().eval_samples
    by_rank, before = (evaluation_predictive(features, q, samples, noise_std=None).probs for q in (renamed, psi))
    torch.testing.assert_close(by_rank, before[..., new], rtol=0, atol=1e-12)
    # The tolerance can fail: with the dimension of its label a class has another probability under another label.
    points, label = sobol_normal(samples, 5), torch.arange(5).expand(3, -1)
    by_label, before = (
        GaussianSoftmax(linear_gaussian_outputs(features, q), points, label).probs for q in (renamed, psi)
    )
    assert float((by_label - before[..., new]).abs().max()) > 1e-4


def test_the_memory_of_the_evaluation_predictive_does_not_grow_with_the_number_of_points():
    features, psi = gaussian_classifier(tasks=1, points=100, way=20)

    def peak(number: int) -> int:
        sobol_normal(number, 20, 0)  # drawn once, and kept
        return peak_bytes(
            lambda: evaluation_predictive(features, psi, number, noise_std=None).probs, torch.device("cpu")
        )

    few, many = map(peak, (1024, 16384))
    assert many < 1.1 * few  # 16 times, if anything had points and queries
