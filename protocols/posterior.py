"""Posterior recovery: q(psi | D) against the exact posterior p of linear-Gaussian tasks (paper, section 5.1, Fig. 4).

All scores are closed forms in the two Gaussians: their only noise is that of the test tasks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal, Normal, kl_divergence

from mlpip_bench.benches.linear import LinearGaussianFamily
from mlpip_bench.evaluation.metrics import Metric
from mlpip_bench.evaluation.protocol import EvalProtocol, Evaluation
from mlpip_bench.inference.conjugate import conjugate_posterior, with_bias
from mlpip_bench.inference.distributions import where_float64_is
from mlpip_bench.inference.method import Method
from mlpip_bench.records.record import Scores
from mlpip_bench.utils.errors import TrialError

KL = Metric("kl", "nats", "lower")
"""KL(p || q) of the exact posterior p from q, over all coordinates of psi."""

VARIANCE_RATIO = Metric("variance_ratio", "ratio", "neither")
"""Variance of q over that of the exact posterior, the geometric mean over coordinates; 1 is right."""

COVERAGE = Metric("coverage", "fraction", "neither")
"""Probability, under the exact posterior, of q's central 95 % interval, the mean over coordinates; 95 % is right."""


SHOWN = 8
"""Test tasks, the first ones, whose posteriors and observations are kept for the figure."""


class PosteriorRecovery(EvalProtocol):
    """How near q is to the exact posterior on the bench's fixed test tasks."""

    description = "q(psi | D) against the exact posterior: KL, ratio of variances, coverage of the 95 % interval"
    metrics = (KL, VARIANCE_RATIO, COVERAGE)
    handles = ("regression",)
    families = (LinearGaussianFamily,)
    default = True

    def applies(self, plugin: type[Method[Any]], settings: Any) -> bool:  # noqa: ARG002
        """Methods whose q is a Gaussian over the weights."""
        return plugin.gaussian_weights

    def measure(self, evaluation: Evaluation) -> list[Scores]:
        """One score a test task."""
        method = evaluation.method
        support = evaluation.stream.batch(0, evaluation.tasks).support
        method.eval()
        with torch.no_grad():
            q = _multivariate(method.amortize(support).psi, type(method).__name__)
        noise_std = method.problem.noise_std
        assert noise_std is not None  # it is a regression
        x, y = (where_float64_is(part).double() for part in (support.x, support.y))
        truth = conjugate_posterior(with_bias(x.flatten(2)), y, noise_std**2)
        std, true_std = q.stddev, truth.stddev
        upper, lower = q.mean + _Z * std, q.mean - _Z * std
        marginal = Normal(truth.mean, true_std, validate_args=False)
        scores = {
            KL: kl_divergence(truth, q),
            VARIANCE_RATIO: (2 * (std.log() - true_std.log()).mean(-1)).exp(),
            COVERAGE: (marginal.cdf(upper) - marginal.cdf(lower)).mean(-1),
        }
        detail = {}
        if q.event_shape == (1,):  # what the figure of the toy experiment shows
            shown = {"true_mean": truth.mean, "true_std": true_std, "q_mean": q.mean, "q_std": std}
            detail = {name: _numbers(t[:SHOWN]) for name, t in (shown | {"observations": support.y}).items()}
        return [
            evaluation.labeled(metric, _numbers(per_task), detail=detail if metric is KL else None)
            for metric, per_task in scores.items()
        ]


_Z = float(torch.special.ndtri(torch.tensor(0.975, dtype=torch.float64)))


def _numbers(values: Tensor) -> tuple[float, ...]:
    return tuple(values.flatten().tolist())


def _multivariate(psi: Distribution, name: str) -> MultivariateNormal:
    """The same q over the vector of all coordinates, in float64."""
    if isinstance(psi, MultivariateNormal):
        mean, tril = (where_float64_is(x).double() for x in (psi.mean, psi.scale_tril))
        return MultivariateNormal(mean, scale_tril=tril, validate_args=False)
    if isinstance(psi, Normal):
        mean, std = (where_float64_is(x).flatten(1).double() for x in (psi.mean, psi.stddev))
        return MultivariateNormal(mean, scale_tril=torch.diag_embed(std), validate_args=False)
    raise TrialError(f"posterior recovery needs a Gaussian q(psi | D); {name}'s is a {type(psi).__name__}.")
