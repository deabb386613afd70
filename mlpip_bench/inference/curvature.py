"""Curvature of a log-loss at adapted parameters, as log-determinants that stay finite in many dimensions.

The curvature of a point is its generalized Gauss-Newton matrix J' G J, with J the Jacobian of the outputs, and G the
Hessian of -log p(y | outputs), which does not depend on y. For a linear layer it is the exact Hessian; for a whole
network it is the Fisher information.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributions import Categorical, Distribution, Normal

from mlpip_bench.inference.distributions import where_float64_is


def output_root(predictive: Distribution) -> Float[Tensor, "task point way way"]:
    """R with R R' = G, the Hessian of -log p(y | outputs) in the outputs of a softmax, or of a Gaussian's mean."""
    if isinstance(predictive, Normal):
        return (1 / predictive.stddev)[..., None, None]
    assert isinstance(predictive, Categorical)
    # (I - p 1') diag(sqrt p), with the root taken of the logarithm: that of a probability of 0 has no derivative.
    log_p: Tensor = predictive.logits.log_softmax(-1)
    p = log_p.exp().unsqueeze(-1)
    return (torch.eye(p.shape[-2]).to(p) - p) * (log_p / 2).exp().unsqueeze(-2)


def log_det(matrix: Float[Tensor, "*batch n n"]) -> Float[Tensor, " *batch"]:
    """Log-determinant of positive definite matrices; in float64, since their eigenvalues span many magnitudes."""
    found: Tensor = _LogDet.apply(where_float64_is(matrix))  # type: ignore[no-untyped-call]
    return found.to(matrix.device)


class _LogDet(torch.autograd.Function):
    """Its derivative is the inverse, which takes a sixth of the time of a derivative through a Cholesky factor."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        factor = torch.linalg.cholesky(matrix.double())
        ctx.save_for_backward(factor)
        ctx.dtype = matrix.dtype
        return (2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)).to(matrix.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (factor,) = ctx.saved_tensors
        return gradient[..., None, None] * torch.cholesky_inverse(factor).to(ctx.dtype)


def head_log_det(
    features: Float[Tensor, "task point feature"], root: Float[Tensor, "task point way way"], points: int, tau: float
) -> Float[Tensor, " task"]:
    """Log-determinant of ``points`` times the mean curvature of a linear layer with bias, plus ``tau`` I.

    By the determinant lemma: ``points * way`` rows, in place of ``way * (feature + 1)``.

    Args:
        features: of the points that the mean is over.
        root: of :func:`output_root` at them.
        points: how many the curvature is to be of.
        tau: precision of a Gaussian prior.
    """
    number, way = root.shape[1:3]
    columns = root.transpose(-1, -2).flatten(1, 2)  # [task, point and way, way]
    pairs = (features @ features.mT + 1).repeat_interleave(way, 1).repeat_interleave(way, 2)
    gram = columns @ columns.mT * pairs * (points / (number * tau))
    dimension = way * (features.shape[-1] + 1)
    return dimension * math.log(tau) + log_det(gram + torch.eye(number * way).to(gram))
