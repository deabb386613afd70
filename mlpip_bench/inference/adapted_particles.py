"""Particles that adapt to a task together: linear heads on shared features, or whole networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from mlpip_bench.inference.distributions import linear_outputs
from mlpip_bench.inference.gradient_steps import AdaptedNetwork
from mlpip_bench.inference.likelihood import mean_losses
from mlpip_bench.inference.method import Posterior, Problem
from mlpip_bench.inference.particles import Particles, folded, network_outputs, repeated, unfolded
from mlpip_bench.nn.normalization import Statistics
from mlpip_bench.tasks.batch import Labeled


class Steps(Protocol):
    """From particles ``[task, particle, psi]`` to adapted ones."""

    def __call__(
        self,
        particles: Float[Tensor, "task particle psi"],
        losses: Callable[[Tensor], Float[Tensor, "task particle"]],
        *,
        moving: Tensor | float,
    ) -> Float[Tensor, "task particle psi"]:
        """Steps on losses that are means over a task's points; ``moving`` is 0 for coordinates that stay."""


class Heads(nn.Module):
    """A shared backbone, whose features are computed once a task, and the starts of M linear heads.

    Args:
        problem: what the network is built for.
        particles: M.
    """

    def __init__(self, problem: Problem, particles: int) -> None:
        super().__init__()
        self.backbone = problem.build_backbone()
        width = self.backbone.features + 1
        # Outputs with a standard deviation of 0.3 for features of size 1: distinct, and no confident guesses.
        self.heads = nn.Parameter(0.3 / math.sqrt(width) * torch.randn(particles, problem.way, width))

    def start(self, tasks: int, way: int) -> Float[Tensor, "task particle way feature_and_bias"]:
        """The learned rows; further classes start from the mean of a particle's rows."""
        missing = max(way - self.heads.shape[1], 0)
        rows = torch.cat([self.heads[:, :way], self.heads.mean(1, keepdim=True).expand(-1, missing, -1)], 1)
        return rows.expand(tasks, *rows.shape)

    def adapt(self, data: Labeled, start: Tensor, steps: Steps, *, keep_graph: bool) -> Posterior[Particles]:
        """Particles after steps from a start, all tasks at once."""
        features, statistics = self.backbone(data.x)
        each = repeated(Labeled(features if keep_graph else features.detach(), data.y, data.way), start.shape[1])

        def losses(psi: Tensor) -> Tensor:
            outputs = linear_outputs(each.x, folded(psi).unflatten(-1, start.shape[2:]))
            return unfolded(mean_losses(outputs, each.y), start.shape[1])

        adapted = steps(start.flatten(2), losses, moving=1.0)
        return Posterior(Particles(adapted.unflatten(-1, start.shape[2:])), statistics)

    def outputs(self, q: Posterior[Particles], x: Tensor) -> Float[Tensor, "task_particle point way"]:
        """Linear outputs of all particles, folded."""
        features, _ = self.backbone(x, q.norm_statistics)
        return linear_outputs(features.repeat_interleave(q.psi.count, 0), folded(q.psi.values))


class Networks(nn.Module):
    """The starts of M networks, each drawn of its own; their heads start at zero.

    Args:
        problem: what the networks are built for.
        particles: M.
    """

    def __init__(self, problem: Problem, particles: int) -> None:
        super().__init__()
        self.network = AdaptedNetwork(problem)  # the first of them, and the computation of all
        others = [dict(AdaptedNetwork(problem).named_parameters()) for _ in range(particles - 1)]
        # A frozen parameter is the first one's in all of them.
        self.others = nn.ParameterList(
            torch.stack([other[name].detach() for other in others]) for name in self.network.moving if others
        )

    def start(self, tasks: int, way: int) -> Float[Tensor, "task particle psi"]:
        """The learned parameters; rows of the heads are cut or filled up as of one network."""
        first = dict(self.network.named_parameters())
        others = dict(zip(self.network.moving, self.others, strict=True)) if len(self.others) else {}
        count = 1 + max((len(values) for values in others.values()), default=0)
        each: list[Mapping[str, Tensor]] = [first]
        each += [first | {name: values[m] for name, values in others.items()} for m in range(count - 1)]
        values = [_flat(self.network.for_way(parameters, way)) for parameters in each]
        return torch.stack(values).expand(tasks, -1, -1)

    def adapt(self, data: Labeled, start: Tensor, steps: Steps, *, keep_graph: bool) -> Posterior[Particles]:  # noqa: ARG002  # features are of each step
        """Particles after steps from a start, some tasks at a time."""
        network, count = self.network, start.shape[1]
        own = network.for_way(dict(network.named_parameters()), data.way)
        moving = _flat({name: torch.full_like(p, name in network.moving) for name, p in own.items()})

        def of_group(part: Labeled, tasks: slice) -> tuple[Mapping[str, Tensor], Statistics]:
            each = repeated(part, count)

            def losses(psi: Tensor) -> Tensor:
                return unfolded(network.losses(network.unflatten(folded(psi)), each)[0], count)

            adapted = network.unflatten(folded(steps(start[tasks], losses, moving=moving)))
            return adapted, functional_call(network, adapted, (each.x,))[1]

        found = network.in_groups(data, of_group, networks=count)
        return Posterior(Particles(unfolded(found.psi.mean, count)), found.norm_statistics)

    def outputs(self, q: Posterior[Particles], x: Tensor) -> Float[Tensor, "task_particle point way"]:
        """Outputs of all particles, folded."""
        return network_outputs(self.network, q, x)


def _flat(parameters: Mapping[str, Tensor]) -> Tensor:
    """Parameters as one vector, as of :meth:`AdaptedNetwork.flat` without tasks."""
    return torch.cat([p.flatten() for p in parameters.values()])
