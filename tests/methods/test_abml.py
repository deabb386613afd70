"""ABML against MAML, torch's KL, derivatives by differences, and the mean-field optimum of linear regression."""

import math

import pytest
import torch
from mlpip_bench.methods.abml import ABML, ABMLSettings, Gaussian
from torch.distributions import Categorical, Normal, kl_divergence

from builders import SMALL, in_float64, linear_problem, linear_stream, make_batch, make_method
from mlpip_bench.inference import particles
from mlpip_bench.inference.conjugate import conjugate_posterior, with_bias
from mlpip_bench.inference.method import Problem
from mlpip_bench.nn.backbone import BackboneSpec
from mlpip_bench.tasks.batch import Labeled, TaskBatch

POINT = {"initial_log_std": -20.0, "kl_weight": 0.0}
"""Settings of a q without spread, 2e-9 wide."""


def make(name: str = "abml", norm: str = "metabn", **settings: object):
    """With a head whose rows differ, as after training."""
    method = make_method(name, norm, **settings).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in method.network.head.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return method


def batch(**shape: int) -> TaskBatch:
    torch.manual_seed(1)
    return make_batch(2, **shape)


def probs(method, tasks: TaskBatch) -> torch.Tensor:
    with torch.no_grad():
        return method.predictive(method.amortize(tasks.support), tasks.query.x).probs


def gaussian(seed: int) -> Gaussian:
    draw = torch.Generator().manual_seed(seed)
    shapes = {"a": (2, 4, 3), "b": (2,)}

    def normal() -> dict[str, torch.Tensor]:
        return {n: torch.randn(shape, generator=draw, dtype=torch.float64) for n, shape in shapes.items()}

    return Gaussian(normal(), normal())


def variables(of: Gaussian) -> Gaussian:
    return of.mapped(lambda t: t.clone().requires_grad_())


