"""Meta-SGD: MAML whose inner rates are learned, one for each parameter.

psi: all parameters of the backbone and of a linear classifier, or of a linear output in regression.
q: a point mass after gradient steps from a learned psi_0, as in ``maml`` (paper, Eq. 6). Here eta is a vector
with an entry for each parameter, and is learned with psi_0 (Eq. 3 of Li et al.).
Reference: Li, Zhou, Chen & Li, arXiv:1707.09835, 2017.
Objective: log-loss of the queries, differentiated in psi_0 and in the rates.

Differences from their paper:

- All rates start at one value, ``inner_rate``, instead of at random ones.
- Several steps share their rates; the paper takes one step.
- Network, head and normalization are as in ``maml``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from mlpip_bench.inference.distributions import Delta
from mlpip_bench.inference.gradient_steps import OF_CURVES, AdaptedNetwork, StepCounts
from mlpip_bench.inference.likelihood import Likelihood
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.objectives import mlpip_loss
from mlpip_bench.inference.search import LogUniform
from mlpip_bench.tasks.batch import Labeled, TaskBatch


@dataclass(frozen=True)
class MetaSGDSettings(StepCounts):
    """Settings of Meta-SGD, beyond the numbers of steps.

    Attributes:
        inner_rate: where the learned rates start, for a mean loss.
    """

    inner_rate: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.inner_rate < math.inf:
            raise ValueError(f"inner_rate must be positive and finite; got {self.inner_rate}")


class MetaSGD(Method[Delta]):
    """One gradient step with a direction and a length that are both learned."""

    reference = "Li et al. 2017, Meta-SGD: Learning to Learn Quickly for Few-Shot Learning (arXiv:1707.09835)"
    psi = "point mass at all network parameters after gradient steps with learned rates"
    handles = ("classification", "regression")
    Settings = MetaSGDSettings
    settings: MetaSGDSettings
    search_space: ClassVar = {**Method.search_space, "inner_rate": LogUniform(0.01, 1.0)}
    presets: ClassVar = {
        "paper": {
            "*": {"learning_rate": 1e-3, "iterations": 60_000},
            "sinusoid": {"iterations": 70_000, **OF_CURVES},
            "gp": {"iterations": 50_000, **OF_CURVES},
        },
        "quick": {"sinusoid": OF_CURVES, "gp": OF_CURVES},
    }
    xfail_checks: ClassVar = {"class_relabeling": "every class starts from its own learned row of the head"}

    def __init__(self, problem: Problem, settings: MetaSGDSettings) -> None:
        super().__init__(problem, settings)
        self.network = AdaptedNetwork(problem)
        self.likelihood = Likelihood(problem)
        self.rates = nn.ParameterList(torch.full_like(p, settings.inner_rate) for p in self.network.parameters())

    def amortize(self, support: Labeled) -> Posterior[Delta]:
        """psi* = psi_0 - rate * gradient, elementwise, for each task (their Eq. 3)."""
        names = [name for name, _ in self.network.named_parameters()]
        rates = self.network.for_way(dict(zip(names, self.rates, strict=True)), support.way)
        steps = self.settings.train_steps if self.training else self.settings.test_steps
        return self.network.adapt(support, [rates] * steps)

    def predictive(self, q: Posterior[Delta], query_x: Tensor) -> Distribution:
        """Softmax, or Gaussian, of each task's own adapted network."""
        return self.likelihood.predictive(self.network.outputs(q, query_x))

    def loss(self, batch: TaskBatch) -> Tensor:
        """Log-loss of the queries, differentiated in psi_0 and in the rates."""
        return mlpip_loss(self.predictive(self.amortize(batch.support), batch.query.x), batch.query)
