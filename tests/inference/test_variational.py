"""Variational inference against closed forms of the conjugate model."""

import math

import numpy as np
import pytest
import torch
from mlpip_bench.methods.amortized_vi import AmortizedVI, AmortizedVISettings
from mlpip_bench.methods.nonamortized_vi import NonAmortizedVI, NonAmortizedVISettings
from scipy import stats
from torch.distributions import MultivariateNormal, Normal

from builders import backbone, in_float64, linear_problem, linear_stream
from mlpip_bench import registry
from mlpip_bench.benches.family import PRESETS
from mlpip_bench.benches.settings import resolve, scopes
from mlpip_bench.inference.distributions import gaussian_linear_predictive, linear_outputs
from mlpip_bench.inference.method import Problem
from mlpip_bench.inference.objectives import elbo
from mlpip_bench.inference.variational import GaussianPrior, points_of_bound
from mlpip_bench.tasks.batch import Labeled, TaskBatch

NOISE = 0.5


def tasks(dimension: int, count: int, shots: int = 5, first: int = 0) -> TaskBatch:
    return in_float64(linear_stream(dimension, shots, 7, "variational").batch(first, count))


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
    defaults = {"test_steps": 1500, "local_rate": 0.05, "fit_samples": 256}
    method = NonAmortizedVI(linear_problem(dimension), NonAmortizedVISettings(**defaults | settings)).double().eval()
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
    method = AmortizedVI(linear_problem(0), AmortizedVISettings(samples=32)).double()
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


@pytest.mark.parametrize(
    ("observed", "q_has", "likelihood_has"), [("support", 5, 5), ("support-all", 5, 12), ("support+query", 12, 12)]
)
def test_the_points_of_each_reading(observed, q_has, likelihood_has):
    batch = tasks(3, 2)
    found = points_of_bound(batch, observed, lambda x, statistics=(): (x.flatten(2), statistics))
    assert torch.equal(found.q_data.y, batch.merged.y[:, :q_has])
    assert torch.equal(found.likelihood_data.y, batch.merged.y[:, :likelihood_has])
    assert torch.equal(found.q_features, batch.merged.x.flatten(2)[:, :q_has])
    assert torch.equal(found.likelihood_features, batch.merged.x.flatten(2)[:, :likelihood_has])


def classification_batch(tasks: int = 2, way: int = 3, shots: int = 2, queries: int = 3) -> TaskBatch:
    def labeled(each: int) -> Labeled:
        y = torch.arange(way).repeat(tasks, each)
        return Labeled(
            torch.rand(tasks, way * each, 1, 8, 8, dtype=torch.float64) + 0.3 * y[..., None, None, None], y, way
        )

    return TaskBatch(labeled(shots), labeled(queries))


def weight_space_loss(psi: Normal, features, data: Labeled, weight: float, prior_std: float) -> tuple[float, float]:
    """The negative bound per point, and its standard error, from draws of whole weight vectors."""
    torch.manual_seed(99)
    draws = 4000
    weights = psi.mean + psi.stddev * torch.randn(draws, *psi.mean.shape, dtype=torch.float64)
    logits = torch.einsum("tpf,stwf->stpw", features, weights[..., :-1]) + weights[..., None, :, -1]
    chosen = logits.gather(-1, data.y.expand(draws, -1, -1).unsqueeze(-1)).squeeze(-1)
    values = (chosen - logits.exp().sum(-1).log()).sum(-1).mean(1)  # [draw], of all points and a mean task
    mean, error = float(values.mean()), float(values.std()) / math.sqrt(draws)
    kl = math.log(prior_std) - psi.stddev.log() + (psi.variance + psi.mean.square()) / (2 * prior_std**2) - 0.5
    points = data.y.shape[1]
    return -(mean - weight * float(kl.sum((1, 2)).mean())) / points, error / points


