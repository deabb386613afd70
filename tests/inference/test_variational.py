"""Variational inference against closed forms of the conjugate model."""

import math

import pytest
import torch
from mlpip_bench.methods.amortized_vi import AmortizedVI
from mlpip_bench.methods.nonamortized_vi import NonAmortizedVI, NonAmortizedVISettings
from torch.distributions import MultivariateNormal, Normal

from builders import backbone
from mlpip_bench.inference.distributions import gaussian_linear_predictive, linear_outputs
from mlpip_bench.inference.method import Problem
from mlpip_bench.inference.objectives import elbo
from mlpip_bench.inference.variational import GaussianPrior, VariationalSettings, observed_data
from mlpip_bench.tasks.batch import Labeled, TaskBatch, TaskShape
from mlpip_bench.tasks.linear_gaussian import LinearGaussian, LinearGaussianStream

NOISE = 0.5


def problem(dimension: int) -> Problem:
    return Problem(backbone("identity", (dimension, 1, 1)), "metabn", 1, "regression", NOISE)


def tasks(dimension: int, count: int, shots: int = 5, first: int = 0) -> TaskBatch:
    stream = LinearGaussianStream(
        LinearGaussian(dimension, NOISE), TaskShape(1, shots, 7), torch.device("cpu"), "variational"
    )
    batch = stream.batch(first, count)
    parts = (batch.support, batch.query)
    return TaskBatch(*(Labeled(p.x.double(), p.y.double(), 1) for p in parts))


