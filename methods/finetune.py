"""Fine-tuning: the whole pre-trained network, with a new linear head, descends on each task's support set.

psi: all parameters of the backbone and of a linear classifier.
q: a point mass after gradient steps on the support set's mean cross-entropy, from the pre-trained backbone and a head
whose rows are the directions of the class means of the features, or zero.
Reference: Dhillon, Chaudhari, Ravichandran & Soatto, ICLR 2020, section 3.1.
Objective: none. The backbone is pre-trained by classification of the training classes; nothing learns to be tuned.

Differences from their paper:

- Plain gradient steps of one rate, where theirs are Adam's; running averages of batch norm stay as pre-training left
  them, under the norm ``own``.
- The head is on the features, theirs on the logits of the pre-trained classifier; and they tune on the entropy of the
  queries, too, in rows of their own, which would be transductive.
- The backbone is the run's, by the suite's pre-training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution
from torch.nn.functional import normalize

from mlpip_bench.inference.distributions import Delta
from mlpip_bench.inference.gradient_steps import AdaptedNetwork
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.objectives import mlpip_loss
from mlpip_bench.inference.pretraining import Pretraining
from mlpip_bench.inference.search import LogUniform, OneOf
from mlpip_bench.tasks.batch import Labeled, TaskBatch

Head = Literal["means", "zero"]


@dataclass(frozen=True)
class FinetuneSettings:
    """Settings of fine-tuning.

    Attributes:
        test_steps: gradient steps on a support set.
        inner_rate: rate of a step for a mean cross-entropy.
        head: where the head starts: ``means`` for rows that are the class means of the features, at length 1; or
            ``zero``.
    """

    test_steps: int = 10
    inner_rate: float = 0.01
    head: Head = "means"

    def __post_init__(self) -> None:
        if self.test_steps < 0:
            raise ValueError(f"test_steps cannot be negative; got {self.test_steps}")
        if not 0 < self.inner_rate < math.inf:
            raise ValueError(f"inner_rate must be positive and finite; got {self.inner_rate}")
        if self.head not in get_args(Head):
            raise ValueError(f"head must be one of {', '.join(get_args(Head))}; got {self.head!r}")


class Finetune(Method[Delta]):
    """Gradient descent on the support loss from a pre-trained network."""

    reference = "Dhillon et al. 2020, A Baseline for Few-Shot Image Classification (ICLR)"
    psi = "point mass at all network parameters after gradient steps from pre-trained ones"
    Settings = FinetuneSettings
    settings: FinetuneSettings
    trainable = False
    pretraining = Pretraining()
    search_space: ClassVar = {"test_steps": OneOf((5, 10, 20, 50)), "inner_rate": LogUniform(1e-3, 0.03)}

    def __init__(self, problem: Problem, settings: FinetuneSettings) -> None:
        super().__init__(problem, settings)
        self.network = AdaptedNetwork(problem)

    @torch.no_grad()
    def amortize(self, support: Labeled) -> Posterior[Delta]:
        """psi* after gradient steps on each task's support loss; autograd is on within them alone."""
        rates = [self.settings.inner_rate] * self.settings.test_steps
        return self.network.adapt(support, rates, head=self._means if self.settings.head == "means" else None)

    def _means(self, support: Labeled) -> Mapping[str, Tensor]:
        features, _ = self.network.backbone(support.x, track=False)
        rows = normalize(support.class_means(features), dim=-1)
        return {"head.weight": rows, "head.bias": rows.new_zeros(rows.shape[:2])}

    def predictive(self, q: Posterior[Delta], query_x: Tensor) -> Distribution:
        """Softmax of each task's own tuned network."""
        return Categorical(logits=self.network.outputs(q, query_x), validate_args=False)

    def loss(self, batch: TaskBatch) -> Tensor:
        """Cross-entropy of the queries, which nothing descends."""
        return mlpip_loss(self.predictive(self.amortize(batch.support), batch.query.x), batch.query)
