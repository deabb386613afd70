"""First-order MAML: MAML without the second derivatives.

psi: all parameters of the backbone and of a linear classifier, or of a linear output in regression.
q: a point mass after gradient steps from a learned psi_0, as in ``maml`` (paper, Eq. 6).
Reference: Finn, Abbeel & Levine, ICML 2017, section 5.2; Nichol, Achiam & Schulman, 2018.
Objective: log-loss of the queries under the adapted parameters. Its gradient takes d psi / d psi_0 for
the identity: it is the query loss's gradient at the adapted parameters, applied to psi_0.

Differences from their papers: as in ``maml``.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.distributions import Distribution

from mlpip_bench.inference.distributions import Delta
from mlpip_bench.inference.gradient_steps import OF_CURVES, AdaptedNetwork, StepSettings
from mlpip_bench.inference.likelihood import Likelihood
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.objectives import mlpip_loss
from mlpip_bench.inference.search import LogUniform
from mlpip_bench.tasks.batch import Labeled, TaskBatch


class FOMAML(Method[Delta]):
    """Gradient descent on the support loss from psi_0, which is learned as if the steps were constants."""

    reference = (
        "Finn et al. 2017, Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks (ICML), section 5.2"
    )
    psi = "point mass at all network parameters after a few gradient steps"
    handles = ("classification", "regression")
    Settings = StepSettings
    settings: StepSettings
    search_space: ClassVar = {**Method.search_space, "inner_rate": LogUniform(0.01, 1.0)}
    presets: ClassVar = {
        "paper": {
            "*": {"learning_rate": 1e-3, "iterations": 60_000},
            "sinusoid": {"iterations": 70_000, **OF_CURVES},
            "gp": {"iterations": 50_000, **OF_CURVES},
        },
        "quick": {"sinusoid": OF_CURVES, "gp": OF_CURVES},
    }
    xfail_checks: ClassVar = {
        "class_relabeling": "every class starts from its own learned row of the head",
        "gradient": "the gradient leaves the second derivatives out, by design",
    }

    def __init__(self, problem: Problem, settings: StepSettings) -> None:
        super().__init__(problem, settings)
        self.network = AdaptedNetwork(problem)
        self.likelihood = Likelihood(problem)

    def amortize(self, support: Labeled) -> Posterior[Delta]:
        """psi* after gradient steps on each task's support loss (Eq. 6), and its support statistics."""
        return self.network.adapt(support, self.settings.rates(training=self.training), first_order=True)

    def predictive(self, q: Posterior[Delta], query_x: Tensor) -> Distribution:
        """Softmax, or Gaussian, of each task's own adapted network."""
        return self.likelihood.predictive(self.network.outputs(q, query_x))

    def loss(self, batch: TaskBatch) -> Tensor:
        """Log-loss of the queries under the adapted parameters."""
        return mlpip_loss(self.predictive(self.amortize(batch.support), batch.query.x), batch.query)
