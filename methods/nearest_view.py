"""Nearest view: a copy of the given view whose angle is nearest to the one that is asked for.

psi: the given views and their angles.
q: a point mass. Where two given views are as near, their mean is drawn. A trivial reference of view
reconstruction.
Reference: Cover & Hart, IEEE Transactions on Information Theory 1967.
Objective: none, nothing is learned.

Differences from their paper: none; it is their nearest-neighbor rule, here in angle.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Distribution

from mlpip_bench.inference.distributions import Delta
from mlpip_bench.inference.gaussian import view_likelihood
from mlpip_bench.inference.method import Method, Posterior
from mlpip_bench.inference.objectives import mlpip_loss
from mlpip_bench.tasks.batch import Labeled, TaskBatch


class NearestView(Method[Delta]):
    """Copy of the nearest given view."""

    reference = "Cover & Hart 1967, Nearest Neighbor Pattern Classification (IEEE Transactions on Information Theory)"
    psi = "point mass at the given views and their angles"
    handles = ("reconstruction",)

    def amortize(self, support: Labeled) -> Posterior[Delta]:
        """Each given view with its sine and cosine, the last two coordinates of x, behind its pixels."""
        return Posterior(Delta(torch.cat([support.y.flatten(2), support.x[..., -2:]], -1), event_dim=2))

    def predictive(self, q: Posterior[Delta], query_x: Tensor) -> Distribution:
        """Given images where the cosine of the difference of angles is largest; the mean of those that tie."""
        images, angles = q.psi.value[..., :-2], q.psi.value[..., -2:]
        closeness = query_x[..., -2:] @ angles.mT
        nearest = (closeness > closeness.amax(-1, keepdim=True) - 1e-4).to(images.dtype)
        copies = (nearest / nearest.sum(-1, keepdim=True)) @ images
        shaped = copies.unflatten(-1, self.problem.input_shape)
        return view_likelihood(shaped, self.problem)

    def loss(self, batch: TaskBatch) -> Tensor:
        """Log-loss of the copies."""
        return mlpip_loss(self.predictive(self.amortize(batch.support), batch.query.x), batch.query)
