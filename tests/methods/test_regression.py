"""Methods on curves: the exact predictive against independent formulas, and what MAML and CNP do by definition."""

import functools
import math

import numpy as np
import pytest
import torch
from mlpip_bench.methods.exact_gp import ExactGP
from mlpip_bench.methods.maml import MAML, MAMLSettings
from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor, kernels
from torch.distributions import Normal
from torch.func import functional_call, grad, vmap

from builders import CPU, backbone, in_float64, linear_problem, linear_stream
from mlpip_bench import registry
from mlpip_bench.inference.method import Problem
from mlpip_bench.tasks.batch import Labeled, TaskBatch, TaskShape
from mlpip_bench.tasks.gaussian_process import GaussianProcess
from mlpip_bench.tasks.kernels import RBF
from mlpip_bench.tasks.regression import RegressionStream
from mlpip_bench.tasks.sinusoids import Sinusoids
from mlpip_bench.utils.settings import NoSettings

NOISE = 0.1
MODEL = GaussianProcess(RBF(0.5), NOISE)


def problem(kernel=None) -> Problem:
    """Curves, and a network of two layers of ReLU."""
    return Problem(
        backbone("mlp", (1, 1, 1), layers=2, features=8, activation="relu"),
        "metabn", 1, "regression", NOISE, kernel=kernel,
    )  # fmt: skip


def batch_of(model, tasks: int, shots: int = 5, queries: int = 7) -> TaskBatch:
    return in_float64(RegressionStream(model, TaskShape(1, shots, queries), CPU, "oracle", "test").batch(0, tasks))


def built(name: str, of: Problem | None = None, **settings):
    plugin = registry.method(name)
    torch.manual_seed(0)
    return plugin(of or problem(MODEL.kernel), plugin.Settings(**settings)).double()


def exact(batch: TaskBatch, kernel=MODEL.kernel) -> Normal:
    method = ExactGP(problem(kernel), NoSettings())
    return method.predictive(method.amortize(batch.support), batch.query.x)


# -- the exact predictive --------------------------------------------------------------------------------------------


def test_the_exact_predictive_is_that_of_scikit_learn():
    batch = batch_of(MODEL, 6)
    found = exact(batch)
    for task in range(6):
        theirs = GaussianProcessRegressor(kernels.RBF(0.5), alpha=NOISE**2, optimizer=None)
        theirs.fit(batch.support.x[task].flatten(1).numpy(), batch.support.y[task].numpy())
        mean, std = theirs.predict(batch.query.x[task].flatten(1).numpy(), return_std=True)
        np.testing.assert_allclose(found.mean[task], mean, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(found.variance[task], std**2 + NOISE**2, rtol=1e-8)


def test_the_exact_predictive_is_a_ratio_of_joint_densities():
    """log p(y, D) - log p(D), each a density of scipy's over all points."""
    batch = batch_of(MODEL, 3, queries=2)
    log_prob = exact(batch).log_prob(batch.query.y)

    def joint(x, y):
        squares = (x[:, None] - x[None]) ** 2
        covariance = np.exp(-squares / (2 * 0.5**2)) + NOISE**2 * np.eye(len(x))
        return stats.multivariate_normal(np.zeros(len(x)), covariance).logpdf(y)

    for task in range(3):
        x, y = batch.support.x[task].flatten().numpy(), batch.support.y[task].numpy()
        for point in range(2):
            asked = batch.query.x[task, point].item(), batch.query.y[task, point].item()
            by_hand = joint(np.append(x, asked[0]), np.append(y, asked[1])) - joint(x, y)
            assert log_prob[task, point].item() == pytest.approx(by_hand, abs=1e-8)


def test_with_the_linear_kernel_it_is_bayesian_linear_regression():
    batch = in_float64(linear_stream(3, 5, 7, "oracle").batch(0, 20))
    methods = (built(name, linear_problem(3)) for name in ("exact_gp", "exact_linear"))
    found, expected = (m.predictive(m.amortize(batch.support), batch.query.x) for m in methods)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.variance, expected.variance)