@pytest.mark.parametrize("observed", ["support", "support-all", "support+query"])
@pytest.mark.parametrize(("beta", "prior_std"), [(1.0, 1.0), (0.05, 1.0), ("1/points", 0.5)])
@pytest.mark.parametrize("plugin", [AmortizedVI, NonAmortizedVI])
def test_the_loss_of_each_reading_is_the_bound_in_weight_space(plugin, beta, prior_std, observed):
    torch.manual_seed(3)
    spec, batch = backbone("conv4", (1, 8, 8), blocks=2, channels=4), classification_batch()
    settings = {"observed": observed, "beta": beta, "prior_std": prior_std, "dropout": False, "samples": 200}
    if plugin is NonAmortizedVI:
        settings["train_steps"] = 8
    method = plugin(Problem(spec, "metabn", 3), plugin.Settings(**settings)).double().train()
    given = batch.merged if observed == "support+query" else batch.support
    seen = batch.support if observed == "support" else batch.merged
    # Independent of the code under test: queries are normalized by the support set's moments, one set at a time.
    network = method.backbone if plugin is NonAmortizedVI else method.model.backbone
    with torch.no_grad():
        torch.manual_seed(7)
        q = method.amortize(given)
        torch.manual_seed(7)
        losses = [float(method.loss(batch))]  # non-amortized: the same noise, and so the same fit
        of_given, statistics = network(given.x)
        rest = seen.x[:, given.x.shape[1] :]
        features = torch.cat([of_given, network(rest, statistics)[0]], 1) if rest.shape[1] else of_given
        if plugin is AmortizedVI:
            losses += [float(method.loss(batch)) for _ in range(5)]
    weight = 1 / seen.y.shape[1] if beta == "1/points" else beta
    expected, error = weight_space_loss(q.psi, features, seen, weight, prior_std)
    spread = error * math.sqrt(4000 / 200)  # of one loss, which has 200 samples of its own for each point
    assert sum(losses) / len(losses) == pytest.approx(expected, abs=4 * (error + spread))
    assert error < 0.02 * abs(expected)


def test_with_weight_1_the_readings_are_bounds_of_the_evidence_of_the_points_that_they_see():
    batch = tasks(3, 40)
    for observed, seen in (("support-all", batch.merged), ("support+query", batch.merged)):
        torch.manual_seed(0)
        method = AmortizedVI(linear_problem(3), AmortizedVISettings(observed=observed, samples=2000)).double()
        with torch.no_grad():
            bounds = -float(method.loss(batch)) * seen.y.shape[1]
        assert bounds < float(log_evidence(seen).mean())


@pytest.mark.parametrize("plugin", [AmortizedVI, NonAmortizedVI])
def test_only_the_bound_with_weight_1_says_that_it_bounds_the_evidence(plugin):
    def claims(**settings: object) -> bool:
        return plugin(linear_problem(3), plugin.Settings(**settings)).bounds_evidence

    assert claims(beta=1.0)
    for other in ({"beta": 0.05}, {"beta": "1/points"}, {"anneal": 5}, {"prior_std": 2.0}, {"observed": "support-all"}):
        assert not claims(**{"beta": 1.0} | other), other


@pytest.mark.parametrize("name", ["amortized_vi", "nonamortized_vi"])
@pytest.mark.parametrize("preset", PRESETS)
def test_presets_have_what_validation_chose_on_images_and_the_bound_elsewhere(name, preset):
    plugin = registry.method(name)
    for bench in ("omni5w1s", "tiny5w5s", "context16", "linear5s", "toy5", "toyfresh5", "views1s"):
        spec = registry.bench(bench)
        family = registry.family(spec.family)
        if family.kind in plugin.handles:
            found = resolve(plugin, name, family.budgets[preset], preset, scopes(family, spec), {}).settings
            assert found.bounds_evidence == (family.kind != "classification"), bench


@pytest.mark.parametrize("plugin", [AmortizedVI, NonAmortizedVI])
def test_the_weight_of_the_kl_rises_to_beta_and_is_beta_at_evaluation(plugin, tmp_path):
    batch = tasks(3, 2)

    def build(anneal: int, beta: float):
        torch.manual_seed(0)
        return plugin(linear_problem(3), plugin.Settings(anneal=anneal, beta=beta)).double()

    def loss(method) -> float:
        torch.manual_seed(1)
        return method.loss(batch).item()

    annealed = build(4, 0.8)
    found = [loss(annealed) for _ in range(6)]
    assert found == pytest.approx([loss(build(0, beta)) for beta in (0.0, 0.2, 0.4, 0.6, 0.8, 0.8)])
    fresh = build(4, 0.8)
    fresh.load_state_dict(annealed.state_dict())  # what is loaded goes on where that was
    assert loss(fresh) == found[-1]
    at_test = [m.eval().amortize(batch.support).psi.mean for m in (build(4, 0.8), build(0, 0.8))]
    torch.testing.assert_close(*at_test)


