"""Relation networks: a learned comparison of queries with class means.

psi: the class means of the features; the network that compares them with a query belongs to theta.
q: a point mass; the predictive is a softmax over the scores of the pairs (query, class mean).
Reference: Sung, Yang, Zhang, Xiang, Torr & Hospedales, CVPR 2018.
Objective: cross-entropy of the queries.

Differences from their paper:

- The score is the logit of a softmax trained by cross-entropy, where theirs is a sigmoid trained by squared
  error, which is no density over classes.
- The relation module is a fully connected network on the flat features, where theirs has two convolutional
  blocks.
- Classes of several shots are averaged, where theirs are summed, so that the shot may vary.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution

from mlpip_bench.inference.distributions import Delta
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.objectives import mlpip_loss
from mlpip_bench.nn.layers import mlp
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.utils.settings import NoSettings


class RelationNets(Method[Delta]):
    """Scores of pairs (query, class mean) from a network."""

    reference = "Sung et al. 2018, Learning to Compare: Relation Network for Few-Shot Learning (CVPR)"
    psi = "point mass at the class means of the features, compared by a learned network"

    def __init__(self, problem: Problem, settings: NoSettings) -> None:
        super().__init__(problem, settings)
        self.backbone = problem.build_backbone()
        features = self.backbone.features
        self.relation = mlp(2 * features, features, 1, last_bias=False)

    def amortize(self, support: Labeled) -> Posterior[Delta]:
        """Class means."""
        features, statistics = self.backbone(support.x)
        return Posterior(Delta(support.class_means(features), event_dim=2), statistics)

    def predictive(self, q: Posterior[Delta], query_x: Tensor) -> Distribution:
        """Softmax over the relation scores of each query with each class."""
        features, _ = self.backbone(query_x, q.norm_statistics)
        way, points = q.psi.mean.shape[1], features.shape[1]
        pairs = torch.cat(
            [q.psi.mean.unsqueeze(1).expand(-1, points, -1, -1), features.unsqueeze(2).expand(-1, -1, way, -1)], -1
        )
        return Categorical(logits=self.relation(pairs).squeeze(-1), validate_args=False)

    def loss(self, batch: TaskBatch) -> Tensor:
        """Cross-entropy of the queries."""
        return mlpip_loss(self.predictive(self.amortize(batch.support), batch.query.x), batch.query)
