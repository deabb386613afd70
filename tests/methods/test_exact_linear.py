"""The exact method and the family whose posterior is known, against other derivations of the same numbers."""

import math

import numpy as np
import pytest
import torch
from mlpip_bench.methods.amortized_vi import AmortizedVI
from mlpip_bench.methods.exact_linear import ExactLinear
from mlpip_bench.methods.nonamortized_vi import NonAmortizedVI, NonAmortizedVISettings
from mlpip_bench.methods.versa import Versa
from torch.distributions import MultivariateNormal, Normal

from builders import in_float64, invoke, linear_problem, linear_stream
from mlpip_bench.inference.method import Method, Posterior
from mlpip_bench.records import store
from mlpip_bench.tasks.batch import Labeled
from mlpip_bench.tasks.linear_gaussian import LinearGaussian
from mlpip_bench.tasks.regression import RegressionStream
from mlpip_bench.utils.settings import NoSettings

NOISE = 0.5
FITTED = NonAmortizedVISettings(test_steps=1500, local_rate=0.05, fit_samples=256)


def exact(dimension: int) -> ExactLinear:
    return ExactLinear(linear_problem(dimension), NoSettings())


def stream(dimension: int, shots: int = 5, queries: int = 7, *, seed: int = 0) -> RegressionStream:
    return linear_stream(dimension, shots, queries, "oracle", seed)


def gaussian_process(support: Labeled, query: Labeled) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of the queries' targets by conditioning their joint Gaussian: no psi in it."""
    kernel = [[a.x.flatten(2) @ b.x.flatten(2).mT + 1 for b in (support, query)] for a in (support, query)]
    noisy = kernel[0][0] + NOISE**2 * torch.eye(support.y.shape[1], dtype=support.y.dtype)
    gain = torch.linalg.solve(noisy, kernel[0][1]).mT
    mean = (gain @ support.y.unsqueeze(-1)).squeeze(-1)
    return mean, (kernel[1][1] - gain @ kernel[0][1]).diagonal(dim1=-2, dim2=-1) + NOISE**2


@pytest.mark.parametrize("dimension", [0, 3])
def test_exact_predictive_is_the_gaussian_process_of_the_linear_kernel(dimension):
    batch = in_float64(stream(dimension).batch(0, 20))
    support, query = batch.support, batch.query
    method = exact(dimension)
    predictive = method.predictive(method.amortize(support), query.x)
    mean, variance = gaussian_process(support, query)
    torch.testing.assert_close(predictive.mean, mean)
    torch.testing.assert_close(predictive.variance, variance)


def test_exact_posterior_is_bayes_rule_on_a_grid():
    support = in_float64(stream(0, shots=3).batch(0, 1)).support
    psi = exact(0).amortize(support).psi
    grid = torch.linspace(-8, 8, 20_001, dtype=torch.float64)
    log_joint = Normal(0.0, 1.0).log_prob(grid)
    for y in support.y[0].double():
        log_joint = log_joint + Normal(grid, NOISE).log_prob(y)
    weights = log_joint.softmax(0)
    mean = (weights * grid).sum()
    torch.testing.assert_close(psi.mean[0, 0], mean)
    torch.testing.assert_close(psi.covariance_matrix[0, 0, 0], (weights * (grid - mean).square()).sum())


def test_exact_posterior_is_calibrated_on_the_family_that_made_the_tasks():
    # psi is not in the batch, but many noise-free queries would show it; the targets' coverage must be nominal.
    batch = stream(3, queries=20).batch(0, 2000)
    method = exact(3)
    predictive = method.predictive(method.amortize(batch.support), batch.query.x)
    inside = ((batch.query.y - predictive.mean).abs() < 1.959964 * predictive.stddev).double().mean(1)
    error = float(inside.std() / math.sqrt(len(inside)))
    assert abs(float(inside.mean()) - 0.95) < 4 * error


def test_tasks_of_the_family_do_not_depend_on_the_batch_and_are_pinned():
    whole = stream(3).batch(0, 300)
    for first, size in ((0, 1), (100, 60), (255, 45)):
        part = stream(3).batch(first, size)
        for a, b in ((part.support, whole.support), (part.query, whole.query)):
            assert torch.equal(a.x, b.x[first : first + size])
            assert torch.equal(a.y, b.y[first : first + size])
    assert not torch.equal(stream(3, seed=1).batch(0, 1).support.y, whole.support.y[:1])
    np.testing.assert_allclose(whole.support.y[0, :2].tolist(), [-1.7843325138, 1.9935261011], rtol=1e-6)
    assert LinearGaussian(3, NOISE).fingerprint != LinearGaussian(3, 0.6).fingerprint


def test_moments_of_the_family():
    batch = stream(3).batch(0, 20_000)
    y = batch.support.y[:, 0].double()
    assert batch.support.x.shape == (20_000, 5, 3, 1, 1)
    # y | x has variance |x|^2 + 1 + noise^2, 4.25 on average; its fourth moment gives the error of the estimate.
    assert abs(float(y.mean())) < 4 * math.sqrt(4.25 / 20_000)
    assert float(y.square().mean()) == pytest.approx(4.25, abs=4 * float(y.square().std()) / math.sqrt(20_000))