def with_one(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(x.flatten(2), (0, 1), value=1.0)


def log_evidence(data: Labeled) -> torch.Tensor:
    phi = with_one(data.x)
    covariance = phi @ phi.mT + NOISE**2 * torch.eye(phi.shape[1], dtype=phi.dtype)
    return MultivariateNormal(torch.zeros_like(data.y), covariance).log_prob(data.y)


def bound(psi: Normal, data: Labeled, *, samples: int = 4096, beta: float = 1.0) -> torch.Tensor:
    conditional = gaussian_linear_predictive(data.x.flatten(2), psi, samples, noise_std=NOISE, fixed_noise=True)
    return elbo(conditional, data, psi, GaussianPrior(learned=False).double()(psi.mean), beta)


def exact_bound(psi: Normal, data: Labeled) -> torch.Tensor:
    """The bound with the expectation over psi in closed form, written out."""
    phi, mean, variance = with_one(data.x), psi.mean[:, 0], psi.variance[:, 0]
    residual = data.y - (phi @ mean.unsqueeze(-1)).squeeze(-1)
    spread = (phi.square() @ variance.unsqueeze(-1)).squeeze(-1)
    expected = -0.5 * math.log(2 * math.pi * NOISE**2) - (residual.square() + spread) / (2 * NOISE**2)
    kl = 0.5 * (variance + mean.square() - 1 - variance.log())
    return expected.sum(-1) - kl.sum(-1)


def random_psi(count: int, coordinates: int, seed: int) -> Normal:
    torch.manual_seed(seed)
    std = (0.7 * torch.randn(count, 1, coordinates, dtype=torch.float64) - 1).exp()
    return Normal(torch.randn(count, 1, coordinates, dtype=torch.float64), std)


@pytest.mark.parametrize("dimension", [0, 3])
def test_the_bound_is_its_closed_form_and_never_above_the_log_evidence(dimension):
    data = tasks(dimension, 40).support
    for seed in range(5):
        psi = random_psi(40, dimension + 1, seed)
        exact = exact_bound(psi, data)
        torch.testing.assert_close(bound(psi, data), exact, rtol=2e-2, atol=2e-2)
        assert (exact < log_evidence(data)).all()


def test_the_bound_is_the_log_evidence_at_the_exact_posterior():
    data = tasks(0, 30).support  # one coordinate: the factorized family holds the posterior
    variance = 1 / (1 + 5 / NOISE**2)
    mean = variance * data.y.sum(-1) / NOISE**2
    psi = Normal(mean[:, None, None], torch.full((30, 1, 1), math.sqrt(variance), dtype=torch.float64))
    torch.testing.assert_close(exact_bound(psi, data), log_evidence(data))
    torch.testing.assert_close(bound(psi, data), log_evidence(data), rtol=0, atol=2e-3)


def test_the_kl_is_zero_when_q_is_the_prior():
    data = tasks(3, 6).support
    psi = GaussianPrior(learned=False).double()(torch.zeros(6, 1, 4, dtype=torch.float64))
    with_kl, without = bound(psi, data), bound(psi, data, beta=0.0)
    assert torch.equal(with_kl, without)
    moved = Normal(psi.mean + 0.5, psi.stddev)
    # KL of unit Gaussians whose means differ by 0.5 in each of 4 coordinates: 4 * 0.5 * 0.25.
    torch.testing.assert_close(
        bound(moved, data, beta=0.0) - bound(moved, data), torch.full((6,), 0.5, dtype=torch.float64)
    )


def test_beta_weighs_the_kl_alone():
    data, psi = tasks(3, 6).support, random_psi(6, 4, 0)
    values = [bound(psi, data, beta=beta) for beta in (0.0, 0.5, 1.0)]
    torch.testing.assert_close(values[1], (values[0] + values[2]) / 2)


def test_a_learned_prior_gets_the_gradient_of_the_kl():
    prior, psi = GaussianPrior(learned=True).double(), random_psi(6, 4, 1)
    with torch.no_grad():
        prior.log_scale.fill_(0.3)
    data = tasks(3, 6).support
    conditional = gaussian_linear_predictive(data.x.flatten(2), psi, 8, noise_std=NOISE, fixed_noise=True)
    elbo(conditional, data, psi, prior(psi.mean)).sum().backward()
    by_hand = ((psi.variance + psi.mean.square()) / math.exp(0.6) - 1).sum()
    torch.testing.assert_close(prior.log_scale.grad, by_hand)


def test_the_elbo_is_a_mean_of_logs_and_a_sum_over_d():
    data = tasks(3, 2).support
    psi = random_psi(2, 4, 2)
    conditional = gaussian_linear_predictive(data.x.flatten(2), psi, 6, noise_std=NOISE, fixed_noise=True)
    value = elbo(conditional, data, psi, psi)  # no KL
    drawn = conditional.components.mean  # [sample, task, point]
    total = 0.0
    for point in range(5):
        logs = [Normal(drawn[s, 0, point], NOISE).log_prob(data.y[0, point]).item() for s in range(6)]
        total += sum(logs) / 6
    assert float(value[0]) == pytest.approx(total)


def fitted(dimension: int, data: Labeled, **settings: object) -> Normal:
    defaults = {"test_steps": 1500, "local_rate": 0.05, "eval_samples": 256}
    method = NonAmortizedVI(problem(dimension), NonAmortizedVISettings(**defaults | settings)).double().eval()
    return method.amortize(data).psi


def test_non_amortised_vi_finds_the_exact_posterior_where_the_family_holds_it():
    data = tasks(0, 20).support
    psi, variance = fitted(0, data), 1 / (1 + 5 / NOISE**2)
    torch.testing.assert_close(psi.mean[:, 0, 0], variance * data.y.sum(-1) / NOISE**2, rtol=0, atol=2e-3)
    torch.testing.assert_close(
        psi.variance[:, 0, 0], torch.full((20,), variance, dtype=torch.float64), rtol=0.02, atol=0
    )


def test_non_amortised_vi_finds_the_mean_field_optimum():
    # Mean field of a Gaussian posterior: its mean, and the inverse diagonal of its precision.
    data = tasks(3, 10, shots=8).support
    phi = with_one(data.x)
    precision = torch.eye(4, dtype=torch.float64) + phi.mT @ phi / NOISE**2
    mean = torch.linalg.solve(precision, phi.mT @ data.y.unsqueeze(-1) / NOISE**2).squeeze(-1)
    psi = fitted(3, data)
    torch.testing.assert_close(psi.mean[:, 0], mean, rtol=0, atol=1e-2)
    torch.testing.assert_close(psi.variance[:, 0], 1 / precision.diagonal(dim1=-2, dim2=-1), rtol=0.05, atol=0)


def trained(steps: int = 1000) -> AmortizedVI:
    torch.manual_seed(0)
    method = AmortizedVI(problem(0), VariationalSettings(samples=32)).double()
    optimizer = torch.optim.Adam(method.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 0.5 ** (4 * i / steps))
    for i in range(steps):
        optimizer.zero_grad()
        method.loss(tasks(0, 16, first=16 * (i % 40))).backward()
        optimizer.step()
        schedule.step()
    return method.eval()


def test_amortised_and_non_amortised_vi_agree_in_the_conjugate_case():
    data = tasks(0, 20, first=5000).support
    amortized, local = trained().amortize(data).psi, fitted(0, data)
    torch.testing.assert_close(amortized.mean, local.mean, rtol=0, atol=0.06)
    torch.testing.assert_close(amortized.stddev, local.stddev, rtol=0.15, atol=0)
    assert (exact_bound(amortized, data) <= log_evidence(data)).all()
    torch.testing.assert_close(exact_bound(amortized, data), log_evidence(data), rtol=0, atol=0.15)


def test_a_step_of_non_amortised_vi_is_adam_on_the_negative_bound():
    # From the prior, the first step of Adam has the length of its rate in each coordinate, downhill.
    data = tasks(3, 4).support
    psi = fitted(3, data, test_steps=1)
    start = torch.zeros(4, 1, 4, dtype=torch.float64, requires_grad=True)
    bound(Normal(start, torch.ones_like(start)), data, samples=256).sum().backward()
    torch.testing.assert_close(psi.mean, 0.05 * start.grad.sign(), rtol=1e-4, atol=0)


def test_nothing_is_differentiated_through_the_local_fit():
    torch.manual_seed(0)
    spec = backbone("conv4", (1, 8, 8), blocks=1, channels=4)
    method = NonAmortizedVI(Problem(spec, "layer", 3), NonAmortizedVISettings(train_steps=3, samples=4, dropout=False))
    y = torch.arange(3).repeat(2, 2)
    support = Labeled(torch.rand(2, 6, 1, 8, 8), y, 3)
    assert not method.amortize(support).psi.mean.requires_grad
    loss = method.loss(TaskBatch(support, support))
    loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in method.parameters())


