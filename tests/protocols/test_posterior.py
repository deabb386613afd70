import math

import pytest
import torch
from mlpip_bench.methods.exact_linear import ExactLinear
from mlpip_bench.methods.versa import Versa, VersaSettings
from mlpip_bench.protocols.posterior import PosteriorRecovery
from scipy import stats
from torch.distributions import MultivariateNormal, Normal

from builders import in_float64, invoke, linear_problem, linear_stream
from mlpip_bench import registry
from mlpip_bench.evaluation.protocol import Evaluation
from mlpip_bench.inference.conjugate import conjugate_posterior, with_bias
from mlpip_bench.inference.method import Method, Posterior
from mlpip_bench.records import store
from mlpip_bench.tasks.regression import RegressionStream
from mlpip_bench.utils.settings import NoSettings


def toy(shot: int, dimension: int = 0, noise: float = 1.0) -> RegressionStream:
    return linear_stream(dimension, shot, 15, "some", "test", noise_std=noise)


@pytest.mark.parametrize(("shot", "noise"), [(5, 1.0), (10, 0.5)])
def test_the_conjugate_posterior_of_a_mean_is_the_textbooks(shot, noise):
    y = toy(shot).batch(0, 20).support.y.double()
    posterior = conjugate_posterior(torch.ones(20, shot, 1, dtype=torch.float64), y, noise**2)
    variance = 1 / (1 + shot / noise**2)
    torch.testing.assert_close(posterior.variance, torch.full((20, 1), variance, dtype=torch.float64))
    torch.testing.assert_close(posterior.mean[:, 0], variance * y.sum(1) / noise**2)


def test_the_conjugate_posterior_is_bayes_rule():
    """log p(psi | D) - log p(psi) - log p(D | psi) is the same for every psi."""
    batch = toy(4, dimension=2, noise=0.5).batch(0, 3).support
    phi, y = with_bias(batch.x.flatten(2).double()), batch.y.double()
    posterior = conjugate_posterior(phi, y, 0.25)
    psi = torch.randn(50, 3, 3, dtype=torch.float64)
    prior = Normal(0.0, 1.0).log_prob(psi).sum(-1)
    likelihood = Normal((phi * psi.unsqueeze(2)).sum(-1), 0.5).log_prob(y).sum(-1)
    evidence = prior + likelihood - posterior.log_prob(psi)
    torch.testing.assert_close(evidence, evidence[:1].expand(50, -1))


class Given(Method[Normal]):
    """A q that is given."""

    reference, psi, handles = "none 2026", "given", ("regression",)

    def __init__(self, mean: float, std: float, dimension: int = 0) -> None:
        super().__init__(linear_problem(dimension, 1.0), NoSettings())
        self.at = mean, std

    def amortize(self, support):
        shape = (support.tasks, 1, support.x.shape[2] + 1)
        return Posterior(Normal(torch.full(shape, self.at[0]), torch.full(shape, self.at[1])))

    def predictive(self, q, query_x):
        raise NotImplementedError

    def loss(self, batch):
        raise NotImplementedError


def measured(method, stream, tasks=30):
    scores = PosteriorRecovery().measure(Evaluation(method, "best", stream, tasks))
    return {s.metric: s for s in scores}


def test_scores_are_the_closed_forms_of_two_gaussians():
    stream = toy(5)
    found = measured(Given(0.3, 0.6), stream)
    y = stream.batch(0, 30).support.y.double()
    mean, variance = y.sum(1) / 6, 1 / 6
    kl = math.log(0.6 / math.sqrt(variance)) + (variance + (mean - 0.3) ** 2) / (2 * 0.36) - 0.5
    torch.testing.assert_close(torch.tensor(found["kl"].per_task).double(), kl, atol=1e-6, rtol=1e-6)
    assert found["variance_ratio"].per_task == pytest.approx([0.36 * 6] * 30)
    inside = stats.norm.cdf(0.3 + 1.959964 * 0.6, mean, math.sqrt(variance))
    inside -= stats.norm.cdf(0.3 - 1.959964 * 0.6, mean, math.sqrt(variance))
    assert found["coverage"].per_task == pytest.approx(inside.tolist(), abs=1e-6)
    detail = found["kl"].detail
    assert detail["true_mean"] == pytest.approx(mean[:8].tolist())
    assert detail["observations"] == pytest.approx(y[:8].flatten().tolist())
    assert detail["q_std"] == pytest.approx([0.6] * 8)


