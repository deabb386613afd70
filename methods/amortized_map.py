"""Amortized MAP inference: Versa's amortization network for the mean alone, a point estimate with a prior on psi.

psi: weights and bias of a linear classifier, one vector per class.
q: a point mass, which two networks predict from the class's mean feature.
Reference: Qiao, Liu, Shen & Yuille, CVPR 2018; Gordon et al., ICLR 2019, section 4, "amortized MAP
inference".
Objective: mean cross-entropy of the queries plus |psi|^2 / (2 sigma^2 N), N the number of points of D: minus the
log-density of the prior N(0, sigma^2 I), up to a constant. sigma is the setting ``prior_std``. The likelihood is
divided by the number of queries and the prior by that of D, so this is the posterior density of a data set as large
as D, whose log-likelihood the queries estimate; the queries of training are as many as a budget says, and to have
more of them does not weaken the prior.

Differences from the paper of Qiao et al.:

- The backbone is trained end to end with the network that predicts the weights, where theirs is pre-trained
  as a classifier and fixed.
- The weights are not bound to unit norm but have a prior.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution

from mlpip_bench.inference.budgets import PAPER_BUDGETS
from mlpip_bench.inference.distributions import Delta, linear_outputs
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.objectives import mlpip_loss
from mlpip_bench.inference.search import LogUniform
from mlpip_bench.nn.layers import mlp
from mlpip_bench.tasks.batch import Labeled, TaskBatch


@dataclass(frozen=True)
class AmortizedMAPSettings:
    """Settings of amortized MAP.

    Attributes:
        prior_std: standard deviation of the prior of each coordinate of psi; infinity leaves the prior out.
    """

    prior_std: float = 1.0

    def __post_init__(self) -> None:
        if not self.prior_std > 0:  # infinity leaves the prior out
            raise ValueError(f"prior_std must be positive; got {self.prior_std}")


class AmortizedMAP(Method[Delta]):
    """A point estimate of the classifier from one forward pass."""

    reference = "Qiao et al. 2018, Few-Shot Image Recognition by Predicting Parameters from Activations (CVPR)"
    psi = "point mass at a linear classifier predicted from class means"
    linear_classifier = True
    Settings = AmortizedMAPSettings
    settings: AmortizedMAPSettings
    search_space: ClassVar = {**Method.search_space, "prior_std": LogUniform(0.1, 10.0)}
    presets: ClassVar = {"paper": PAPER_BUDGETS}

    def __init__(self, problem: Problem, settings: AmortizedMAPSettings) -> None:
        super().__init__(problem, settings)
        self.backbone = problem.build_backbone()
        features = self.backbone.features
        self.weight = mlp(features, features, features, features)
        self.bias = mlp(features, features, features, 1)

    def amortize(self, support: Labeled) -> Posterior[Delta]:
        """Weights and bias of each class from its mean feature."""
        features, statistics = self.backbone(support.x)
        means = support.class_means(features)
        return Posterior(Delta(torch.cat([self.weight(means), self.bias(means)], -1), event_dim=2), statistics)

    def predictive(self, q: Posterior[Delta], query_x: Tensor) -> Distribution:
        """Softmax of the linear classifier."""
        features, _ = self.backbone(query_x, q.norm_statistics)
        return Categorical(logits=linear_outputs(features, q.psi.mean), validate_args=False)

    def loss(self, batch: TaskBatch) -> Tensor:
        """Mean cross-entropy of the queries, minus the prior's log-density over the number of points of D."""
        q = self.amortize(batch.support)
        penalty = q.psi.mean.square().flatten(1).sum(-1).mean() / (2 * self.settings.prior_std**2)
        return mlpip_loss(self.predictive(q, batch.query.x), batch.query) + penalty / batch.support.y.shape[1]
