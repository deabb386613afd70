"""Matching networks: attention over the support set, a weighted vote of its labels.

psi: the embedded support set with its labels; the classifier is non-parametric.
q: a point mass. The probability of a class is the attention on its support points, a softmax of scaled
cosines (their Eq. 1).
Reference: Vinyals, Blundell, Lillicrap, Kavukcuoglu & Wierstra, NeurIPS 2016, Eq. 1.
Objective: cross-entropy of the queries.

Differences from their paper:

- No full context embeddings: f = g = the run's backbone.
- Cosines are multiplied by ``scale`` before the softmax, without which attention is nearly uniform.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import normalize

from mlpip_bench.inference.distributions import Delta, attention_vote
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.objectives import mlpip_loss
from mlpip_bench.inference.search import LogUniform
from mlpip_bench.tasks.batch import Labeled, TaskBatch


@dataclass(frozen=True)
class MatchingNetsSettings:
    """Settings of matching networks.

    Attributes:
        scale: factor on the cosines; 1 is the paper's.
    """

    scale: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.scale < math.inf:
            raise ValueError(f"scale must be positive and finite; got {self.scale}")


class MatchingNets(Method[Delta]):
    """Softmax attention by cosine similarity of embeddings."""

    reference = "Vinyals et al. 2016, Matching Networks for One Shot Learning (NeurIPS)"
    psi = "point mass at the embedded support set with its labels"
    Settings = MatchingNetsSettings
    settings: MatchingNetsSettings
    search_space: ClassVar = {**Method.search_space, "scale": LogUniform(1.0, 100.0)}
    presets: ClassVar = {"paper": {"*": {"learning_rate": 1e-3}}}

    def __init__(self, problem: Problem, settings: MatchingNetsSettings) -> None:
        super().__init__(problem, settings)
        self.backbone = problem.build_backbone()

    def amortize(self, support: Labeled) -> Posterior[Delta]:
        """Each support point's unit embedding, then its label in one-hot form."""
        features, statistics = self.backbone(support.x)
        psi = torch.cat([normalize(features, dim=-1), support.one_hot], -1)
        return Posterior(Delta(psi, event_dim=2), statistics)

    def predictive(self, q: Posterior[Delta], query_x: Tensor) -> Distribution:
        """p(y = c) = attention on the support points of class c (their Eq. 1)."""
        features, _ = self.backbone(query_x, q.norm_statistics)
        embedded, one_hot = q.psi.mean.split([features.shape[-1], q.psi.mean.shape[-1] - features.shape[-1]], -1)
        similarity = self.settings.scale * normalize(features, dim=-1) @ embedded.mT  # [task, point, support point]
        return attention_vote(similarity, one_hot)

    def loss(self, batch: TaskBatch) -> Tensor:
        """Cross-entropy of the queries."""
        return mlpip_loss(self.predictive(self.amortize(batch.support), batch.query.x), batch.query)
