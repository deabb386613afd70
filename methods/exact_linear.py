"""Exact Bayesian linear regression: the conjugate posterior, an oracle for approximate inference.

psi: weights and bias of a linear regression on the features.
q: the exact Gaussian posterior under the prior N(0, I) and the known noise; the predictive is exact too.
Reference: Bishop 2006, Pattern Recognition and Machine Learning, section 3.3, Eq. 3.49-3.51 and 3.58.
Objective: none on ``linear`` and ``toy`` benches, where the inputs are the features: nothing is learned, and
q and predictive are those of the model that made the tasks (Eq. 11 of the paper for the toy), so no method
has a lower expected log-loss. With a backbone the same formulas make a last-layer Bayesian
regression, trained on predictive log-loss.

Differences from the textbook: none.
"""

from __future__ import annotations

from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal, Normal

from mlpip_bench.inference.conjugate import conjugate_posterior, with_bias
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.objectives import mlpip_loss
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.utils.settings import NoSettings


class ExactLinear(Method[MultivariateNormal]):
    """Posterior and predictive in closed form."""

    reference = "Bishop 2006, Pattern Recognition and Machine Learning (Springer), section 3.3"
    psi = "exact Gaussian posterior of the weights of a linear regression"
    handles = ("regression",)
    gaussian_weights = True

    def __init__(self, problem: Problem, settings: NoSettings) -> None:
        super().__init__(problem, settings)
        self.backbone = problem.build_backbone()
        if problem.noise_std is None:
            raise ValueError("exact linear regression needs the standard deviation of the noise")
        self.noise_variance = problem.noise_std**2

    def amortize(self, support: Labeled) -> Posterior[MultivariateNormal]:
        """N(psi; m, S) of Eq. 3.50 and 3.51."""
        features, statistics = self.backbone(support.x)
        return Posterior(conjugate_posterior(with_bias(features), support.y, self.noise_variance), statistics)

    def predictive(self, q: Posterior[MultivariateNormal], query_x: Tensor) -> Distribution:
        """N(y; phi.m, phi' S phi + noise^2) (Eq. 3.58)."""
        features, _ = self.backbone(query_x, q.norm_statistics)
        phi = with_bias(features)
        mean = (phi @ q.psi.mean.unsqueeze(-1)).squeeze(-1)
        variance = ((phi @ q.psi.covariance_matrix) * phi).sum(-1) + self.noise_variance
        return Normal(mean, variance.sqrt(), validate_args=False)

    def loss(self, batch: TaskBatch) -> Tensor:
        """Log-loss of the exact predictive."""
        return mlpip_loss(self.predictive(self.amortize(batch.support), batch.query.x), batch.query)
