"""Reptile: psi_0 moves toward the parameters that gradient steps on a whole task lead to.

psi: all parameters of the backbone and of a linear classifier, or of a linear output in regression.
q: a point mass after gradient steps from a learned psi_0, as in ``maml`` (paper, Eq. 6).
Reference: Nichol, Achiam & Schulman, On First-Order Meta-Learning Algorithms, arXiv:1803.02999, 2018.
Objective: in training a task is not split, the steps are taken on all its points. The outer gradient is
psi_0 - psi*, given to Adam as their section 2 suggests; the loss has that gradient, and for its value the
log-loss of the task's queries after the steps, from which a regression learns its variance.

Differences from their paper:

- Inner steps are plain gradient descent on all images of the task, where theirs are Adam steps on
  mini-batches.
- Way and shot of training are those of the test.
- Network, head and normalization are as in ``maml``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from mlpip_bench.inference.distributions import Delta
from mlpip_bench.inference.gradient_steps import OF_CURVES, AdaptedNetwork, StepSettings
from mlpip_bench.inference.likelihood import Likelihood
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.objectives import mlpip_loss
from mlpip_bench.inference.search import LogUniform
from mlpip_bench.tasks.batch import Labeled, TaskBatch


@dataclass(frozen=True)
class ReptileSettings(StepSettings):
    """Settings of Reptile: those of gradient steps, of which it needs several.

    Attributes:
        train_steps: inner gradient steps in training, at least 1.
        test_steps: inner gradient steps at evaluation.
    """

    train_steps: int = 5
    test_steps: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.train_steps < 1:
            raise ValueError(f"train_steps must be at least 1, or psi_0 moves nowhere; got {self.train_steps}")


class Reptile(Method[Delta]):
    """Gradient descent from psi_0, which is a moving average of where descent arrives."""

    reference = "Nichol et al. 2018, On First-Order Meta-Learning Algorithms (arXiv:1803.02999)"
    psi = "point mass at all network parameters after several gradient steps"
    handles = ("classification", "regression")
    Settings = ReptileSettings
    settings: ReptileSettings
    search_space: ClassVar = {**Method.search_space, "inner_rate": LogUniform(0.01, 1.0)}
    presets: ClassVar = {
        "paper": {
            "*": {"learning_rate": 1e-3, "iterations": 100_000},
            "sinusoid": {"iterations": 70_000, **OF_CURVES},
            "gp": {"iterations": 50_000, **OF_CURVES},
        },
        "quick": {"sinusoid": OF_CURVES, "gp": OF_CURVES},
    }
    xfail_checks: ClassVar = {
        "class_relabeling": "every class starts from its own learned row of the head",
        "gradient": "the update psi_0 - psi* is no gradient of the loss, by design",
        "loss_mean_over_points": "its training steps use the queries too, so asking them twice moves psi*",
    }

    def __init__(self, problem: Problem, settings: ReptileSettings) -> None:
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
        """The log-loss of the queries after steps on all points; its gradient in psi_0 is psi_0 - psi*."""
        with torch.no_grad():
            q = self.amortize(batch.merged)
            outputs = self.network.outputs(q, batch.query.x)
        log_loss = mlpip_loss(self.likelihood.predictive(outputs), batch.query)  # trains a regression's variance alone
        psi_0 = self.network.for_way(dict(self.network.named_parameters()), batch.support.way)
        start = self.network.flat({name: p.unsqueeze(0) for name, p in psi_0.items()})
        pull = (start - q.psi.mean).square().sum(-1).mean() / 2
        return log_loss + pull - pull.detach()