@pytest.mark.parametrize("plugin", [AmortizedVI, NonAmortizedVI])
def test_q_starts_at_the_initial_log_variance(plugin):
    steps = {"train_steps": 0, "test_steps": 0} if plugin is NonAmortizedVI else {}
    method = plugin(linear_problem(3), plugin.Settings(initial_log_variance=-3.0, **steps)).double()
    variance = method.amortize(tasks(3, 5).support).psi.variance
    torch.testing.assert_close(variance, torch.full_like(variance, math.exp(-3)))


def test_a_learned_prior_starts_at_the_prior_scale():
    for learned in (True, False):
        prior = GaussianPrior(learned=learned, std=0.3).double()(torch.zeros(2, 3, dtype=torch.float64))
        torch.testing.assert_close(prior.stddev, torch.full((2, 3), 0.3, dtype=torch.float64))


def test_the_loss_is_the_negative_bound_per_point_of_d():
    batch = tasks(3, 4)
    torch.manual_seed(0)
    method = AmortizedVI(linear_problem(3), AmortizedVISettings(samples=20_000)).double()
    psi = method.amortize(batch.support).psi
    expected = -exact_bound(psi, batch.support).mean() / 5
    torch.testing.assert_close(method.loss(batch), expected, rtol=2e-2, atol=0)


def test_outputs_are_linear_in_psi():
    x = torch.rand(2, 3, 4, dtype=torch.float64)
    psi = torch.rand(2, 1, 5, dtype=torch.float64)
    by_hand = (with_one(x[..., None, None]) * psi).sum(-1, keepdim=True)
    torch.testing.assert_close(linear_outputs(x, psi), by_hand)


@pytest.mark.parametrize(
    "wrong",
    [
        {"samples": 0},
        {"beta": -1.0},
        {"test_steps": -1},
        {"local_rate": 0.0},
        {"prior_std": 0.0},
        {"anneal": -1},
        {"initial_log_variance": 11.0},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong)).split("_")[-1]):
        NonAmortizedVISettings(**wrong)


GAUSSIAN = {
    "versa": {"samples": 10},
    "amortized_vi": {},
    "nonamortized_vi": {"test_steps": 20},
}


@pytest.mark.parametrize("name", GAUSSIAN)
def test_the_predictive_of_a_regression_is_in_closed_form_at_evaluation(name):
    batch, plugin = tasks(3, 4), registry.method(name)
    torch.manual_seed(0)
    method = plugin(linear_problem(3), plugin.Settings(**GAUSSIAN[name])).double().eval()
    with torch.no_grad():
        q = method.amortize(batch.support)
        found = -method.predictive(q, batch.query.x).log_prob(batch.query.y)
    phi, mean, variance = with_one(batch.query.x), q.psi.mean[:, 0], q.psi.variance[:, 0]
    center = torch.einsum("tpf,tf->tp", phi, mean)
    std = (torch.einsum("tpf,tf->tp", phi.square(), variance) + NOISE**2).sqrt()
    by_scipy = -stats.norm.logpdf(batch.query.y.numpy(), center.numpy(), std.numpy())
    np.testing.assert_allclose(found.numpy(), by_scipy, rtol=1e-10)
    y = center + 0.7 * std  # where draws of psi come near
    draws = torch.einsum("tpf,stf->stp", phi, mean + variance.sqrt() * torch.randn(100_000, *mean.shape).double())
    densities = Normal(draws, NOISE).log_prob(y).exp()
    error = densities.std(0) / densities.mean(0) / math.sqrt(len(draws))  # relative, so of the logarithm
    assert (error < 0.02).all()
    with torch.no_grad():
        closed = method.predictive(q, batch.query.x).log_prob(y)
    assert ((closed - densities.mean(0).log()).abs() < 5 * error).all()
