"""Nearest class mean: the mean of each class's features, which are frozen, centered and of unit length.

psi: the mean mu_c of each class's transformed features, as the linear classifier {mu_c, -|mu_c|^2/2}.
q: a point mass; the predictive is the softmax of -scale |z - mu_c|^2/2 at a query's transformed feature z.
Reference: Wang, Chao, Weinberger & van der Maaten 2019, section 3.
Objective: none. The backbone is pre-trained by classification of the training classes, and then left as it is.

Differences from their paper:

- They give the nearest class; the softmax is added, for probabilities. Its ``scale`` changes no class.
- The mean that is subtracted is over the images of ``center_tasks`` training tasks, where theirs is over all images of
  the training classes.
- The backbone is the run's, by the suite's pre-training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution
from torch.nn.functional import normalize

from mlpip_bench.inference.distributions import Delta, linear_outputs
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.objectives import mlpip_loss
from mlpip_bench.inference.pretraining import Pretraining
from mlpip_bench.inference.search import LogUniform, OneOf
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.tasks.stream import Stream

Transform = Literal["none", "l2n", "cl2n"]


@dataclass(frozen=True)
class NearestMeanSettings:
    """Settings of the nearest class mean.

    Attributes:
        transform: of features: ``none``; ``l2n`` divides by their length; ``cl2n`` first subtracts their mean over
            training tasks.
        center_tasks: training tasks of that mean.
        scale: factor on half the squared distances: the larger, the more certain the probabilities; which class is
            nearest stays.
    """

    transform: Transform = "cl2n"
    center_tasks: int = 100
    scale: float = 10.0

    def __post_init__(self) -> None:
        if self.transform not in get_args(Transform):
            raise ValueError(f"transform must be one of {', '.join(get_args(Transform))}; got {self.transform!r}")
        if self.center_tasks < 1:
            raise ValueError(f"center_tasks must be at least 1; got {self.center_tasks}")
        if not 0 < self.scale < math.inf:
            raise ValueError(f"scale must be positive and finite; got {self.scale}")


class NearestMean(Method[Delta]):
    """Class means of frozen features."""

    reference = "Wang et al. 2019, SimpleShot: Revisiting Nearest-Neighbor Classification for Few-Shot Learning (arXiv)"
    psi = "point mass at the means of each class's transformed features"
    linear_classifier = True
    Settings = NearestMeanSettings
    settings: NearestMeanSettings
    trainable = False
    pretraining = Pretraining()
    search_space: ClassVar = {"transform": OneOf(get_args(Transform)), "scale": LogUniform(1.0, 100.0)}
    center: Tensor

    def __init__(self, problem: Problem, settings: NearestMeanSettings) -> None:
        super().__init__(problem, settings)
        self.backbone = problem.build_backbone().requires_grad_(False)
        self.register_buffer("center", torch.zeros(self.backbone.features))

    def prepare(self, training: Stream) -> None:
        """The mean feature of the images of some training tasks."""
        if self.settings.transform != "cl2n":
            return
        means = []
        for task in range(self.settings.center_tasks):
            batch = training.batch(task, 1)
            support, statistics = self.backbone(batch.support.x)
            query, _ = self.backbone(batch.query.x, statistics)
            means.append(torch.cat([support, query], 1).mean((0, 1)))
        self.center.copy_(torch.stack(means).mean(0))

    def amortize(self, support: Labeled) -> Posterior[Delta]:
        """Class means, and the bias that completes the square."""
        features, statistics = self.backbone(support.x)
        means = support.class_means(self._transformed(features))
        bias = -means.square().sum(-1, keepdim=True) / 2
        return Posterior(Delta(torch.cat([means, bias], -1), event_dim=2), statistics)

    def _transformed(self, features: Tensor) -> Tensor:
        if self.settings.transform == "none":
            return features
        return normalize(features - self.center if self.settings.transform == "cl2n" else features, dim=-1)

    def predictive(self, q: Posterior[Delta], query_x: Tensor) -> Distribution:
        """Softmax of half the squared distances, up to what all classes share."""
        features, _ = self.backbone(query_x, q.norm_statistics)
        outputs = linear_outputs(self._transformed(features), q.psi.mean)
        return Categorical(logits=self.settings.scale * outputs, validate_args=False)

    def loss(self, batch: TaskBatch) -> Tensor:
        """Cross-entropy of the queries, which nothing descends."""
        return mlpip_loss(self.predictive(self.amortize(batch.support), batch.query.x), batch.query)