def test_no_predictive_has_a_lower_log_loss_than_the_exact_one():
    batch = batch_of(MODEL, 400, queries=10)
    truth = exact(batch).log_prob(batch.query.y)
    exact_loss = -truth.mean()
    # Its expectation is the entropy of the predictive, task by task.
    surprise = (exact_loss - exact(batch).entropy().mean()).item()
    assert abs(surprise) < 4 * float(truth.mean(1).std()) / math.sqrt(400)
    others = {f"length scale {scale}": exact(batch, RBF(scale)).log_prob(batch.query.y) for scale in (0.35, 0.7)}
    others["prior"] = Normal(0.0, math.sqrt(1 + NOISE**2)).log_prob(batch.query.y)
    for name in ("maml", "anil", "cnp", "versa", "amortized_vi", "blind", "exact_linear"):
        method = built(name).eval()
        with torch.no_grad():
            others[name] = method.predictive(method.amortize(batch.support), batch.query.x).log_prob(batch.query.y)
    for name, log_prob in others.items():
        gain = (truth - log_prob).mean(1)
        assert float(gain.mean()) > 2 * float(gain.std()) / math.sqrt(400), name


def test_the_exact_predictive_with_many_and_with_repeated_points_is_finite():
    batch = batch_of(MODEL, 2, shots=200)
    twice = Labeled(torch.cat([batch.support.x] * 2, 1), torch.cat([batch.support.y] * 2, 1), 1)
    for support in (batch.support, twice):
        found = exact(TaskBatch(support, batch.query))
        assert found.mean.isfinite().all()
        assert (found.stddev >= NOISE).all()


# -- MAML ------------------------------------------------------------------------------------------------------------


def by_torch_func(method: MAML, batch: TaskBatch, rate: float, steps: int) -> torch.Tensor:
    """The outer loss of plain gradient descent on the mean squared error, by torch.func, a task at a time."""
    network, psi_0 = method.network, dict(method.network.named_parameters())
    variance = NOISE**2 + torch.nn.functional.softplus(method.likelihood.raw_std) ** 2

    def outputs(psi, x):
        return functional_call(network, psi, (x.unsqueeze(0),))[0].squeeze(0).squeeze(-1)

    def inner(psi, x, y):
        return (outputs(psi, x) - y).square().mean()

    def outer(x, y, query_x, query_y):
        psi = psi_0
        for _ in range(steps):
            slope = grad(inner)(psi, x, y)
            psi = {name: value - rate * slope[name] for name, value in psi.items()}
        errors = (outputs(psi, query_x) - query_y).square()
        return (errors / (2 * variance) + (2 * math.pi * variance).log() / 2).mean()

    support, query = batch.support, batch.query
    return vmap(outer)(support.x, support.y, query.x, query.y).mean()


