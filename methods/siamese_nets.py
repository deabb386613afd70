"""Siamese networks: a classifier of pairs, whether two images are of one class.

psi: the embedded support set with its labels; the weights that compare two embeddings belong to theta.
q: a point mass. A pair's logit of being of one class is sum_j alpha_j |h_j - h'_j| + b; a class scores the mean logit
of the query's pairs with its support points, and the predictive is the softmax of the scores.
Reference: Koch, Zemel & Salakhutdinov, ICML Deep Learning Workshop 2015, section 3.
Objective: binary cross-entropy of pairs, with a weight of one half for each query's pairs of one class and of two. That
is no predictive likelihood of the query: the NLL is that of a softmax of scores that were not trained as one.

Differences from their paper:

- h is the run's backbone, without their layer of 4,096 sigmoid units, and images are not distorted.
- Pairs are those of every query with every support point of its task, where theirs are drawn from all training
  classes, as many of one class as of two.
- Theirs classifies by the most similar image, with one shot. The mean over shots is this suite's, and so is the
  softmax, which with one shot has the same most probable class.
- Adam with one rate, where theirs is SGD with rates, momenta and L2 penalties of each layer, chosen by Bayesian
  optimization. The plan's ``weight_decay`` is one penalty for all.

Differences from the published figure:

It is of the Siamese networks that Vinyals et al. (NeurIPS 2016) trained for their comparison, and not of those of Koch
et al., whose own figure is of 20 characters of one alphabet. What their training had is not known in detail.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution
from torch.nn.functional import binary_cross_entropy_with_logits

from mlpip_bench.inference.distributions import Delta
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.utils.settings import NoSettings


class SiameseNets(Method[Delta]):
    """Logits of pairs from a weighted L1 distance of embeddings."""

    reference = "Koch et al. 2015, Siamese Neural Networks for One-shot Image Recognition (ICML Deep Learning Workshop)"
    psi = "point mass at the embedded support set with its labels, compared by a learned distance"

    def __init__(self, problem: Problem, settings: NoSettings) -> None:
        super().__init__(problem, settings)
        self.backbone = problem.build_backbone()
        self.comparison = nn.Linear(self.backbone.features, 1)

    def amortize(self, support: Labeled) -> Posterior[Delta]:
        """Each support point's embedding, then its label in one-hot form."""
        features, statistics = self.backbone(support.x)
        return Posterior(Delta(torch.cat([features, support.one_hot], -1), event_dim=2), statistics)

    def predictive(self, q: Posterior[Delta], query_x: Tensor) -> Distribution:
        """Softmax of the mean logits of each query's pairs with a class."""
        logits, one_hot = self.pairs(q, query_x)
        return Categorical(logits=logits @ one_hot / one_hot.sum(1, keepdim=True), validate_args=False)

    def loss(self, batch: TaskBatch) -> Tensor:
        """Binary cross-entropy of pairs, its two kinds weighted one half each."""
        logits, _ = self.pairs(self.amortize(batch.support), batch.query.x)
        same = batch.query.one_hot @ batch.support.one_hot.mT
        of_same, of_other = (kind / kind.sum(-1, keepdim=True).clamp(min=1) for kind in (same, 1 - same))
        weights = (of_same + of_other) / 2
        return binary_cross_entropy_with_logits(logits, same, weights, reduction="sum") / batch.query.y.numel()

    def pairs(
        self, q: Posterior[Delta], query_x: Tensor
    ) -> tuple[Float[Tensor, "task point support"], Float[Tensor, "task support way"]]:
        """Logits of being of one class with each support point, and the support points' labels."""
        features, _ = self.backbone(query_x, q.norm_statistics)
        embedded, one_hot = q.psi.mean.tensor_split([features.shape[-1]], -1)
        # Terms of either sign are an L1 distance each, so that no tensor has features of pairs.
        plus, minus = (
            torch.cdist(features * alpha, embedded * alpha, p=1.0)
            for alpha in (self.comparison.weight.relu(), (-self.comparison.weight).relu())
        )
        return plus - minus + self.comparison.bias, one_hot
