"""Linear probe: logistic regression on frozen features, solved for each task.

psi: weights and bias of a linear classifier of the features, which have unit length unless ``normalize`` is off.
q: a point mass at the minimum of the support set's summed cross-entropy + penalty/2 |weights|^2; the bias is free.
Reference: Tian, Wang, Krishnan, Tenenbaum & Isola, ECCV 2020, section 3.
Objective: none. The backbone is pre-trained by classification of the training classes, and then left as it is.

Differences from their paper:

- No distillation, and no augmented copies of the support images.
- They have scikit-learn's solver, whose C is 1/penalty, or 2/penalty for two classes, which have one row of weights
  there. Here all tasks are solved at once, to the same minimum.
- The backbone is the run's, by the suite's pre-training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.distributions import Categorical, Distribution
from torch.nn.functional import normalize

from mlpip_bench.inference.distributions import Delta, linear_outputs
from mlpip_bench.inference.fitting import logistic_regression
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.objectives import mlpip_loss
from mlpip_bench.inference.pretraining import Pretraining
from mlpip_bench.inference.search import LogUniform
from mlpip_bench.tasks.batch import Labeled, TaskBatch


@dataclass(frozen=True)
class LinearProbeSettings:
    """Settings of the linear probe.

    Attributes:
        penalty: weight of half the squared length of the weights, added to the summed cross-entropy of the support.
        normalize: divide features by their length.
    """

    penalty: float = 1.0
    normalize: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.penalty < math.inf:
            raise ValueError(f"penalty must be positive and finite; got {self.penalty}")


class LinearProbe(Method[Delta]):
    """Logistic regression on frozen features."""

    reference = "Tian et al. 2020, Rethinking Few-Shot Image Classification: a Good Embedding Is All You Need? (ECCV)"
    psi = "point mass at the logistic regression of the support set"
    linear_classifier = True
    Settings = LinearProbeSettings
    settings: LinearProbeSettings
    trainable = False
    pretraining = Pretraining()
    search_space: ClassVar = {"penalty": LogUniform(0.01, 10.0)}

    def __init__(self, problem: Problem, settings: LinearProbeSettings) -> None:
        super().__init__(problem, settings)
        self.backbone = problem.build_backbone().requires_grad_(False)

    def amortize(self, support: Labeled) -> Posterior[Delta]:
        """The solution for all tasks at once."""
        features, statistics = self.backbone(support.x)
        psi = logistic_regression(self._scaled(features), support, self.settings.penalty)
        return Posterior(Delta(psi, event_dim=2), statistics)

    def _scaled(self, features: Tensor) -> Tensor:
        return normalize(features, dim=-1) if self.settings.normalize else features

    def predictive(self, q: Posterior[Delta], query_x: Tensor) -> Distribution:
        """Softmax of the linear outputs."""
        features, _ = self.backbone(query_x, q.norm_statistics)
        return Categorical(logits=linear_outputs(self._scaled(features), q.psi.mean), validate_args=False)

    def loss(self, batch: TaskBatch) -> Tensor:
        """Cross-entropy of the queries, which nothing descends."""
        return mlpip_loss(self.predictive(self.amortize(batch.support), batch.query.x), batch.query)