@pytest.mark.parametrize(("observed", "points"), [("support", 5), ("support+query", 12)])
def test_d_of_the_bound(observed, points):
    batch = tasks(3, 2)
    data = observed_data(batch, observed)
    assert data.y.shape == (2, points)
    assert torch.equal(data.y[:, :5], batch.support.y)
    torch.manual_seed(1)
    method = AmortizedVI(problem(3), VariationalSettings(observed=observed, samples=4)).double()
    loss = method.loss(batch)
    changed = TaskBatch(batch.support, Labeled(batch.query.x, batch.query.y + 1, 1))
    torch.manual_seed(1)
    method = AmortizedVI(problem(3), VariationalSettings(observed=observed, samples=4)).double()
    assert (method.loss(changed) == loss) == (observed == "support")


def test_the_loss_is_the_negative_bound_per_point_of_d():
    batch = tasks(3, 4)
    torch.manual_seed(0)
    method = AmortizedVI(problem(3), VariationalSettings(samples=20_000)).double()
    psi = method.amortize(batch.support).psi
    expected = -exact_bound(psi, batch.support).mean() / 5
    torch.testing.assert_close(method.loss(batch), expected, rtol=2e-2, atol=0)


def test_outputs_are_linear_in_psi():
    x = torch.rand(2, 3, 4, dtype=torch.float64)
    psi = torch.rand(2, 1, 5, dtype=torch.float64)
    by_hand = (with_one(x[..., None, None]) * psi).sum(-1, keepdim=True)
    torch.testing.assert_close(linear_outputs(x, psi), by_hand)


@pytest.mark.parametrize("wrong", [{"samples": 0}, {"beta": -1.0}, {"test_steps": -1}, {"local_rate": 0.0}])
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong)).split("_")[-1]):
        NonAmortizedVISettings(**wrong)
