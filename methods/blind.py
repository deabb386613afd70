"""Blind: one Gaussian for all targets of all tasks, whatever the support set and the input.

psi: nothing is inferred. A trivial reference of regression, as climatology is of forecasts: a method that does no
better has learned nothing from the support sets.
q: none; its sample is an empty vector.
Reference: Murphy 1988, Skill Scores Based on the Mean Square Error, Monthly Weather Review.
Objective: log-loss of the queries; mean and standard deviation are trained like the parameters of other methods.

Differences from the paper: it takes the mean of the past alone; here a spread comes with it, so that there is a
log-loss.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from mlpip_bench.inference.distributions import Delta
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.objectives import mlpip_loss
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.utils.settings import NoSettings


class Blind(Method[Delta]):
    """Mean and standard deviation of all targets."""

    reference = "Murphy 1988, Skill Scores Based on the Mean Square Error (Monthly Weather Review)"
    psi = "nothing: the support set is not used"
    handles = ("regression",)
    xfail_checks: ClassVar = {"support_counts": "by definition it does not use the support set"}

    def __init__(self, problem: Problem, settings: NoSettings) -> None:
        super().__init__(problem, settings)
        self.mean = nn.Parameter(torch.zeros(()))
        self.log_std = nn.Parameter(torch.zeros(()))

    def amortize(self, support: Labeled) -> Posterior[Delta]:
        """No parameters of a task: an empty vector."""
        return Posterior(Delta(support.x.new_zeros(support.tasks, 0), event_dim=1))

    def predictive(self, q: Posterior[Delta], query_x: Tensor) -> Distribution:  # noqa: ARG002
        """The same at each query."""
        zeros = query_x.new_zeros(query_x.shape[:2])
        return Normal(zeros + self.mean, zeros + self.log_std.exp(), validate_args=False)

    def loss(self, batch: TaskBatch) -> Tensor:
        """Log-loss of the queries."""
        return mlpip_loss(self.predictive(self.amortize(batch.support), batch.query.x), batch.query)