def test_the_kl_of_several_coordinates_is_that_of_draws():
    stream = toy(6, dimension=2)
    kl = measured(Given(0.1, 0.7, dimension=2), stream, 4)["kl"].per_task
    batch = stream.batch(0, 4).support
    truth = conjugate_posterior(with_bias(batch.x.flatten(2).double()), batch.y.double(), 1.0)
    q = MultivariateNormal(torch.full((3,), 0.1).double(), 0.49 * torch.eye(3).double())
    torch.manual_seed(0)
    draws = truth.sample((40_000,))
    difference = truth.log_prob(draws) - q.log_prob(draws)
    error = difference.std(0) / math.sqrt(len(draws))
    assert ((difference.mean(0) - torch.tensor(kl)).abs() < 5 * error).all()


def test_the_exact_method_is_at_the_truth():
    for dimension in (0, 3):
        found = measured(ExactLinear(linear_problem(dimension, 1.0), NoSettings()), toy(5, dimension))
        assert max(map(abs, found["kl"].per_task)) < 1e-5
        assert found["variance_ratio"].per_task == pytest.approx([1.0] * 30, rel=1e-5)
        assert found["coverage"].per_task == pytest.approx([0.95] * 30, abs=1e-5)


@pytest.mark.parametrize("shot", [5, 10])
def test_the_closed_form_objective_recovers_the_papers_optimum(shot):
    """Reference: w_mu = v / sigma_y^2, b_mu = 0, w_sigma = 0, b_sigma = log v, from many tasks in one batch."""
    torch.manual_seed(0)
    method = Versa(linear_problem(0, 1.0), VersaSettings(samples=0, eval_samples=0)).double()
    batch = in_float64(toy(shot).batch(0, 100_000))
    support, query = batch.support, batch.query
    whole = type(batch)(support, query)
    lbfgs = torch.optim.LBFGS(method.parameters(), max_iter=200, line_search_fn="strong_wolfe", tolerance_grad=1e-9)

    def closure():
        lbfgs.zero_grad()
        loss = method.loss(whole)
        loss.backward()
        return loss

    lbfgs.step(closure)
    variance = 1 / (1 + shot)
    found = [p.item() for p in method.parameters()]
    for value, expected, tolerance in zip(
        found, (variance, 0, 0, math.log(variance)), (2e-3, 5e-3, 5e-3, 0.06), strict=True
    ):
        assert abs(value - expected) < tolerance


def test_the_closed_form_is_the_limit_of_many_samples():
    torch.manual_seed(0)
    method = Versa(linear_problem(0, 1.0), VersaSettings(samples=0, eval_samples=0)).double().eval()
    for parameter, value in zip(method.parameters(), (1 / 6, 0, 0, math.log(1 / 6)), strict=True):
        torch.nn.init.constant_(parameter, value)
    batch = in_float64(toy(5).batch(0, 50))
    q, y = method.amortize(batch.support), batch.query.y
    exact = method.predictive(q, batch.query.x).log_prob(y)
    method.settings = VersaSettings(eval_samples=4096)
    torch.testing.assert_close(method.predictive(q, batch.query.x).log_prob(y), exact, atol=5e-3, rtol=0)


@pytest.mark.parametrize("name", registry.method_names())
def test_it_applies_where_q_is_a_gaussian_over_weights_and_bias(name):
    plugin = registry.method(name)
    if "regression" not in plugin.handles:
        pytest.skip("it does not regress")
    method = plugin(linear_problem(3, 1.0), plugin.Settings()).eval()
    psi = method.amortize(toy(5, dimension=3).batch(0, 2).support).psi
    gaussian = isinstance(psi, Normal | MultivariateNormal) and psi.mean.flatten(1).shape == (2, 4)
    assert PosteriorRecovery().applies(plugin, method.settings) == gaussian


def test_the_toy_experiment_from_the_command_line(tmp_path):
    done = invoke("run", "--bench", "toy5", "--results", tmp_path, "--test-tasks", 50, "--iterations", 20)
    assert done.exit_code == 0, done.output
    records = store.load_all(tmp_path)
    assert {r.method for r in records} == {"amortized_vi", "exact_linear", "nonamortized_vi", "versa"}
    assert {r.protocol for r in records} == {"nll", "posterior"}
    versa = next(r for r in records if r.method == "versa")
    assert versa.config["settings"]["samples"] == versa.config["settings"]["eval_samples"] == 0
    assert "coverage (%; model" in " ".join(done.output.split())  # neither way is better
