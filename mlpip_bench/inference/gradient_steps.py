"""A network that is adapted to a task by gradient steps: what gradient-based methods share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from mlpip_bench.inference.distributions import Delta
from mlpip_bench.inference.inner_loop import InnerEngine, Rate, adapt
from mlpip_bench.inference.likelihood import mean_losses, squared_errors
from mlpip_bench.inference.method import Posterior, Problem
from mlpip_bench.nn.layers import Linear
from mlpip_bench.nn.normalization import Statistics, cat_statistics, task_statistics
from mlpip_bench.tasks.batch import Labeled


@dataclass(frozen=True)
class StepCounts:
    """How many steps an adaptation takes.

    Attributes:
        train_steps, test_steps: inner gradient steps while training and at evaluation.
    """

    train_steps: int = 1
    test_steps: int = 1

    def __post_init__(self) -> None:
        if min(self.train_steps, self.test_steps) < 0:
            raise ValueError(f"steps cannot be negative; got train {self.train_steps}, test {self.test_steps}")


@dataclass(frozen=True)
class StepSettings(StepCounts):
    """Settings of adaptation by gradient steps.

    Attributes:
        inner_rate: rate of a step for a mean loss, cross-entropy or squared error; or one rate a step, the last one for
            all further steps.
    """

    inner_rate: float | tuple[float, ...] = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self._rates or not all(0 < rate < math.inf for rate in self._rates):
            raise ValueError(f"inner rates must be positive and finite; got {self.inner_rate}")
        most = max(self.train_steps, self.test_steps)
        if len(self._rates) > max(most, 1):
            raise ValueError(f"there are {len(self._rates)} inner rates for at most {most} steps")

    @property
    def _rates(self) -> tuple[float, ...]:
        return self.inner_rate if isinstance(self.inner_rate, tuple) else (self.inner_rate,)

    def rates(self, *, training: bool) -> list[float]:
        """The rate of each step."""
        steps = self.train_steps if training else self.test_steps
        return [self._rates[min(step, len(self._rates) - 1)] for step in range(steps)]


OF_CURVES: Mapping[str, Any] = MappingProxyType({"inner_rate": 0.01})
"""Settings for regression of curves, for presets: the rate of Finn et al. (2017), for a mean squared error."""

_PIXELS_AT_ONCE = {"cpu": 32_000, "cuda": 1_000_000}
"""Of the images of tasks that are adapted, or predicted, together: on a CPU what still fits its caches."""


def _tasks_at_once(x: Float[Tensor, "task point channel height width"]) -> int:
    return max(1, _PIXELS_AT_ONCE.get(x.device.type, 1) // math.prod((x.shape[1], *x.shape[3:])))


class AdaptedNetwork(nn.Module):
    """Extractor and linear head, the network whose parameters are psi; in regression the head has one output.

    Its own parameters are psi_0. The head starts at zero: random rows over 256 features are random
    guesses, and confident ones.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.backbone = problem.build_backbone()
        self.regression = problem.kind == "regression"
        self.head = Linear(self.backbone.features, problem.way)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(
        self, x: Tensor, support: Statistics | None = None, *, features: bool = False
    ) -> tuple[Tensor, Statistics]:
        """Logits, means, or only the features, and the support statistics; running averages stay as they are."""
        found, statistics = self.backbone(x, support, track=False)
        return found if features else self.head(found), statistics

    def for_way(self, parameters: Mapping[str, Tensor], way: int) -> dict[str, Tensor]:
        """Parameters for tasks of another way: rows of the head are cut, or filled up with their mean."""

        def rows(parameter: Tensor) -> Tensor:
            missing = max(way - len(parameter), 0)
            return torch.cat([parameter[:way], parameter.mean(0, keepdim=True).expand(missing, *parameter.shape[1:])])

        return {n: rows(p) if n.startswith("head.") else p for n, p in parameters.items()}

    def initial(self, tasks: int, way: int) -> dict[str, Tensor]:
        """psi_0 for each of so many tasks of a way, with a leading task dimension."""
        start = self.for_way(dict(self.named_parameters()), way)
        return {name: p.expand(tasks, *p.shape) for name, p in start.items()}

    @property
    def moving(self) -> list[str]:
        """Names of the parameters that adapt: those that are not frozen."""
        return [name for name, p in self.named_parameters() if p.requires_grad]

    def losses(
        self, parameters: Mapping[str, Tensor], data: Labeled, support: Statistics | None = None
    ) -> tuple[Float[Tensor, " task"], Statistics]:
        """Each task's mean loss under parameters of its own, and the support statistics; see ``mean_losses``."""
        outputs, statistics = functional_call(self, dict(parameters), (data.x, support))
        return mean_losses(outputs, data.y), statistics

    def adapt(
        self,
        support: Labeled,
        rates: Sequence[Rate],
        *,
        first_order: bool = False,
        engine: InnerEngine = "native",
        head: Callable[[Labeled], Mapping[str, Tensor]] | None = None,
        start: Mapping[str, Tensor] | None = None,
    ) -> Posterior[Delta]:
        """Point estimates psi* after gradient steps on each task's mean support loss (paper, Eq. 6).

        Differentiable in psi_0 while training; at evaluation each step's memory is freed at once. With ``head`` each
        task's head starts where that says, from its support set; with ``start`` all parameters start from those, which
        have a leading task dimension. Both need the native engine.
        """

        def of_group(part: Labeled, tasks: slice) -> tuple[Mapping[str, Tensor], Statistics]:
            own = None if start is None else {name: p[tasks] for name, p in start.items()}
            return self._adapt(part, rates, first_order, engine, head, own)

        return self.in_groups(support, of_group, at_once=1 if engine == "higher" else None)

    def in_groups(
        self,
        support: Labeled,
        adapt: Callable[[Labeled, slice], tuple[Mapping[str, Tensor], Statistics]],
        *,
        at_once: int | None = None,
        together: int = 1,
    ) -> Posterior[Delta]:
        """What an adaptation, of some tasks at once, finds for all: parameters with a leading task dimension.

        Args:
            support: of all tasks.
            adapt: from the support sets of some tasks, and which they are, to parameters and support statistics.
            at_once: how many; None for as many as fit the caches.
            together: how many in a row must not be parted, as the particles of a task; ``at_once`` is a multiple of it.
        """
        size = at_once or max(1, _tasks_at_once(support.x) // together) * together
        psi, statistics = [], []
        for group, part in enumerate(support.split(size)):
            parameters, found = adapt(part, slice(group * size, group * size + part.tasks))
            psi.append(self.flat(parameters))
            statistics.append(found)
        moments = cat_statistics(statistics)
        self.backbone.move_averages(moments)  # of all groups: their size must not count
        return Posterior(Delta(torch.cat(psi), event_dim=1), moments)

    def _adapt(
        self,
        support: Labeled,
        rates: Sequence[Rate],
        first_order: bool,
        engine: InnerEngine,
        head: Callable[[Labeled], Mapping[str, Tensor]] | None,
        start: Mapping[str, Tensor] | None,
    ) -> tuple[Mapping[str, Tensor], Statistics]:
        def support_loss(forward: Any) -> Tensor:
            """Summed over the tasks, whose parameters are their own, so that each has the gradient of its mean."""
            outputs, _ = forward(support.x)
            if self.regression:
                return squared_errors(outputs, support.y).sum()
            return F.cross_entropy(outputs.flatten(0, 1), support.y.flatten()) * support.tasks

        if engine == "higher":  # which knows one set of parameters, and so one task at a time
            begin = self.for_way(dict(self.named_parameters()), support.way)
        else:
            begin = self.initial(support.tasks, support.way) if start is None else dict(start)
            begin |= head(support) if head is not None else {}
        adapted = adapt(
            self,
            begin,
            support_loss,
            rates,
            first_order=first_order,
            create_graph=self.training and torch.is_grad_enabled(),
            engine=engine,
        )
        if engine == "higher":
            adapted = {n: p.unsqueeze(0) for n, p in adapted.items()}
        _, statistics = functional_call(self, adapted, (support.x,))
        return adapted, statistics

    def outputs(
        self, q: Posterior[Delta], query_x: Tensor, *, features: bool = False
    ) -> Float[Tensor, "task point way"]:
        """Logits, or means, of each task's own adapted network; or its features, ``[task, point, feature]``."""
        outputs, statistics = [], []
        at_once = _tasks_at_once(query_x)
        # Split, not sliced: the backward pass of each slice would fill a gradient of all tasks' parameters.
        for group, (x, psi) in enumerate(zip(query_x.split(at_once), q.psi.mean.split(at_once), strict=True)):
            own = slice(group * at_once, (group + 1) * at_once)
            arguments = (x, task_statistics(q.norm_statistics, own))
            of_group, moments = functional_call(self, self.unflatten(psi), arguments, {"features": features})
            outputs.append(of_group)
            statistics.append(moments)
        self.backbone.move_averages(cat_statistics(statistics))
        return torch.cat(outputs)

    @staticmethod
    def flat(parameters: Mapping[str, Tensor]) -> Tensor:
        """Each task's parameters as one vector, ``[task, psi]``."""
        return torch.cat([p.reshape(len(p), -1) for p in parameters.values()], -1)

    def unflatten(self, psi: Tensor) -> dict[str, Tensor]:
        """The parameters in vectors psi, ``[psi]`` or ``[task, psi]``; their length tells the way."""
        body = {n: p.shape for n, p in self.backbone.named_parameters(prefix="backbone")}
        features = self.head.in_features
        way = (psi.shape[-1] - sum(s.numel() for s in body.values())) // (features + 1)
        shapes = body | {"head.weight": torch.Size((way, features)), "head.bias": torch.Size((way,))}
        parts = psi.split([s.numel() for s in shapes.values()], -1)
        return {
            n: part.reshape(*psi.shape[:-1], *shape) for (n, shape), part in zip(shapes.items(), parts, strict=True)
        }
