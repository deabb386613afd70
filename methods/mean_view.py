"""Mean view: at each angle the mean of the training objects' views, whatever views of the object are given.

psi: nothing is inferred. A trivial reference of view reconstruction: a method that does no better has learned
nothing from the given views.
q: none; its sample is an empty vector.
Reference: Tatarchenko, Richter, Ranftl, Li, Koltun & Brox, CVPR 2019.
Objective: none, there is nothing to optimize. The mean is a running one over the training tasks, exact up to
how often each object was drawn.

Differences from their paper: they hold networks against baselines of this kind; this one is not one of
theirs.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from mlpip_bench.datasets.views import VIEWS
from mlpip_bench.inference.distributions import Delta
from mlpip_bench.inference.gaussian import view_likelihood
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.objectives import mlpip_loss
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.utils.settings import NoSettings


class MeanView(Method[Delta]):
    """Mean training image of each angle."""

    reference = "Tatarchenko et al. 2019, What Do Single-View 3D Reconstruction Networks Learn? (CVPR)"
    psi = "nothing: the given views are not used"
    handles = ("reconstruction",)
    xfail_checks: ClassVar = {"support_counts": "by definition it does not use the given views"}

    total: Tensor
    count: Tensor

    def __init__(self, problem: Problem, settings: NoSettings) -> None:
        super().__init__(problem, settings)
        self.register_buffer("total", torch.zeros(VIEWS, *problem.input_shape))
        self.register_buffer("count", torch.zeros(VIEWS))

    def _bin(self, x: Tensor) -> Tensor:
        """Number of the nearest of the angles; the last two coordinates are sine and cosine."""
        turn = torch.atan2(x[..., -2], x[..., -1]) / (2 * torch.pi)
        return (turn * VIEWS).round().long() % VIEWS

    def amortize(self, support: Labeled) -> Posterior[Delta]:
        """No parameters of a task: an empty vector."""
        return Posterior(Delta(support.x.new_zeros(support.tasks, 0), event_dim=1))

    def predictive(self, q: Posterior[Delta], query_x: Tensor) -> Distribution:  # noqa: ARG002
        """The mean image of each query's angle; gray where none was seen yet."""
        bins = self._bin(query_x)
        count = self.count[bins][..., None, None, None]
        images = torch.where(count > 0, self.total[bins] / count.clamp(min=1), 0.5).to(query_x.dtype)
        return view_likelihood(images, self.problem)

    def loss(self, batch: TaskBatch) -> Tensor:
        """Log-loss of the mean so far; in training the views are then added to it."""
        loss = mlpip_loss(self.predictive(self.amortize(batch.support), batch.query.x), batch.query)
        if self.training:
            views = batch.merged
            bins = self._bin(views.x).flatten()
            self.total.index_add_(0, bins, views.y.flatten(0, 1).to(self.total.dtype))
            self.count.index_add_(0, bins, torch.ones_like(bins, dtype=self.count.dtype))
        return loss
