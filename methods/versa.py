"""Versa: amortised Gaussian posterior over a linear classifier, trained on predictive log-loss.

psi: weights and bias of a softmax classifier, one vector per class, q factorised Gaussian.
Reference: Gordon, Bronskill, Bauer, Nowozin & Turner, ICLR 2019; Eq. 4 (objective), Eq. 5
(context-independent amortisation), appendix D.3 (networks).

Differences from the paper: normalisation is the suite's ``norm`` setting (the reference code is
transductive); amortisation nets as in the reference code, four of them and with the bias;
log-variances are clamped; evaluation uses more samples than training, and fixed ones. In regression
psi are the weights of the regression, and their q is linear in the data's sum (section 5.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.distributions import Distribution, Normal

from mlpip_bench.api import Method, Posterior, Problem
from mlpip_bench.benches import PAPER_BUDGETS
from mlpip_bench.distributions import gaussian_linear_predictive
from mlpip_bench.networks import FeatureExtractor, amortization
from mlpip_bench.objectives import mlpip_loss
from mlpip_bench.tasks import Labelled, TaskBatch


@dataclass(frozen=True)
class VersaSettings:
    """Settings of Versa.

    Attributes:
        samples: L of the training objective.
        eval_samples: L at evaluation.
        dropout: whether training drops activations at the bench's rate.
    """

    samples: int = 10
    eval_samples: int = 100
    dropout: bool = True

    def __post_init__(self) -> None:
        if min(self.samples, self.eval_samples) < 1:
            raise ValueError(f"samples and eval_samples must be at least 1; got {self.samples}, {self.eval_samples}")


class Versa(Method[Normal]):
    """Amortisation network from class-mean features to a Gaussian over the class's weights."""

    reference = "Gordon et al. 2019, Meta-Learning Probabilistic Inference for Prediction (ICLR)"
    psi = "Gaussian over the weights and bias of a linear classifier"
    handles = ("classification", "regression")
    Settings = VersaSettings
    settings: VersaSettings
    presets: ClassVar = {
        "quick": {"*": {"dropout": False}},
        "paper": PAPER_BUDGETS,
    }

    def __init__(self, problem: Problem, settings: VersaSettings) -> None:
        super().__init__(problem, settings)
        self.extractor = FeatureExtractor(problem.extractor, problem.norm, dropout=settings.dropout)
        self.amortizer = amortization(problem.extractor.features, regression=problem.kind == "regression")

    def amortize(self, support: Labelled) -> Posterior[Normal]:
        """One forward pass: features, class means, Gaussian (Eq. 5)."""
        features, statistics = self.extractor(support.x)
        mean, std = self.amortizer(features, support)
        return Posterior(Normal(mean, std, validate_args=False), statistics)

    def predictive(self, q: Posterior[Normal], query_x: Tensor) -> Distribution:
        """Mixture over L samples of the Gaussian outputs (local reparameterisation)."""
        features, _ = self.extractor(query_x, q.support)
        samples = self.settings.samples if self.training else self.settings.eval_samples
        return gaussian_linear_predictive(
            features, q.psi, samples, noise_std=self.problem.noise_std, fixed_noise=not self.training
        )

    def loss(self, batch: TaskBatch) -> Tensor:
        """Predictive log-loss (Eq. 4)."""
        return mlpip_loss(self.predictive(self.amortize(batch.support), batch.query.x), batch.query)
