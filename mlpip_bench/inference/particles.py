"""An empirical posterior: equally weighted points of psi, as of several adapted networks.

Particles are folded into the ``task`` dimension, where networks of each task's own are computed in one batch: what
serves tasks serves the particles of all tasks, and what it returns is unfolded again.
"""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.constraints import Constraint

from mlpip_bench.inference.distributions import Delta, MonteCarloMixture
from mlpip_bench.inference.gradient_steps import AdaptedNetwork
from mlpip_bench.inference.likelihood import Likelihood
from mlpip_bench.inference.method import Posterior
from mlpip_bench.tasks.batch import Labeled

_NO_SHAPE = torch.Size()
_LOG_STDS = (-20.0, 0.0)


def check_initial_log_std(log_std: float) -> None:
    """That a Gaussian over the weights of a network can begin with it.

    Args:
        log_std: of each coordinate. With -20 all draws are the mean to float32; weights with a standard deviation of 1
            make outputs of a network of some layers so large that its loss is not finite.

    Raises:
        ValueError: it is beyond these.
    """
    if not _LOG_STDS[0] <= log_std <= _LOG_STDS[1]:
        least, most = _LOG_STDS
        raise ValueError(f"initial_log_std must be from {least:g} to {most:g}; got {log_std}")


class Particles(Distribution):
    """q(psi | D) = 1/M sum_m delta(psi - psi_m).

    Its log-density is taken against the counting measure: the log of the share of the particles that are at a point.

    Args:
        values: psi_m, ``[task, particle, *event]``.
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {}
    has_rsample = True

    def __init__(self, values: Float[Tensor, "task particle *event"]) -> None:
        self.values = values
        super().__init__(values.shape[:1], values.shape[2:], validate_args=False)

    @property
    def count(self) -> int:
        """M, of each task."""
        return self.values.shape[1]

    @property
    def support(self) -> Constraint:
        """The reals; the mass is at M points of them."""
        return constraints.independent(constraints.real, len(self.event_shape))

    @property
    def mean(self) -> Tensor:
        """Mean of the particles, ``[task, *event]``."""
        return self.values.mean(1)

    @property
    def variance(self) -> Tensor:
        """Variance of each coordinate over the particles, divided by M; ``[task, *event]``."""
        return self.values.var(1, correction=0)

    def rsample(self, sample_shape: Any = _NO_SHAPE) -> Tensor:
        """Particles drawn with replacement, each task's its own."""
        shape = torch.Size(sample_shape)
        task = torch.arange(len(self.values), device=self.values.device)
        drawn = torch.randint(self.count, (*shape, len(self.values)), device=self.values.device)
        return self.values[task, drawn]

    def log_prob(self, value: Tensor) -> Tensor:
        """Log of the share of the particles that are at the point."""
        event = len(self.event_shape)
        there = (value.unsqueeze(value.dim() - event) == self.values).flatten(value.dim() - event + 1).all(-1)
        return there.double().mean(-1).log().to(self.values.dtype)


def repeated(data: Labeled, particles: int) -> Labeled:
    """Each task so many times in a row, once for each particle."""
    return Labeled(data.x.repeat_interleave(particles, 0), data.y.repeat_interleave(particles, 0), data.way)


def folded(values: Float[Tensor, "task particle *rest"]) -> Float[Tensor, task_particle * rest]:
    """Particles as tasks."""
    return values.flatten(0, 1)


def unfolded(values: Float[Tensor, task_particle * rest], particles: int) -> Float[Tensor, "task particle *rest"]:
    """The inverse of :func:`folded`."""
    parts: Tensor = values.unflatten(0, (-1, particles))
    return parts


def mixture(
    likelihood: Likelihood, outputs: Float[Tensor, "task_particle point way"], particles: int
) -> MonteCarloMixture:
    """The mean over the particles of p(y | x, psi_m, theta), from the outputs of their networks."""
    return MonteCarloMixture(likelihood.predictive(unfolded(outputs, particles).transpose(0, 1)))


def network_outputs(
    network: AdaptedNetwork, q: Posterior[Particles], query_x: Float[Tensor, "task point ..."]
) -> Float[Tensor, "task_particle point way"]:
    """Outputs of the network of each particle, whose q has all particles' statistics, folded."""
    of_each = Posterior(Delta(folded(q.psi.values), event_dim=1), q.norm_statistics)
    return network.outputs(of_each, query_x.repeat_interleave(q.psi.count, 0))


def noise(samples: int, dimensions: int, *, fixed: bool, like: Tensor) -> Float[Tensor, "sample dimension"]:
    """Standard normal noise for psi, the same for all tasks of a batch.

    Args:
        samples: how many points; a single fixed one is the center.
        dimensions: of psi; quasi-Monte-Carlo points, of :func:`~mlpip_bench.inference.distributions.sobol_normal`,
            have 21,201 at most, and a network has more.
        fixed: evaluation, where predictions are a function of support set and query alone: always the same points.
            Else they are drawn from torch's generator.
        like: dtype and device.
    """
    if fixed:
        return _fixed_normal(samples, dimensions).to(like)
    return torch.randn(samples, dimensions, dtype=like.dtype, device=like.device)


# See sobol_normal: compiled, it would draw anew at each call.
@torch._disable_dynamo  # type: ignore[attr-defined]
@functools.lru_cache(maxsize=8)
def _fixed_normal(samples: int, dimensions: int) -> Tensor:
    """In pairs of opposite points, so that their mean is the center where there are evenly many."""
    if samples == 1:
        return torch.zeros(1, dimensions)
    generator = torch.Generator().manual_seed(0)
    half = torch.randn(math.ceil(samples / 2), dimensions, generator=generator)
    return torch.stack([half, -half], 1).flatten(0, 1)[:samples]
