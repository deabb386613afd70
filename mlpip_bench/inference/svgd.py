"""Stein variational gradient descent (Liu & Wang, NeurIPS 2016): particles that move to where a posterior is.

Shapes: ``[*batch, particle, psi]``; particles of different batch entries do not see each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def bandwidth(distances: Float[Tensor, "*batch particle particle"]) -> Float[Tensor, "*batch"]:
    """Of the kernel exp(-d^2 / h): h, the median of d^2 between different particles over the log of their number.

    The diagonal's zeros are left out: with two particles they would be half of all distances, and the median 0. Where
    most particles are in one place, and the median is 0 nevertheless, h is 1.

    Args:
        distances: squared, of at least two particles.
    """
    count = distances.shape[-1]
    row, column = torch.triu_indices(count, count, 1, device=distances.device)
    pairs = distances[..., row, column].sort(-1).values
    median = (pairs[..., (pairs.shape[-1] - 1) // 2] + pairs[..., pairs.shape[-1] // 2]) / 2
    return torch.where(median > 0, median / math.log(count), torch.ones_like(median))


def direction(
    particles: Float[Tensor, "*batch particle psi"],
    slopes: Float[Tensor, "*batch particle psi"],
    weight: float | Tensor = 1.0,
) -> Float[Tensor, "*batch particle psi"]:
    """Where each particle goes: 1/M sum_j [k(psi_j, psi_i) slope_j + weight * d k(psi_j, psi_i) / d psi_j].

    The kernel's gradient has h fixed, as Stein's operator has one kernel for all particles; the result is
    differentiable in the particles through h as well. A single particle goes along its slope.

    Args:
        particles: psi_m.
        slopes: weight times the gradient of the log-density at each.
        weight: of the repulsion; 1 where slopes are those of the log-density.
    """
    count = particles.shape[-2]
    if count == 1:
        return slopes
    # Differences, not products of particles: what is the same in two particles then cancels exactly.
    differences = particles.unsqueeze(-2) - particles.unsqueeze(-3)  # psi_i - psi_j
    distances = differences.square().sum(-1)
    h = bandwidth(distances)[..., None, None]
    kernel = torch.exp(-distances / h)
    repulsion = torch.einsum("...ij,...ijd->...id", 2 * kernel / h, differences)
    return (kernel @ slopes + weight * repulsion) / count


def descend(
    particles: Float[Tensor, "*batch particle psi"],
    losses: Callable[[Tensor], Float[Tensor, "*batch particle"]],
    rates: Sequence[float],
    *,
    weight: float | Tensor,
    prior_std: float = 0.0,
    moving: Tensor | float = 1.0,
    create_graph: bool = True,
) -> Float[Tensor, "*batch particle psi"]:
    """Particles after steps to the posterior p(psi | D), which is exp(-loss / weight) times the prior.

    A step is that of gradient descent on the loss where there is one particle and no prior.

    Args:
        particles: where they start.
        losses: of each particle, a mean over the n points of D: minus the log-likelihood times weight.
        rates: one a step.
        weight: 1/n for a mean of log-losses.
        prior_std: of a normal prior around 0; 0 for none.
        moving: 1 for coordinates that move, 0 for others.
        create_graph: keep the graph back to the start; without it the result is detached.
    """
    if not create_graph:
        particles = particles.detach()
    for rate in rates:
        with torch.enable_grad():
            at = particles if create_graph else particles.requires_grad_()
            (slopes,) = torch.autograd.grad(losses(at).sum(), at, create_graph=create_graph)
        with torch.set_grad_enabled(create_graph):
            uphill = -slopes - (weight / prior_std**2 * at if prior_std else 0.0)
            particles = at + rate * moving * direction(at, uphill, weight)
    return particles if create_graph else particles.detach()
