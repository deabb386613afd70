"""PLATIPUS against MAML, its bound by hand, torch's KL of dense Gaussians, and an exact pushforward."""

import math

import pytest
import torch
from mlpip_bench.methods.platipus import PLATIPUSSettings
from torch.distributions import Categorical, MultivariateNormal, kl_divergence
from torch.func import functional_call
from torch.nn import functional as F

from builders import backbone, in_float64, linear_problem, linear_stream, make_batch, make_method
from mlpip_bench import registry
from mlpip_bench.inference import particles
from mlpip_bench.tasks.batch import Labeled, TaskBatch


def perturbed(method):
    """A point where nothing is zero or equal by initialization."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in method.parameters():
            p += 0.05 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    return method


def make(norm: str = "metabn", **settings: object):
    return perturbed(make_method("platipus", norm, **settings).double())


def of_regression(name: str = "platipus", dimension: int = 3, **settings: object):
    plugin = registry.method(name)
    torch.manual_seed(0)
    return perturbed(plugin(linear_problem(dimension), plugin.Settings(**settings)).double())


def batch(tasks: int = 2, shots: int = 2, **shape: int) -> TaskBatch:
    torch.manual_seed(1)
    return make_batch(tasks, shots=shots, **shape)


def line(tasks: int = 2) -> TaskBatch:
    return in_float64(linear_stream(3, 5, 7, "platipus").batch(0, tasks))


def certain(method, rate: float = 0.0):
    """Without variance, and with means that a step of this rate moves."""
    with torch.no_grad():
        for start in (method.prior, method.inference):
            start.log_rate.fill_(math.log(rate) if rate else -math.inf)
            for log_std in start.log_std:
                log_std.fill_(-60.0)
    return method


def maml_like(method, **settings: object):
    """MAML from the same initialization."""
    plugin = registry.method("maml")
    maml = plugin(method.problem, plugin.Settings(**settings)).double()
    maml.load_state_dict({k: v for k, v in method.state_dict().items() if k.split(".")[0] in ("network", "likelihood")})
    return maml.train(method.training)


# -- MAML without variance -------------------------------------------------------------------------------------------

STEPS = {"inner_rate": 0.2, "train_steps": 2, "test_steps": 3}


def pairs(norm: str):
    """Both methods and tasks, of images under a norm, or of lines."""
    method = certain(of_regression(**STEPS) if norm == "line" else make(norm, **STEPS))
    return method, maml_like(method, **STEPS), line() if norm == "line" else batch()


@pytest.mark.parametrize("norm", ["metabn", "running", "transductive", "line"])
def test_without_variance_and_rate_training_is_that_of_maml_running_averages_too(norm):
    method, maml, tasks = pairs(norm)
    losses = [of.loss(tasks) for of in (method, maml)]
    torch.testing.assert_close(losses[0], losses[1])
    for loss in losses:
        loss.backward()
    expected = dict(maml.named_parameters())
    for name, parameter in method.named_parameters():
        if name in expected:
            torch.testing.assert_close(parameter.grad, expected[name].grad)
    state = method.state_dict()
    for name, value in maml.state_dict().items():
        torch.testing.assert_close(state[name], value)


@pytest.mark.parametrize("norm", ["metabn", "running", "transductive", "line"])
def test_without_variance_and_rate_predictions_are_those_of_maml(norm):
    method, maml, tasks = pairs(norm)
    answers = []
    for of in (method.eval(), maml.eval()):
        q = of.amortize(tasks.support)
        answers.append((q.psi.mean, of.predictive(q, tasks.query.x).log_prob(tasks.query.y)))
    assert method.amortize(tasks.support).psi.count == 10
    torch.testing.assert_close(answers[0], answers[1])


def test_a_single_sample_is_the_center_and_with_a_rate_it_is_maml_from_there():
    method, tasks = make(eval_samples=1, **STEPS).eval(), batch(1)
    with torch.no_grad():
        method.prior.log_rate.fill_(math.log(0.4))
    maml = maml_like(method, inner_rate=(0.4, 0.2, 0.2, 0.2), test_steps=4)
    others = (method, maml, maml_like(method, **STEPS))
    found, expected, unmoved = (of.predictive(of.amortize(tasks.support), tasks.query.x).probs for of in others)
    torch.testing.assert_close(found, expected)
    assert (found - unmoved).abs().max() > 1e-3


# -- the bound -------------------------------------------------------------------------------------------------------


def mean_loss(method, parameters, data: Labeled):
    """Of one task under its own parameters, and the support statistics."""
    logits, statistics = functional_call(method.network, parameters, (data.x,))
    return F.cross_entropy(logits[0], data.y[0]), statistics


def descended(method, parameters, data: Labeled, rate):
    gradients = torch.autograd.grad(
        mean_loss(method, parameters, data)[0], list(parameters.values()), create_graph=True
    )
    return {n: p - rate * g for (n, p), g in zip(parameters.items(), gradients, strict=True)}


def flat(parameters) -> torch.Tensor:
    return torch.cat([p.flatten() for p in parameters])


def kl_by_hand(method, task: TaskBatch) -> torch.Tensor:
    """By torch's KL between Gaussians with dense covariances."""
    mu, both = dict(method.network.named_parameters()), []
    for start, data in ((method.inference, task.query), (method.prior, task.support)):
        mean = flat(descended(method, mu, data, start.log_rate.exp()).values())
        both.append(MultivariateNormal(mean, torch.diag(flat(start.log_std).mul(2).exp())))
    return kl_divergence(*both)


