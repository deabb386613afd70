"""Prototypical networks: a linear classifier read off the class means of the features.

psi: weights mu_c and bias -|mu_c|^2/2 of each class, with mu_c the mean feature of its support points (paper,
Eq. 7).
q: a point mass; the predictive is the softmax of h(x).mu_c - |mu_c|^2/2 (Eq. 8).
Reference: Snell, Swersky & Zemel, NeurIPS 2017.
Objective: cross-entropy of the queries.

Differences from their paper:

- One way for training and test, as in the paper's accuracy table (Table 3); Snell et al. train at a higher
  way.
- Euclidean distance enters as h.mu - |mu|^2/2, half the squared distance up to a constant of the query, where
  their logits are the full squared distance: a factor of 2, the setting ``scale``.
- The best model on validation replaces early stopping and retraining on the validation classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution

from mlpip_bench.inference.distributions import Delta, linear_outputs
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.objectives import mlpip_loss
from mlpip_bench.inference.search import LogUniform
from mlpip_bench.tasks.batch import Labeled, TaskBatch


@dataclass(frozen=True)
class ProtoNetsSettings:
    """Settings of prototypical networks.

    Attributes:
        scale: factor on the logits; 2 makes them Snell et al.'s squared distances, 1 the paper's Eq. 8.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.scale < math.inf:
            raise ValueError(f"scale must be positive and finite; got {self.scale}")


class ProtoNets(Method[Delta]):
    """Class means of features as the parameters of a linear classifier."""

    reference = "Snell et al. 2017, Prototypical Networks for Few-shot Learning (NeurIPS)"
    psi = "point mass at {mu_c, -|mu_c|^2/2}, a linear classifier from class means"
    linear_classifier = True
    Settings = ProtoNetsSettings
    settings: ProtoNetsSettings
    search_space: ClassVar = {**Method.search_space, "scale": LogUniform(0.1, 10.0)}
    presets: ClassVar = {
        "paper": {
            "*": {"learning_rate": 1e-3, "halve_every": 2_000, "iterations": 20_000, "tasks_per_batch": 1},
            "omni": {"train_queries": 5},
        },
    }

    def __init__(self, problem: Problem, settings: ProtoNetsSettings) -> None:
        super().__init__(problem, settings)
        self.backbone = problem.build_backbone()

    def amortize(self, support: Labeled) -> Posterior[Delta]:
        """Class means mu_c, and the bias that completes the square (Eq. 7)."""
        features, statistics = self.backbone(support.x)
        means = support.class_means(features)
        bias = -means.square().sum(-1, keepdim=True) / 2
        return Posterior(Delta(torch.cat([means, bias], -1), event_dim=2), statistics)

    def predictive(self, q: Posterior[Delta], query_x: Tensor) -> Distribution:
        """Softmax of h(x).mu_c - |mu_c|^2/2 (Eq. 8)."""
        features, _ = self.backbone(query_x, q.norm_statistics)
        return Categorical(logits=self.settings.scale * linear_outputs(features, q.psi.mean), validate_args=False)

    def loss(self, batch: TaskBatch) -> Tensor:
        """Cross-entropy of the queries."""
        return mlpip_loss(self.predictive(self.amortize(batch.support), batch.query.x), batch.query)
