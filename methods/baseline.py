"""Baseline: a linear classifier on frozen features, fitted to each task by SGD.

psi: weights and bias of a linear classifier.
q: a point mass after SGD on the support set's mean cross-entropy, from zero.
Reference: Chen, Liu, Kira, Wang & Huang, ICLR 2019, section 3.2.
Objective: none. The backbone is pre-trained by classification of the training classes, and then left as it is.

Differences from their paper, and from the code that made its numbers:

- A step takes the gradient of the whole support set, where theirs takes that of the next four of its points in random
  order. There are as many steps, and nothing is drawn.
- The classifier starts at zero, where theirs starts at random rows.
- The backbone is the run's, by the suite's pre-training.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from torch import Tensor
from torch.distributions import Categorical, Distribution

from mlpip_bench.inference.distributions import Delta, linear_outputs
from mlpip_bench.inference.fitting import FitSettings, fit
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.objectives import mlpip_loss
from mlpip_bench.inference.pretraining import Pretraining
from mlpip_bench.inference.search import LogUniform
from mlpip_bench.tasks.batch import Labeled, TaskBatch


class Baseline(Method[Delta]):
    """A linear classifier, fine-tuned on the support set."""

    reference = "Chen et al. 2019, A Closer Look at Few-shot Classification (ICLR), baseline"
    psi = "point mass at a linear classifier after SGD on the support set"
    linear_classifier = True
    Settings = FitSettings
    settings: FitSettings
    trainable = False
    pretraining = Pretraining()
    search_space: ClassVar = {"rate": LogUniform(1e-3, 1.0), "weight_decay": LogUniform(1e-4, 1.0)}

    def __init__(self, problem: Problem, settings: FitSettings) -> None:
        super().__init__(problem, settings)
        self.backbone = problem.build_backbone().requires_grad_(False)

    def amortize(self, support: Labeled) -> Posterior[Delta]:
        """SGD on the classifiers of all tasks at once."""
        features, statistics = self.backbone(support.x)
        start = features.new_zeros(support.tasks, support.way, features.shape[-1] + 1)
        psi = fit(start, partial(linear_outputs, features), support, self.settings)
        return Posterior(Delta(psi, event_dim=2), statistics)

    def predictive(self, q: Posterior[Delta], query_x: Tensor) -> Distribution:
        """Softmax of the fitted linear outputs."""
        features, _ = self.backbone(query_x, q.norm_statistics)
        return Categorical(logits=linear_outputs(features, q.psi.mean), validate_args=False)

    def loss(self, batch: TaskBatch) -> Tensor:
        """Cross-entropy of the queries, which nothing descends."""
        return mlpip_loss(self.predictive(self.amortize(batch.support), batch.query.x), batch.query)
