"""Conditional neural process: a network conditioned on a summary of the support set, by maximum likelihood.

psi: a representation of each class, the mean of its points' encodings; the decoder, which scores a class from
the query's feature, the class's representation and the mean over classes, belongs to theta. In regression one
representation, the mean of encodings of (h(x), y), from which the decoder gives mean and standard deviation.
q: a point mass (paper, section 4, "conditional models trained via maximum likelihood", Eq. 9).
Reference: Garnelo, Rosenbaum, Maddison et al., ICML 2018; section 4.1 (regression) and section 4.3.
Objective: log-loss of the queries.

Differences from their paper:

- They concatenate the classes' representations, which fixes the way. Here the decoder scores one class at a
  time, so way and order of classes are free.
- In regression encoder and decoder see the features h(x) of the run's backbone, the same for all methods, in place of
  x; the standard deviation is at least that of the noise, where theirs is at least 0.1.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Normal

from mlpip_bench.inference.distributions import Delta
from mlpip_bench.inference.likelihood import at_least
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.objectives import mlpip_loss
from mlpip_bench.nn.layers import NARROWEST, mlp
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.utils.settings import NoSettings


class CNP(Method[Delta]):
    """Encoder, mean over points, decoder."""

    reference = "Garnelo et al. 2018, Conditional Neural Processes (ICML)"
    psi = "point mass at encoded class means, or the mean of encoded points, read by a decoder"
    handles = ("classification", "regression")

    def __init__(self, problem: Problem, settings: NoSettings) -> None:
        super().__init__(problem, settings)
        self.backbone = problem.build_backbone()
        features = self.backbone.features
        if problem.kind == "regression":
            width = max(features, NARROWEST)
            self.encoder = mlp(features + 1, width, width)
            self.decoder = mlp(features + width, width, width, 2)
        else:
            self.encoder = mlp(features, features, features)
            self.decoder = mlp(3 * features, features, features, 1, last_bias=False)

    def amortize(self, support: Labeled) -> Posterior[Delta]:
        """r_c, the mean over a class's points of their encoding; in regression r, that over all points."""
        features, statistics = self.backbone(support.x)
        if self.problem.kind == "regression":
            encoded = self.encoder(torch.cat([features, support.y.unsqueeze(-1)], -1))
            return Posterior(Delta(encoded.mean(1), event_dim=1), statistics)
        return Posterior(Delta(support.class_means(self.encoder(features)), event_dim=2), statistics)

    def predictive(self, q: Posterior[Delta], query_x: Tensor) -> Distribution:
        """Softmax over classes of the decoder of (h(x), r_c, mean of r); or a Gaussian, of the decoder of (h(x), r)."""
        features, _ = self.backbone(query_x, q.norm_statistics)
        if self.problem.noise_std is not None:
            r = q.psi.mean.unsqueeze(1).expand(-1, features.shape[1], -1)
            mean, raw_std = self.decoder(torch.cat([features, r], -1)).unbind(-1)
            return Normal(mean, at_least(self.problem.noise_std, raw_std), validate_args=False)
        r = torch.cat([q.psi.mean, q.psi.mean.mean(1, keepdim=True).expand_as(q.psi.mean)], -1)
        way, points = r.shape[1], features.shape[1]
        inputs = [features.unsqueeze(2).expand(-1, -1, way, -1), r.unsqueeze(1).expand(-1, points, -1, -1)]
        return Categorical(logits=self.decoder(torch.cat(inputs, -1)).squeeze(-1), validate_args=False)

    def loss(self, batch: TaskBatch) -> Tensor:
        """Log-loss of the queries: maximum likelihood of the conditional model."""
        return mlpip_loss(self.predictive(self.amortize(batch.support), batch.query.x), batch.query)