# -- MAML ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize("samples", [1, 3])
def test_without_spread_loss_and_gradients_are_those_of_maml(samples, first_order):
    tasks, settings = batch(), {"train_steps": 2, "inner_rate": 0.3, "first_order": first_order}
    ours, theirs = make(samples=samples, **POINT, **settings), make("maml", **settings)
    for found, expected in zip(ours.network.parameters(), theirs.network.parameters(), strict=True):
        assert torch.equal(found, expected)
    losses = [method.loss(tasks) for method in (ours, theirs)]
    torch.testing.assert_close(*losses, rtol=1e-7, atol=0)
    for loss in losses:
        loss.backward()
    for found, expected in zip(ours.network.parameters(), theirs.network.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("way", [2, 3, 5])
def test_without_spread_predictions_are_those_of_maml_at_any_way(way):
    tasks, settings = batch(way=way), {"test_steps": 2, "inner_rate": 0.3}
    found, expected = (probs(make(n, **s, **settings).eval(), tasks) for n, s in (("abml", POINT), ("maml", {})))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_one_fixed_draw_is_the_center_and_then_wide_ones_are_maml_too():
    tasks, settings = batch(), {"test_steps": 2, "inner_rate": 0.3}
    ours = make(eval_samples=1, kl_weight=0.0, initial_log_std=-1.0, **settings).eval()
    torch.testing.assert_close(probs(ours, tasks), probs(make("maml", **settings).eval(), tasks))
    wide = make(kl_weight=0.0, initial_log_std=-1.0, **settings).eval()
    assert (probs(wide, tasks) - probs(ours, tasks)).abs().max() > 1e-2


# -- the divergence --------------------------------------------------------------------------------------------------


def test_the_divergence_is_torchs():
    q, p = gaussian(0), gaussian(1)
    expected = torch.zeros(2, dtype=torch.float64)
    for name in q.mean:
        normals = [Normal(g.mean[name], g.log_std[name].exp()) for g in (q, p)]
        expected += kl_divergence(*normals).reshape(2, -1).sum(1)
    torch.testing.assert_close(q.kl(p), expected)


def test_at_the_start_the_divergence_and_its_gradient_are_0_and_its_curvature_is_that_by_hand():
    p = gaussian(0)
    q = variables(p)
    divergence = q.kl(p)
    assert divergence.tolist() == [0.0, 0.0]
    values = [*q.mean.values(), *q.log_std.values()]
    gradients = torch.autograd.grad(divergence.sum(), values, create_graph=True)
    assert not any(g.any() for g in gradients)
    curvatures = torch.autograd.grad(sum(g.sum() for g in gradients), values)
    expected = [*((-2 * s).exp() for s in p.log_std.values()), *(torch.full_like(s, 2) for s in p.log_std.values())]
    for found, by_hand in zip(curvatures, expected, strict=True):
        torch.testing.assert_close(found, by_hand)


def test_the_gradient_of_the_divergence_is_that_by_hand():
    p, q = gaussian(0), variables(gaussian(1))
    found = torch.autograd.grad(q.kl(p).sum(), [*q.mean.values(), *q.log_std.values()])
    by_mean = [(q.mean[n] - p.mean[n]) / p.log_std[n].exp() ** 2 for n in q.mean]
    by_log_std = [(q.log_std[n].exp() / p.log_std[n].exp()) ** 2 - 1 for n in q.mean]
    for gradient, by_hand in zip(found, [*by_mean, *by_log_std], strict=True):
        torch.testing.assert_close(gradient, by_hand)


# -- steps and objective ---------------------------------------------------------------------------------------------


def test_a_step_and_the_loss_are_those_by_hand():
    """One step of each task in mu and log sigma, a draw at a time; then logs are averaged, and not densities."""
    rate, weight, log_std, samples = 0.2, 1e-3, -2.0, 3
    method = make(samples=samples, inner_rate=rate, kl_weight=weight, initial_log_std=log_std)
    tasks, network = batch(), method.network
    start = network.flat(network.initial(1, 3))[0].detach()
    torch.manual_seed(5)
    found = method.loss(tasks).item()
    torch.manual_seed(5)
    noise = [torch.randn(samples, len(start), dtype=torch.float64) for _ in range(2)]
    total = 0.0
    for t in range(2):
        task = tasks.task(t)
        mu, rho = start.clone().requires_grad_(), torch.full_like(start, log_std).requires_grad_()
        losses = [
            network.losses(network.unflatten((mu + rho.exp() * e).unsqueeze(0)), task.support)[0] for e in noise[0]
        ]
        by_mu, by_rho = torch.autograd.grad(sum(losses).sum() / samples, (mu, rho))  # the KL is flat there
        q = Normal(mu.detach() - rate * by_mu, (rho.detach() - rate * by_rho).exp())
        log_likelihood = 0.0
        for e in noise[1]:
            psi = network.unflatten((q.mean + q.stddev * e).unsqueeze(0))
            _, statistics = network.losses(psi, task.support)
            log_likelihood -= network.losses(psi, task.query, statistics)[0].item() / samples
        divergence = kl_divergence(q, Normal(start, math.exp(log_std))).sum().item()
        total += weight * divergence - log_likelihood
        assert weight * divergence > 1e-3
    assert found == pytest.approx(total / 2, rel=1e-10)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_gradients_are_those_of_differences_where_the_divergence_weighs_much(steps):
    method, tasks = make(train_steps=steps, samples=2, inner_rate=0.1, kl_weight=0.02, initial_log_std=-1.5), batch()

    def loss() -> torch.Tensor:
        torch.manual_seed(7)
        return method.loss(tasks)

    loss().backward()
    names = [n for n, _ in method.network.named_parameters()]
    chosen = [names.index(n) for n in ("backbone.blocks.0.norm.shift", "backbone.blocks.1.conv.weight", "head.weight")]
    for parameter in [p for i in chosen for p in (list(method.network.parameters())[i], method.log_std[i])]:
        direction, step = torch.randn(parameter.shape, dtype=torch.float64), 1e-6
        values = []
        for move in (step, -2 * step, step):
            with torch.no_grad():
                parameter += move * direction
            values.append(loss().item())
        found = (parameter.grad * direction).sum().item()
        assert abs(found) > 1e-5
        assert found == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-4)


def test_training_draws_anew_and_evaluation_does_not():
    method, tasks = make(initial_log_std=-1.0), batch()
    assert method.loss(tasks).item() != method.loss(tasks).item()
    method.eval()
    assert torch.equal(probs(method, tasks), probs(method, tasks))


