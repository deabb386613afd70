"""The exact posterior of Bayesian linear regression, against which approximate ones are measured."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import MultivariateNormal
from torch.nn import functional as F


def with_bias(features: Float[Tensor, "task point feature"]) -> Float[Tensor, "task point feature_and_one"]:
    """phi(x) = (h(x), 1), the inputs of a linear model whose bias is the last coordinate."""
    return F.pad(features, (0, 1), value=1.0)


def conjugate_posterior(
    phi: Float[Tensor, "task point coordinate"], y: Float[Tensor, "task point"], noise_variance: float
) -> MultivariateNormal:
    """p(psi | D) for y = psi . phi(x) + noise and the prior psi ~ N(0, I).

    N(psi; m, S) with S^-1 = I + Phi' Phi / noise^2 and m = S Phi' y / noise^2 (Bishop 2006, Pattern
    Recognition and Machine Learning, Eq. 3.50 and 3.51). With phi = 1 it is the posterior of the paper's
    toy experiment (section 5.1).

    Args:
        phi: inputs of the model at the points of D.
        y: targets.
        noise_variance: of a target.

    Returns:
        Batch shape ``[task]``, event ``[coordinate]``.
    """
    precision = torch.eye(phi.shape[-1], dtype=phi.dtype, device=phi.device) + phi.mT @ phi / noise_variance
    mean = torch.linalg.solve(precision, phi.mT @ y.unsqueeze(-1) / noise_variance).squeeze(-1)
    return MultivariateNormal(mean, precision_matrix=precision, validate_args=False)