def test_the_kl_is_torchs_between_dense_gaussians():
    method, tasks = make(), batch(3)
    with torch.no_grad():
        method.inference.log_rate.fill_(math.log(0.3))
    found = method.kl(method.start(method.inference, tasks.query), tasks.support)
    expected = torch.stack([kl_by_hand(method, tasks.task(t)) for t in range(3)])
    torch.testing.assert_close(found, expected)
    assert found.std() > 0.1


def test_the_loss_is_the_bound_by_hand_a_task_and_a_draw_at_a_time():
    method, tasks = make(samples=3, kl_weight=0.01, **STEPS), batch()
    torch.manual_seed(5)
    loss = method.loss(tasks)
    torch.manual_seed(5)
    mu, total = dict(method.network.named_parameters()), 0.0
    noise = torch.randn(3, flat(mu.values()).numel(), dtype=torch.float64)
    for task in map(tasks.task, range(2)):
        mean = descended(method, mu, task.query, method.inference.log_rate.exp())
        for drawn in flat(mean.values()) + flat(method.inference.log_std).exp() * noise:
            parts = drawn.split([p.numel() for p in mu.values()])
            theta = {n: part.view_as(mu[n]) for n, part in zip(mu, parts, strict=True)}
            for _ in range(2):
                theta = descended(method, theta, task.support, 0.2)
            _, statistics = mean_loss(method, theta, task.support)
            logits, _ = functional_call(method.network, theta, (task.query.x, statistics))
            total = total - Categorical(logits=logits[0]).log_prob(task.query.y[0]).mean() / 3 / 2
        total = total + 0.01 * kl_by_hand(method, task) / 2
    torch.testing.assert_close(loss, total)
    parameters = list(method.parameters())
    for found, wanted in zip(*(torch.autograd.grad(of, parameters) for of in (loss, total)), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("regression", [False, True])
def test_the_kl_is_0_where_both_starts_are_the_same_and_have_the_same_data(regression):
    method, tasks = (of_regression(), line()) if regression else (make(), batch())
    method.inference.load_state_dict(method.prior.state_dict())
    start = method.start(method.inference, tasks.support)
    torch.testing.assert_close(method.kl(start, tasks.support), torch.zeros(2, dtype=torch.float64))
    assert (method.kl(start, tasks.query) > 1e-6).all()


def test_standard_deviations_that_differ_by_a_tenth_cost_a_thousand_nats_in_100_000_dimensions():
    method, tasks = certain(make()), batch()
    with torch.no_grad():
        for log_std in method.inference.log_std:
            log_std += math.log(1.1)
    start = method.start(method.inference, tasks.query)
    dimensions = start.normal.mean.shape[1]
    assert dimensions == sum(p.numel() for p in method.network.parameters())
    expected = torch.full((2,), (1.1**2 - 1) / 2 - math.log(1.1), dtype=torch.float64)
    torch.testing.assert_close(method.kl(start, tasks.support) / dimensions, expected)
    assert expected[0].item() * 100_000 == pytest.approx(1000, rel=0.05)


def test_first_order_means_have_the_same_loss_and_other_gradients_of_mu_alone():
    tasks, found = batch(), []
    for first_order in (False, True):
        method = make(first_order_means=first_order, kl_weight=0.01)
        torch.manual_seed(5)
        loss = method.loss(tasks)
        loss.backward()
        found.append((loss, {n: p.grad for n, p in method.named_parameters()}))
    (exact, gradients), (value, approximate) = found
    torch.testing.assert_close(value, exact)
    for name, gradient in gradients.items():
        same = torch.allclose(approximate[name], gradient, rtol=1e-9)
        assert same == (not name.startswith("network.")), name


# -- the exact pushforward of a linear model -------------------------------------------------------------------------


def pushforward(method, support: Labeled, steps: int, rate: float):
    """Matrix and offset of the affine map that the steps are, and mean and std of the start, in numbers of one task."""
    x = torch.cat([support.x[0].flatten(1), torch.ones(support.x.shape[1], 1, dtype=torch.float64)], 1)
    y, n = support.y[0], support.x.shape[1]
    curvature, slope = 2 / n * x.T @ x, 2 / n * x.T @ y
    mu, gamma = flat(method.network.parameters()).detach(), method.prior.log_rate.exp().detach()
    mean = mu - gamma * (curvature @ mu - slope)
    factor = torch.eye(4, dtype=torch.float64) - rate * curvature
    matrix = torch.linalg.matrix_power(factor, steps)
    offset = sum((torch.linalg.matrix_power(factor, k) @ (rate * slope) for k in range(steps)), torch.zeros_like(slope))
    return matrix, offset, mean, flat(method.prior.log_std).exp().detach()


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_on_a_linear_gaussian_model_moments_are_those_of_the_exact_pushforward(steps):
    method, tasks, many = of_regression(inner_rate=0.05, test_steps=steps, eval_samples=20_000).eval(), line(1), 20_000
    with torch.no_grad():
        method.prior.log_rate.fill_(math.log(0.1))
        for start in method.prior.log_std:
            start += 4.0
    matrix, offset, mean, std = pushforward(method, tasks.support, steps, 0.05)
    q = method.amortize(tasks.support)
    found = q.psi.values[0]
    assert found.shape == (many, 4)
    torch.testing.assert_close(q.psi.mean[0], matrix @ mean + offset)  # exact: noise is in opposite pairs
    noise = particles.noise(many, 4, fixed=True, like=found)
    of_noise = (std[:, None] * (noise.T @ noise / many)) * std
    torch.testing.assert_close(torch.cov(found.T, correction=0), matrix @ of_noise @ matrix.T)
    exact = matrix @ torch.diag(std**2) @ matrix.T
    error = ((exact**2 + exact.diag().outer(exact.diag())) / (many / 2)).sqrt()
    assert (torch.cov(found.T) - exact).abs().le(4 * error).all()
    if steps:
        assert (matrix - torch.eye(4)).abs().max() > 0.1
    x = torch.cat([tasks.query.x[0].flatten(1), torch.ones(7, 1, dtype=torch.float64)], 1)
    predictive = method.predictive(q, tasks.query.x)
    torch.testing.assert_close(predictive.mean[0], x @ (matrix @ mean + offset))
    of_target = (x @ exact * x).sum(1) + method.likelihood.predictive(torch.zeros(1, dtype=torch.float64)).variance
    torch.testing.assert_close(predictive.variance[0], of_target, rtol=0.05, atol=0)


# -- draws -----------------------------------------------------------------------------------------------------------


def test_tasks_have_the_same_noise_which_training_draws_anew_and_evaluation_does_not():
    method, one = make(train_steps=0, test_steps=0), batch(1)
    twice = Labeled(one.support.x.repeat(2, 1, 1, 1, 1), one.support.y.repeat(2, 1), 3)
    drawn = [method.amortize(twice).psi.values for _ in range(2)]
    fixed = [method.eval().amortize(twice).psi.values for _ in range(2)]
    for values in (*drawn, *fixed):
        torch.testing.assert_close(values[0], values[1])
        assert values.std(1).min() > 0
    assert not torch.equal(*drawn)
    assert torch.equal(*fixed)


def test_a_frozen_backbone_is_the_same_in_all_draws_and_has_no_part_in_the_kl():
    spec = backbone("conv4", (1, 8, 8), blocks=2, channels=4, frozen=True)
    method, tasks = perturbed(make_method("platipus", spec=spec).double()), batch()
    method.loss(tasks).backward()
    trained = {n for n, p in method.named_parameters() if p.requires_grad}
    assert trained == {
        "network.head.weight", "network.head.bias", *(
            f"{of}.{name}" for of in ("prior", "inference") for name in ("log_rate", "log_std.0", "log_std.1")
        ),
    }  # fmt: skip
    assert all(p.grad.any() for n, p in method.named_parameters() if n in trained)
    values = method.eval().amortize(tasks.support).psi.values
    body = flat(method.network.backbone.parameters())
    torch.testing.assert_close(values[..., : len(body)], body.expand(2, 10, -1), rtol=0, atol=0)
    assert values[..., len(body) :].std(1).min() > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"samples": 0}, "must be at least 1; got 0, 10"),
        ({"eval_samples": 0}, "must be at least 1; got 2, 0"),
        ({"kl_weight": -1.0}, "kl_weight must be finite and not negative; got -1.0"),
        ({"mean_rate": 0.0}, "mean_rate must be positive and finite; got 0.0"),
        ({"initial_log_std": -21.0}, "initial_log_std must be from -20 to 0; got -21.0"),
        ({"initial_log_std": 0.5}, "initial_log_std must be from -20 to 0; got 0.5"),
        ({"initial_log_std": math.nan}, "initial_log_std must be from -20 to 0; got nan"),
        ({"inner_rate": -1.0}, "inner rates must be positive"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        PLATIPUSSettings(**settings)