def at_the_posterior(method: Method, support: Labeled) -> Posterior:
    """q of an amortized method whose networks hold the exact posterior of the inputless family."""
    variance = 1 / (1 + support.y.shape[1] / NOISE**2)
    amortizer = method.model.amortizer
    with torch.no_grad():
        amortizer.mean[0].weight.fill_(variance / NOISE**2)
        amortizer.mean[0].bias.zero_()
        amortizer.log_variance.weight.zero_()
        amortizer.log_variance.bias.fill_(math.log(variance))
        return method.amortize(support)


@pytest.mark.parametrize("name", ["versa", "amortized_vi", "nonamortized_vi"])
def test_monte_carlo_predictives_approach_the_exact_one_with_slope_minus_one_half(name):
    batch = in_float64(stream(0, queries=4).batch(0, 30))
    support, query = batch.support, batch.query
    oracle = exact(0)
    truth = oracle.predictive(oracle.amortize(support), query.x).log_prob(query.y)
    plugin = {"versa": Versa, "amortized_vi": AmortizedVI, "nonamortized_vi": NonAmortizedVI}[name]
    if plugin is NonAmortizedVI:
        fit = NonAmortizedVI(linear_problem(0), FITTED)
        q = fit.double().eval().amortize(support)
    else:
        q = at_the_posterior(plugin(linear_problem(0), plugin.Settings()).double(), support)
    torch.manual_seed(0)
    numbers, errors = (16, 64, 256, 1024, 4096), []
    for samples in numbers:
        method = plugin(linear_problem(0), plugin.Settings(samples=samples)).double().train()  # fresh noise
        with torch.no_grad():
            draws = torch.stack([method.predictive(q, query.x).log_prob(query.y) for _ in range(20)])
        errors.append(float((draws - truth).square().mean().sqrt()))
    slope = np.polyfit(np.log(numbers), np.log(errors), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.06)


def test_the_predictive_of_a_regression_with_inputs_is_the_exact_one():
    # A design with orthogonal columns makes the exact posterior factorized, which the family of q holds.
    torch.manual_seed(0)
    signs = torch.tensor([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]], dtype=torch.float64)
    x = signs.repeat(2, 1)[None, :, :, None, None].expand(10, -1, -1, -1, -1)
    support = Labeled(x, torch.randn(10, 8, dtype=torch.float64) * 2, 1)
    query = torch.randn(10, 4, 3, 1, 1, dtype=torch.float64)
    method = NonAmortizedVI(linear_problem(3), FITTED)
    q = method.double().eval().amortize(support)
    oracle = exact(3)
    posterior = oracle.amortize(support).psi
    assert isinstance(posterior, MultivariateNormal)
    torch.testing.assert_close(q.psi.mean[:, 0], posterior.mean, rtol=0, atol=5e-3)
    torch.testing.assert_close(q.psi.variance[:, 0], posterior.variance, rtol=0.03, atol=0)
    y = torch.randn(10, 4, dtype=torch.float64)
    exact_log_density = oracle.predictive(oracle.amortize(support), query).log_prob(y)
    torch.testing.assert_close(method.predictive(q, query).log_prob(y), exact_log_density, rtol=0, atol=0.05)


def test_the_family_from_the_command_line(tmp_path):
    command = ["run", "--bench", "linear5s", "--methods", "exact_linear,versa", "--results", tmp_path]
    done = invoke(*command, "--iterations", 300, "--set", "halve_every=75", "--test-tasks", 100)
    assert done.exit_code == 0, done.output
    scores = {r.method: r.scores[0] for r in store.load_all(tmp_path) if r.protocol == "nll"}
    batch = in_float64(linear_stream(3, 5, 15, "linear5s", "test").batch(0, 100))
    query = batch.query
    mean, variance = gaussian_process(batch.support, query)
    by_hand = -Normal(mean, variance.sqrt()).log_prob(query.y).mean(1)
    np.testing.assert_allclose(scores["exact_linear"].per_task, by_hand.numpy(), rtol=1e-3, atol=1e-3)
    assert np.mean(scores["versa"].per_task) > np.mean(scores["exact_linear"].per_task)
    records = store.load_all(tmp_path)
    assert {(r.protocol, r.data["source"], r.inductive) for r in records} == {
        (protocol, "synthetic", True) for protocol in ("nll", "posterior")
    }


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--methods", "protonets", "--bench", "linear5s"],
            ["linear5s is regression", "protonets handles"],
        ),
        (["--methods", "exact_linear", "--bench", "omni5w1s"], ["omni5w1s is classification", "versa"]),
        (
            ["--methods", "versa", "--bench", "linear5s", "--protocols", "accuracy"],
            ["none of accuracy does to versa on"],
        ),
        (["--methods", "versa", "--bench", "linear5w5s"], ["unknown bench", "linear5s"]),
        (["--methods", "versa", "--bench", "linear0s"], ["shot of a bench is at least 1"]),
    ],
)
def test_a_bench_and_a_method_or_protocol_that_do_not_fit(arguments, says, tmp_path):
    done = invoke("run", *arguments, "--results", tmp_path)
    assert done.exit_code == 2
    for text in says:
        assert text in " ".join(done.output.split())
