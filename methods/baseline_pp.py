"""Baseline++: a classifier by cosines to frozen features, fitted to each task by SGD.

psi: a weight vector of each class, of length ``scale``; logits are its inner products with features of unit length.
q: a point mass after SGD on the support set's mean cross-entropy, from the class means of the unit features.
Reference: Chen, Liu, Kira, Wang & Huang, ICLR 2019, section 3.2.
Objective: none. The backbone is pre-trained by classification of the training classes with such a head, and then left
as it is.

Differences from their paper, and from the code that made its numbers:

- Steps and their gradient are as in ``baseline``.
- Weight vectors start at the class means, where theirs start at random ones.
- The cosines have one fixed factor. Their code has 2, or 10 above 200 classes, times a learned length of each class.
- The backbone is the run's, by the suite's pre-training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.distributions import Categorical, Distribution
from torch.nn.functional import normalize

from mlpip_bench.inference.distributions import Delta
from mlpip_bench.inference.fitting import FitSettings, fit
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.objectives import mlpip_loss
from mlpip_bench.inference.pretraining import Pretraining
from mlpip_bench.inference.search import LogUniform
from mlpip_bench.tasks.batch import Labeled, TaskBatch


@dataclass(frozen=True)
class BaselinePPSettings(FitSettings):
    """Settings of baseline++, beyond those of the fit.

    Attributes:
        scale: factor on the cosines.
    """

    scale: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.scale < math.inf:
            raise ValueError(f"scale must be positive and finite; got {self.scale}")


class BaselinePP(Method[Delta]):
    """A classifier by cosines, fine-tuned on the support set."""

    reference = "Chen et al. 2019, A Closer Look at Few-shot Classification (ICLR), baseline++"
    psi = "point mass at a classifier by cosines after SGD on the support set"
    Settings = BaselinePPSettings
    settings: BaselinePPSettings
    trainable = False
    pretraining = Pretraining(head="cosine")
    search_space: ClassVar = {"rate": LogUniform(1e-3, 1.0), "scale": LogUniform(1.0, 100.0)}

    def __init__(self, problem: Problem, settings: BaselinePPSettings) -> None:
        super().__init__(problem, settings)
        self.backbone = problem.build_backbone().requires_grad_(False)

    def amortize(self, support: Labeled) -> Posterior[Delta]:
        """SGD on the weights of all tasks at once."""
        features, statistics = self.backbone(support.x)
        unit = normalize(features, dim=-1)

        def logits(weights: Tensor) -> Tensor:
            return unit @ self._scaled(weights).mT

        weights = fit(support.class_means(unit), logits, support, self.settings)
        return Posterior(Delta(self._scaled(weights), event_dim=2), statistics)

    def _scaled(self, weights: Tensor) -> Tensor:
        return self.settings.scale * normalize(weights, dim=-1)

    def predictive(self, q: Posterior[Delta], query_x: Tensor) -> Distribution:
        """Softmax of scaled cosines."""
        features, _ = self.backbone(query_x, q.norm_statistics)
        return Categorical(logits=normalize(features, dim=-1) @ q.psi.mean.mT, validate_args=False)

    def loss(self, batch: TaskBatch) -> Tensor:
        """Cross-entropy of the queries, which nothing descends."""
        return mlpip_loss(self.predictive(self.amortize(batch.support), batch.query.x), batch.query)