@pytest.mark.parametrize("engine", ["native", "higher"])
@pytest.mark.parametrize("steps", [1, 3])
def test_losses_and_gradients_of_maml_are_those_of_plain_descent_on_the_squared_error(steps, engine):
    method = built("maml", train_steps=steps, inner_rate=0.05, inner_engine=engine).train()
    with torch.no_grad():  # off the head of zeros, at which nothing moves the backbone
        for parameter in method.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    batch = batch_of(Sinusoids(NOISE), 3)
    parameters = list(method.parameters())
    ours, theirs = method.loss(batch), by_torch_func(method, batch, 0.05, steps)
    torch.testing.assert_close(ours, theirs)
    for a, b in zip(*(torch.autograd.grad(loss, parameters) for loss in (ours, theirs)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_the_outer_gradient_is_that_of_the_squared_error_up_to_a_factor():
    method = built("maml", inner_rate=0.05).train()
    with torch.no_grad():
        method.network.head.weight.normal_(std=0.3)
    batch = batch_of(Sinusoids(NOISE), 4)
    psi_0 = list(method.network.parameters())
    error = (method.predictive(method.amortize(batch.support), batch.query.x).mean - batch.query.y).square().mean()
    of_error, of_loss = (torch.autograd.grad(loss, psi_0) for loss in (error, method.loss(batch)))
    variance = NOISE**2 + math.log(2) ** 2  # of a raw value of 0
    for a, b in zip(of_error, of_loss, strict=True):
        torch.testing.assert_close(a / (2 * variance), b)


def test_anil_adapts_the_head_alone():
    method = built("anil", train_steps=2, test_steps=2, inner_rate=0.05).eval()
    batch = batch_of(Sinusoids(NOISE), 3)
    features = method.backbone(batch.support.x)[0].detach()
    phi = torch.cat([features, torch.ones_like(features[..., :1])], -1)
    w = torch.zeros(3, phi.shape[-1], dtype=torch.float64)
    for _ in range(2):
        residual = (phi * w.unsqueeze(1)).sum(-1) - batch.support.y
        w = w - 0.05 * 2 * (residual.unsqueeze(-1) * phi).mean(1)
    with torch.no_grad():
        torch.testing.assert_close(method.amortize(batch.support).psi.mean[:, 0], w)


def test_reptile_learns_its_variance_from_the_queries():
    method = built("reptile").train()
    batch = batch_of(Sinusoids(NOISE), 3)
    method.loss(batch).backward()
    with torch.no_grad():
        outputs = method.network.outputs(method.amortize(batch.merged), batch.query.x)
    raw = torch.zeros((), dtype=torch.float64, requires_grad=True)
    std = (NOISE**2 + torch.nn.functional.softplus(raw) ** 2).sqrt()
    (expected,) = torch.autograd.grad(-Normal(outputs.squeeze(-1), std).log_prob(batch.query.y).mean(), raw)
    torch.testing.assert_close(method.likelihood.raw_std.grad, expected)


# -- CNP, Versa and VI ------------------------------------------------------------------------------------------------


def test_a_neural_process_sees_a_set_of_points_with_their_targets():
    method = built("cnp").eval()
    batch = batch_of(MODEL, 3)
    support, x = batch.support, batch.query.x

    def answer(of: Labeled) -> Normal:
        with torch.no_grad():
            return method.predictive(method.amortize(of), x)

    first, order = answer(support), torch.tensor([3, 1, 4, 0, 2])
    for same in (
        Labeled(support.x[:, order], support.y[:, order], 1),
        Labeled(torch.cat([support.x] * 2, 1), torch.cat([support.y] * 2, 1), 1),  # a mean of encodings
    ):
        torch.testing.assert_close(answer(same).mean, first.mean)
        torch.testing.assert_close(answer(same).stddev, first.stddev)
    moved = answer(Labeled(support.x, support.y[:, order], 1))  # targets at other inputs
    assert not torch.allclose(moved.mean, first.mean)
    assert (first.stddev > NOISE).all()


def test_the_spread_of_a_neural_process_is_its_decoders_and_the_noise():
    method = built("cnp").eval()
    batch = batch_of(MODEL, 2)
    with torch.no_grad():
        last = method.decoder[-1]
        last.weight.zero_()
        last.bias.copy_(torch.tensor([0.7, -1.0]))
        found = method.predictive(method.amortize(batch.support), batch.query.x)
    std = math.sqrt(NOISE**2 + math.log1p(math.exp(-1.0)) ** 2)
    torch.testing.assert_close(found.mean, torch.full_like(found.mean, 0.7))
    torch.testing.assert_close(found.stddev, torch.full_like(found.mean, std))


@pytest.mark.parametrize("name", ["versa", "amortized_vi"])
def test_pooled_amortization_is_no_linear_function_of_the_targets(name):
    settings = {"samples": 0} if name == "versa" else {}
    method = built(name, amortization="pooled", **settings).eval()
    support = batch_of(MODEL, 2).support

    @functools.cache
    def mean(factor: int) -> torch.Tensor:
        with torch.no_grad():
            return method.amortize(Labeled(support.x, factor * support.y, 1)).psi.mean

    assert mean(1).shape == (2, 1, 9)
    assert float((mean(2) - 2 * mean(1) + mean(0)).abs().max()) > 1e-4
    method = built(name, amortization="linear", **settings).eval()
    mean.cache_clear()
    torch.testing.assert_close(mean(2) - mean(1), mean(1) - mean(0))


# -- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["maml", "cnp", "versa", "exact_linear"])
def test_a_little_training_beats_what_knows_nothing(name):
    settings = {"maml": {"inner_rate": 0.05}, "versa": {"samples": 0, "amortization": "pooled"}}.get(name, {})
    method = built(name, problem(), **settings).float().train()
    stream = RegressionStream(Sinusoids(NOISE), TaskShape(1, 10, 10), CPU, "training")
    adam = torch.optim.Adam(method.parameters(), lr=5e-3)
    for step in range(300):
        adam.zero_grad()
        method.loss(stream.batch(32 * step, 32)).backward()
        adam.step()
    method.eval()
    test = RegressionStream(Sinusoids(NOISE), TaskShape(1, 10, 10), CPU, "test").batch(0, 200)
    with torch.no_grad():
        error = (method.predictive(method.amortize(test.support), test.query.x).mean - test.query.y).square().mean()
    assert float(error) < 0.9 * float(test.query.y.var())


@pytest.mark.parametrize("preset", ["quick", "paper"])
def test_the_step_of_maml_on_curves_is_that_of_its_paper(preset):
    assert MAML.presets[preset]["sinusoid"]["inner_rate"] == 0.01
    assert MAMLSettings().train_steps == MAMLSettings().test_steps == 1
