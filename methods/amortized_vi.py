"""Amortized variational inference: Versa's networks, trained on the evidence lower bound and not on held-out queries.

psi: weights and bias of a linear classifier, one vector per class; the weights of a regression; or a
generator's input in view reconstruction.
q: factorized Gaussian from the amortization network, Versa's.
Reference: Gordon, Bronskill, Bauer, Nowozin & Turner, ICLR 2019, section 4 and the appendix on variational
inference (there called amortized VI); Kingma & Welling, ICLR 2014.
Objective: the evidence lower bound, Eq. 10 (C.2 in the appendix): the sum over D of 1/L sum_l log p(y | x,
psi_l, theta), minus beta KL[q(psi | D) || p(psi)], the KL in closed form. It is a mean of logs where Eq. 4
has the log of a mean, has a prior, and does not ask for predictions of points outside D. With beta below 1 it
is no bound.

Differences from the paper:

- It leaves open, and here are settings: the prior, N(0, I) unless ``learn_prior``; ``beta``, 1 against the
  summed log-likelihood; and D in training, the support set (``observed``).
- The loss is the negative bound per point of D, which Adam hardly tells from the sum.
- Normalization, networks and evaluation are those of this suite's Versa.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.distributions import Distribution, Normal

from mlpip_bench.inference.budgets import PAPER_BUDGETS
from mlpip_bench.inference.gaussian import gaussian_model
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.objectives import elbo
from mlpip_bench.inference.search import LogUniform, OneOf
from mlpip_bench.inference.variational import GaussianPrior, VariationalSettings, observed_data
from mlpip_bench.tasks.batch import Labeled, TaskBatch


class AmortizedVI(Method[Normal]):
    """One forward pass to q(psi | D), trained to be close to the exact posterior of the support set."""

    reference = "Gordon et al. 2019, Meta-Learning Probabilistic Inference for Prediction (ICLR), section 4"
    psi = "Gaussian over the weights and bias of a linear classifier"
    handles = ("classification", "regression", "reconstruction")
    linear_classifier = True
    bounds_evidence = True
    Settings = VariationalSettings
    settings: VariationalSettings
    search_space: ClassVar = {**Method.search_space, "beta": LogUniform(0.01, 1.0), "learn_prior": OneOf((True, False))}
    presets: ClassVar = {
        "quick": {"*": {"dropout": False}},
        "paper": PAPER_BUDGETS,
    }

    def __init__(self, problem: Problem, settings: VariationalSettings) -> None:
        super().__init__(problem, settings)
        self.model = gaussian_model(problem, dropout=settings.dropout)
        self.prior = GaussianPrior(learned=settings.learn_prior)

    def amortize(self, support: Labeled) -> Posterior[Normal]:
        """One forward pass: features, pooling, Gaussian (Eq. 5)."""
        features, statistics = self.model.features(support.x)
        return Posterior(self.model.posterior(features, support), statistics)

    def predictive(self, q: Posterior[Normal], query_x: Tensor) -> Distribution:
        """Mixture over L samples."""
        features, _ = self.model.features(query_x, q.norm_statistics)
        samples = self.settings.samples if self.training else self.settings.eval_samples
        return self.model.predictive(features, q.psi, samples, fixed_noise=not self.training)

    def loss(self, batch: TaskBatch) -> Tensor:
        """Negative evidence lower bound of D, per point of D."""
        data = observed_data(batch, self.settings.observed)
        features, _ = self.model.features(data.x)
        psi = self.model.posterior(features, data)
        conditional = self.model.predictive(features, psi, self.settings.samples, fixed_noise=False)
        return -elbo(conditional, data, psi, self.prior(psi.mean), self.settings.beta).mean() / data.y.shape[1]
