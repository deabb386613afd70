"""SNAIL: a causal sequence model that reads the support set point by point, and answers for the point that follows.

psi: what the layers have made of the support points, read in an order with their labels: all that a query needs of
them.
q: a point mass; the predictive is the softmax that the network gives for the query as the point after the last one
(section 3: p(y | x, (x_1, y_1), ..., (x_N, y_N))). Queries do not see each other.
Reference: Mishra, Rohaninejad, Chen & Abbeel, ICLR 2018, section 3; the sizes are those of its appendix.
Objective: cross-entropy of the queries, at the last point alone.

Differences from their paper:

- Points have the run's backbone and a fully connected layer of 64 in front, as theirs on Omniglot; on mini-ImageNet
  they have a residual network.
- Dilations are 1, 2, 4, ...; theirs begin at 2, and reach every other point only.
- Tasks have the shots of the bench, where theirs draw 1 to 5; the convolutions reach back over as many as the setting
  ``shots`` says.
- The order of the support set is drawn in training, as in theirs; evaluation has one fixed order.
- The label of a query is zero in every class, which they leave open.

A label is a coordinate of what it reads, so that a test has the way of training: tasks of another are refused. At
five ways the layers have 6 million parameters behind the backbone: a row of it is no comparison at equal size.

Differences from the published figure:

The order of the support set and the labels of the classes are irrelevant to a task. Other methods have that by
construction; this network has to learn it from tasks. After 240 steps it is still near chance, and its validation
accuracy is highest where the budget ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution
from torch.nn import functional as F

from mlpip_bench.inference.distributions import Delta
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.objectives import mlpip_loss
from mlpip_bench.inference.ordering import ordered
from mlpip_bench.nn.causal import CausalAttention, DenseConvolution
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.utils.errors import UserError

EMBEDDING, FILTERS = 64, 128
ATTENTION = ((64, 32), (256, 128), (512, 256))
"""Keys and values of the attention layers, between which are temporal convolutions."""
MOST_SHOTS = 1000
"""The layers grow with the logarithm of the shots, and their weights with its square."""


@dataclass(frozen=True)
class SNAILSettings:
    """Settings of SNAIL.

    Attributes:
        shots: per class, over which the temporal convolutions reach back; attention reaches all points.
    """

    shots: int = 5

    def __post_init__(self) -> None:
        if not 1 <= self.shots <= MOST_SHOTS:
            raise ValueError(f"shots must be from 1 to {MOST_SHOTS}; got {self.shots}")


class SNAIL(Method[Delta]):
    """Temporal convolutions and causal attention over the labeled support points and a query."""

    reference = "Mishra et al. 2018, A Simple Neural Attentive Meta-Learner (ICLR)"
    psi = "point mass at the network's activations at the support points"
    Settings = SNAILSettings
    settings: SNAILSettings
    xfail_checks: ClassVar = {
        "support_order": "it reads the support set as a sequence",
        "unequal_shots": "it reads the support set as a sequence, whose order matters at any shots",
        "class_relabeling": "a label is a coordinate of its input, with weights of its own",
        "way_and_shot": "its input has a coordinate, and its output a row, for each class of a training task",
    }

    def __init__(self, problem: Problem, settings: SNAILSettings) -> None:
        super().__init__(problem, settings)
        self.backbone = problem.build_backbone()
        self.embedding = nn.Linear(self.backbone.features, EMBEDDING)
        width = EMBEDDING + problem.way
        convolutions = math.ceil(math.log2(problem.way * settings.shots + 1))
        self.layers = nn.ModuleList()
        for keys, values in ATTENTION:
            for number in range(convolutions if self.layers else 0):
                self.layers.append(DenseConvolution(width, FILTERS, dilation=2**number))
                width += FILTERS
            self.layers.append(CausalAttention(width, keys, values))
            width += values
        self.output = nn.Linear(width, problem.way)

    def amortize(self, support: Labeled) -> Posterior[Delta]:
        """What comes into the last layer at the support points."""
        if support.way != self.problem.way:
            raise UserError(
                f"snail classifies at the way of its training alone, {self.problem.way}; got tasks of {support.way} "
                f"classes. Train it at {support.way} ways, or take a method that is open in way, such as protonets."
            )
        features, statistics = self.backbone(support.x)
        points = ordered(Labeled(self.embedding(features), support.y, support.way), training=self.training)
        sequence = torch.cat([points.x, points.one_hot], -1)
        for layer in list(self.layers)[:-1]:
            sequence = layer(sequence)
        return Posterior(Delta(sequence, event_dim=2), statistics)

    def predictive(self, q: Posterior[Delta], query_x: Tensor) -> Distribution:
        """Softmax for each query as the point that follows the support set, its label unknown."""
        features, _ = self.backbone(query_x, q.norm_statistics)
        points = F.pad(self.embedding(features), (0, self.problem.way))
        for layer in self.layers:
            points = layer.following(q.psi.mean[..., : points.shape[-1]], points)  # type: ignore[operator]
        return Categorical(logits=self.output(points), validate_args=False)

    def loss(self, batch: TaskBatch) -> Tensor:
        """Cross-entropy of the queries."""
        return mlpip_loss(self.predictive(self.amortize(batch.support), batch.query.x), batch.query)
