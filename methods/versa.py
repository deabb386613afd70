"""Versa: one forward pass turns the support set into a Gaussian over the task's parameters.

psi: weights and bias of a softmax classifier, one vector per class; the weights of a regression; or, in view
reconstruction, the vector that a generator turns into an object's views.
q: factorized Gaussian, one factor a class (Eq. 5): the class's mean feature goes through four small networks,
which give mean and log-variance of its weights and of its bias. In regression q is linear in the sum of the
data (Eq. 12), or comes from networks before and behind a mean over the data, as that of views (``amortization``).
Reference: Gordon, Bronskill, Bauer, Nowozin & Turner, ICLR 2019; section 5.1 (toy), section 5.3 (views),
appendices D and E (networks).
Objective: the predictive log-loss of held-out queries, Eq. 4: -log 1/L sum_l p(y | x, psi_l, theta), averaged
over tasks and queries, with psi_l drawn from q. Logits are drawn, not weights (local reparameterization). At
evaluation the L points are fixed quasi-Monte-Carlo ones, so a prediction depends on q and its query alone; in
regression the predictive is in closed form there.

Differences from the paper:

- Normalization is the suite's ``--norm``, inductive by default; the paper's code is transductive.
- Four amortization networks, and the bias is inferred, as in the paper's code; its Table D.3 has one network
  with two outputs, and no bias.
- Log-variances are clamped.
- Evaluation uses more samples than training (1,024 against 10), and fixed ones; the paper's code uses 10
  throughout.
- The toy benches, and those of curves, train on the closed form of Eq. 3; for the toy the paper does not say its L.
- In view reconstruction L is 1, as in the paper; images are generated at the mean of q, and gradients are not
  clipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.distributions import Distribution, Normal

from mlpip_bench.inference.budgets import PAPER_BUDGETS
from mlpip_bench.inference.gaussian import gaussian_model
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.objectives import mlpip_loss
from mlpip_bench.inference.search import OneOf
from mlpip_bench.nn.amortization import OfRegression
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.utils.errors import UserError


@dataclass(frozen=True)
class VersaSettings:
    """Settings of Versa.

    Attributes:
        samples: L of the training objective; 0 is the closed form, in regression.
        eval_samples: L at evaluation; 1 is the mean of q. Regression is in closed form there, whatever it is.
        scramble: which set of fixed points of that number, each as good as the others.
        dropout: whether training drops activations at the bench's rate.
        amortization: of a regression: ``linear`` in the sum of the data, or ``pooled``, networks before and behind the
            mean over the data.
    """

    samples: int = 10
    eval_samples: int = 1024
    scramble: int = 0
    dropout: bool = True
    amortization: OfRegression = "linear"

    def __post_init__(self) -> None:
        if min(self.samples, self.eval_samples) < 0:
            raise ValueError(f"samples and eval_samples must not be negative; got {self.samples}, {self.eval_samples}")
        if self.scramble < 0:
            raise ValueError(f"scramble must not be negative; got {self.scramble}")


_EXACT: dict[str, Any] = {"samples": 0, "eval_samples": 0}
_CURVES: dict[str, Any] = {**_EXACT, "amortization": "pooled"}
_SAMPLES: dict[str, dict[str, Any]] = {
    "toy": _EXACT,
    "toyfresh": _EXACT,
    "views": {"samples": 1, "eval_samples": 1},
    "sinusoid": _CURVES,
    "gp": _CURVES,
}


class Versa(Method[Normal]):
    """Amortization network from the pooled support set to a Gaussian over psi."""

    reference = "Gordon et al. 2019, Meta-Learning Probabilistic Inference for Prediction (ICLR)"
    psi = "Gaussian over the weights and bias of a linear classifier, or over a generator's input"
    handles = ("classification", "regression", "reconstruction")
    linear_classifier = True
    gaussian_weights = True
    Settings = VersaSettings
    settings: VersaSettings
    search_space: ClassVar = {**Method.search_space, "dropout": OneOf((True, False))}
    presets: ClassVar = {
        "quick": {"*": {"dropout": False}, **_SAMPLES},
        "paper": {**PAPER_BUDGETS, **_SAMPLES},
    }

    def __init__(self, problem: Problem, settings: VersaSettings) -> None:
        super().__init__(problem, settings)
        self.model = gaussian_model(problem, dropout=settings.dropout, of_regression=settings.amortization)

    @classmethod
    def check(cls, problem: Problem, settings: VersaSettings) -> None:
        """Refuse the closed form where there is none."""
        if problem.kind != "regression" and 0 in (settings.samples, settings.eval_samples):
            raise UserError(
                f"samples and eval_samples of versa must be at least 1 in {problem.kind}; got {settings.samples}, "
                f"{settings.eval_samples}. 0 is the closed form, which only regression has."
            )

    def amortize(self, support: Labeled) -> Posterior[Normal]:
        """One forward pass: features, pooling, Gaussian (Eq. 5)."""
        features, statistics = self.model.features(support.x)
        return Posterior(self.model.posterior(features, support), statistics)

    def predictive(self, q: Posterior[Normal], query_x: Tensor) -> Distribution:
        """Mixture over L samples (the inner sum of Eq. 4)."""
        features, _ = self.model.features(query_x, q.norm_statistics)
        samples = self.settings.samples if self.training else self.settings.eval_samples
        return self.model.predictive(
            features, q.psi, samples, fixed_noise=not self.training, scramble=self.settings.scramble
        )

    def loss(self, batch: TaskBatch) -> Tensor:
        """Predictive log-loss (Eq. 4)."""
        return mlpip_loss(self.predictive(self.amortize(batch.support), batch.query.x), batch.query)
