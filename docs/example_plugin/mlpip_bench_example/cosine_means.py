"""Meta-Baseline: softmax over the cosines between a query and the class means.

psi: the class means of the features on the unit sphere.
q: a point mass.
Reference: Chen, Liu, Xu, Darrell & Wang, ICCV 2021.
Objective: cross-entropy of the queries.

Differences from their paper: no pre-training as a classifier of all training classes.
"""

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution
from torch.nn.functional import normalize

from mlpip_bench.inference.distributions import Delta
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.objectives import mlpip_loss
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.utils.settings import NoSettings


class CosineMeans(Method[Delta]):
    """Nearest class mean by cosine, with a learned temperature."""

    reference = "Chen et al. 2021, Meta-Baseline: Exploring Simple Meta-Learning for Few-Shot Learning (ICCV)"
    psi = "point mass at the class means on the unit sphere"

    def __init__(self, problem: Problem, settings: NoSettings) -> None:
        super().__init__(problem, settings)
        self.backbone = problem.build_backbone()
        self.scale = nn.Parameter(torch.tensor(10.0))

    def amortize(self, support: Labeled) -> Posterior[Delta]:
        """Class means, and the statistics that normalize the queries."""
        features, statistics = self.backbone(support.x)
        return Posterior(Delta(normalize(support.class_means(features), dim=-1), event_dim=2), statistics)

    def predictive(self, q: Posterior[Delta], query_x: Tensor) -> Distribution:
        """Softmax of the scaled cosines."""
        features, _ = self.backbone(query_x, q.norm_statistics)
        return Categorical(logits=self.scale * normalize(features, dim=-1) @ q.psi.mean.mT, validate_args=False)

    def loss(self, batch: TaskBatch) -> Tensor:
        """Mean cross-entropy of the queries, in nats."""
        return mlpip_loss(self.predictive(self.amortize(batch.support), batch.query.x), batch.query)