def test_the_predictive_is_the_mean_of_the_draws_that_it_has():
    method, tasks = make(eval_samples=4, initial_log_std=-1.0).eval(), batch()
    with torch.no_grad():
        q = method.amortize(tasks.support)
        expected = 0
        for m in range(4):
            parameters = method.network.unflatten(q.psi.values[:, m])
            _, statistics = method.network.losses(parameters, tasks.support)  # its own
            logits, _ = torch.func.functional_call(method.network, parameters, (tasks.query.x, statistics))
            expected = expected + Categorical(logits=logits).probs / 4
    torch.testing.assert_close(probs(method, tasks), expected)


@pytest.mark.parametrize("training", [False, True])
def test_frozen_parameters_are_points_at_their_values(training):
    class Frozen(BackboneSpec):
        def build(self, *args, **kwargs):
            built = super().build(*args, **kwargs)
            built.blocks[0].requires_grad_(False)
            return built

    torch.manual_seed(0)
    spec = Frozen(SMALL.name, SMALL.plugin, SMALL.settings, SMALL.input_shape)
    method = ABML(Problem(spec, "metabn", 3), ABMLSettings(initial_log_std=-1.0, samples=4)).double().train(training)
    q = method.amortize(batch().support).psi
    variance = method.network.unflatten(q.variance)
    mean = method.network.unflatten(q.mean)
    for name, parameter in method.network.named_parameters():
        if name.startswith("backbone.blocks.0."):
            assert torch.equal(variance[name], torch.zeros_like(variance[name]))
            torch.testing.assert_close(mean[name], parameter.expand_as(mean[name]), rtol=0, atol=1e-15)
        else:
            assert (variance[name] > 0).all()
    method.train().loss(batch()).backward()
    graded = {
        n
        for n, own in zip(dict(method.network.named_parameters()), method.log_std, strict=True)
        if own.grad is not None
    }
    assert graded == set(method.network.moving)


# -- the mean-field optimum ------------------------------------------------------------------------------------------


def regression(shots: int, **settings: object) -> tuple[ABML, TaskBatch]:
    """Where the prior is N(0, I), and the steps' squared error and divergence are the bound, up to a factor."""
    noise = 0.5
    tasks = in_float64(linear_stream(2, shots, 4, "oracle", noise_std=noise).batch(0, 5))
    own = {"initial_log_std": 0.0, "kl_weight": 2 * noise**2 / shots, "test_steps": 1000, "inner_rate": 0.2}
    method = ABML(linear_problem(2, noise), ABMLSettings(**(own | settings)))
    return method.double().eval(), tasks


def mean_field(tasks: Labeled) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean of the exact posterior, and one over the diagonal of its precision."""
    exact = conjugate_posterior(with_bias(tasks.x.flatten(2)), tasks.y, 0.25)
    return exact.mean, 1 / exact.precision_matrix.diagonal(dim1=-2, dim2=-1)


def test_many_steps_reach_the_mean_field_optimum(monkeypatch):
    """With six points that have the moments of a standard normal, so that the fit has no error of sampling."""
    points = math.sqrt(3) * torch.eye(3, dtype=torch.float64)
    monkeypatch.setattr(particles, "noise", lambda *_, **__: torch.cat([points, -points]))
    method, tasks = regression(5, eval_samples=6)
    q = method.amortize(tasks.support).psi
    mean, variance = mean_field(tasks.support)
    torch.testing.assert_close(q.mean, mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(q.variance, variance, rtol=1e-5, atol=0)


def test_many_steps_with_many_draws_come_near_it():
    method, tasks = regression(5, eval_samples=1000, test_steps=300)
    q = method.amortize(tasks.support).psi
    mean, variance = mean_field(tasks.support)
    torch.testing.assert_close(q.mean, mean, rtol=1e-3, atol=1e-3)  # the draws are in pairs
    torch.testing.assert_close(q.variance, variance, rtol=0.1, atol=0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"samples": 0},
        {"eval_samples": 0},
        {"kl_weight": -1.0},
        {"kl_weight": math.nan},
        {"kl_weight": math.inf},
        {"initial_log_std": -21.0},
        {"initial_log_std": 0.5},
        {"initial_log_std": math.nan},
        {"inner_rate": 0.0},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match="got"):
        ABMLSettings(**wrong)
