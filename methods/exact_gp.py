"""Exact GP: the predictive of the Gaussian process that the tasks are drawn from, an oracle for regression.

psi: the support set itself, of which a Gaussian process makes no shorter summary.
q: a point mass at it. The spread of the function given D is in the predictive.
Reference: Rasmussen & Williams 2006, Gaussian Processes for Machine Learning, section 2.2, Eq. 2.22-2.24 and
Algorithm 2.1.
Objective: none, nothing is learned. Kernel and noise are those of the model that made the tasks, so no method
has a lower expected log-loss: what another one loses is the distance of its predictive from this one.

Differences from the textbook: none. Computed in float64, whatever the precision of the rest.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from mlpip_bench.inference.distributions import Delta, where_float64_is
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.objectives import mlpip_loss
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.utils.errors import UserError


class ExactGP(Method[Delta]):
    """Predictive in closed form under the true kernel."""

    reference = "Rasmussen & Williams 2006, Gaussian Processes for Machine Learning (MIT Press), section 2.2"
    psi = "the support set itself"
    handles = ("regression",)

    @classmethod
    def check(cls, problem: Problem, settings: Any) -> None:  # noqa: ARG003
        """Refuse tasks from another model."""
        if problem.kernel is None:
            raise UserError(
                "exact_gp needs tasks from a Gaussian process whose kernel is known; those of this bench are not. "
                "Choose another method, or a bench such as gp10s."
            )

    def amortize(self, support: Labeled) -> Posterior[Delta]:
        """Inputs and targets, the targets last."""
        points = torch.cat([support.x.flatten(2), support.y.unsqueeze(-1)], -1)
        return Posterior(Delta(points, event_dim=2))

    def predictive(self, q: Posterior[Delta], query_x: Tensor) -> Distribution:
        """N(y; k' (K + noise^2)^-1 y_D, k(x, x) - k' (K + noise^2)^-1 k + noise^2) at each query."""
        kernel, noise_std = self.problem.kernel, self.problem.noise_std
        assert kernel is not None  # which check has seen
        assert noise_std is not None  # it is a regression
        points, x = where_float64_is(q.psi.mean).double(), where_float64_is(query_x).double().flatten(2)
        given, y = points[..., :-1], points[..., -1:]
        covariance = kernel(given, given) + noise_std**2 * torch.eye(given.shape[1], dtype=x.dtype, device=x.device)
        root = torch.linalg.cholesky(covariance)
        whitened = torch.linalg.solve_triangular(root, torch.cat([kernel(given, x), y], -1), upper=False)
        of_queries, of_targets = whitened[..., :-1], whitened[..., -1:]
        mean = (of_queries * of_targets).sum(1)
        own = kernel(x.unsqueeze(2), x.unsqueeze(2)).flatten(2).squeeze(-1)
        std = (own - of_queries.square().sum(1) + noise_std**2).sqrt()
        return Normal(mean.to(query_x), std.to(query_x), validate_args=False)

    def loss(self, batch: TaskBatch) -> Tensor:
        """Log-loss of the exact predictive."""
        return mlpip_loss(self.predictive(self.amortize(batch.support), batch.query.x), batch.query)
