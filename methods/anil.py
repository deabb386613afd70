"""ANIL: MAML in which only the last layer adapts.

psi: weights and bias of a linear classifier, or of a regression.
q: a point mass after gradient steps on the support set's mean cross-entropy, or squared error, from learned rows
(paper, Eq. 6, with the backbone in theta). Features are computed once a task, as the backbone does not adapt.
Reference: Raghu, Raghu, Bengio & Vinyals, ICLR 2020.
Objective: log-loss of the queries, differentiated through the steps.

Differences from their paper:

- The network is the run's backbone, the same for all methods, and the head starts at zero.
- Test tasks with more classes than the training way start the further classes from the mean of the learned
  rows.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from mlpip_bench.inference.distributions import Delta, linear_outputs
from mlpip_bench.inference.gradient_steps import OF_CURVES, StepSettings
from mlpip_bench.inference.likelihood import Likelihood, mean_losses
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.objectives import mlpip_loss
from mlpip_bench.inference.search import LogUniform
from mlpip_bench.tasks.batch import Labeled, TaskBatch


class ANIL(Method[Delta]):
    """Almost no inner loop: gradient steps on the classifier alone."""

    reference = (
        "Raghu et al. 2020, Rapid Learning or Feature Reuse? Towards Understanding the Effectiveness of MAML (ICLR)"
    )
    psi = "point mass at a linear classifier after a few gradient steps"
    handles = ("classification", "regression")
    linear_classifier = True
    Settings = StepSettings
    settings: StepSettings
    search_space: ClassVar = {**Method.search_space, "inner_rate": LogUniform(0.01, 1.0)}
    presets: ClassVar = {
        "paper": {
            "*": {"learning_rate": 1e-3, "iterations": 30_000},
            "sinusoid": {"iterations": 70_000, **OF_CURVES},
            "gp": {"iterations": 50_000, **OF_CURVES},
        },
        "quick": {"sinusoid": OF_CURVES, "gp": OF_CURVES},
    }
    xfail_checks: ClassVar = {"class_relabeling": "every class starts from its own learned row of the head"}

    def __init__(self, problem: Problem, settings: StepSettings) -> None:
        super().__init__(problem, settings)
        self.backbone = problem.build_backbone()
        self.likelihood = Likelihood(problem)
        self.head = nn.Parameter(torch.zeros(problem.way, self.backbone.features + 1))

    def amortize(self, support: Labeled) -> Posterior[Delta]:
        """Gradient steps on the head, all tasks at once: their losses are summed and share no parameter."""
        features, statistics = self.backbone(support.x)
        keep_graph = self.training and torch.is_grad_enabled()
        missing = max(support.way - len(self.head), 0)
        rows = torch.cat([self.head[: support.way], self.head.mean(0, keepdim=True).expand(missing, -1)])
        psi = rows.expand(support.tasks, -1, -1)
        with torch.enable_grad():
            if not keep_graph:
                psi, features = psi.detach().requires_grad_(), features.detach()
            for rate in self.settings.rates(training=self.training):
                loss = mean_losses(linear_outputs(features, psi), support.y).sum()
                (gradient,) = torch.autograd.grad(loss, psi, create_graph=keep_graph)
                psi = psi - rate * gradient
        return Posterior(Delta(psi if keep_graph else psi.detach(), event_dim=2), statistics)

    def predictive(self, q: Posterior[Delta], query_x: Tensor) -> Distribution:
        """Softmax, or Gaussian, of the adapted linear outputs."""
        features, _ = self.backbone(query_x, q.norm_statistics)
        return self.likelihood.predictive(linear_outputs(features, q.psi.mean))

    def loss(self, batch: TaskBatch) -> Tensor:
        """Log-loss of the queries, differentiated through the steps."""
        return mlpip_loss(self.predictive(self.amortize(batch.support), batch.query.x), batch.query)
