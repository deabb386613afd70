"""MAML: a few gradient steps from a learned initialisation, as semi-amortised inference.

psi: all parameters of extractor and classifier, a point mass at the adapted values (paper, Eq. 6).
Reference: Finn, Abbeel & Levine, ICML 2017.

Differences from their paper: the inner loss is a mean and its rate is stated for a mean (their code
sums over classes, so its 0.4 at 5-way is 2.0 for a mean); the network is the bench's extractor for all
methods alike, whose 256 features make longer steps than their 64, so the quick preset has a smaller
rate; the head starts at zero; scale and shift of the normalisation adapt too; one fixed number of test
steps. Test tasks with more classes than the training way start the further classes from the mean of
the learned rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution
from torch.func import functional_call
from torch.nn import functional as F

from mlpip_bench.api import Method, Posterior, Problem
from mlpip_bench.distributions import Delta
from mlpip_bench.inner_loop import InnerEngine, adapt
from mlpip_bench.networks import FeatureExtractor
from mlpip_bench.normalization import Statistics, cat_statistics, task_statistics
from mlpip_bench.objectives import mlpip_loss
from mlpip_bench.tasks import Labelled, TaskBatch


@dataclass(frozen=True)
class MAMLSettings:
    """Settings of MAML.

    Attributes:
        train_steps, test_steps: inner gradient steps while training and at evaluation.
        inner_rate: rate of a step for a mean loss; or one rate a step, the last one for all further steps.
        first_order: leave the second derivatives out.
        inner_engine: ``native``, or ``higher`` for the library of that name.
    """

    train_steps: int = 1
    test_steps: int = 1
    inner_rate: float | tuple[float, ...] = 0.1
    first_order: bool = False
    inner_engine: InnerEngine = "native"

    def __post_init__(self) -> None:
        if min(self.train_steps, self.test_steps) < 0:
            raise ValueError(f"inner steps cannot be negative; got {self.train_steps} and {self.test_steps}")
        if not self._rates or not all(0 < rate < math.inf for rate in self._rates):
            raise ValueError(f"inner rates must be positive and finite; got {self.inner_rate}")
        most = max(self.train_steps, self.test_steps)
        if len(self._rates) > max(most, 1):
            raise ValueError(f"there are {len(self._rates)} inner rates for at most {most} steps")
        if self.inner_engine not in ("native", "higher"):
            raise ValueError(f"inner_engine must be native or higher; got {self.inner_engine!r}")

    @property
    def _rates(self) -> tuple[float, ...]:
        return self.inner_rate if isinstance(self.inner_rate, tuple) else (self.inner_rate,)

    def rates(self, steps: int) -> list[float]:
        """The rate of each step."""
        return [self._rates[min(step, len(self._rates) - 1)] for step in range(steps)]


class _Classifier(nn.Module):
    """Extractor and linear head: the network whose parameters are psi."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.extractor = FeatureExtractor(problem.extractor, problem.norm)
        self.head = nn.Linear(problem.extractor.features, problem.way)
        nn.init.zeros_(self.head.weight)  # random rows over 256 features are random guesses, confident ones
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor, support: Statistics | None, *, track: bool) -> tuple[Tensor, Statistics]:
        features, statistics = self.extractor(x, support, track=track)
        return self.head(features), statistics


class MAML(Method[Delta]):
    """Gradient descent on the support loss from a meta-learned psi_0."""

    reference = "Finn et al. 2017, Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks (ICML)"
    psi = "point mass at all network parameters after a few gradient steps"
    Settings = MAMLSettings
    settings: MAMLSettings
    presets: ClassVar = {
        "paper": {
            "*": {"learning_rate": 1e-3, "iterations": 60_000},
            "omni": {"tasks_per_batch": 16, "inner_rate": 2.0, "train_steps": 5, "test_steps": 5},
            "omni5w1s": {"tasks_per_batch": 32, "train_steps": 1, "test_steps": 3, "train_queries": 1},
            "omni5w5s": {"tasks_per_batch": 32, "train_steps": 1, "test_steps": 3, "train_queries": 5},
            "omni20w1s": {"train_queries": 1},
            "omni20w5s": {"train_queries": 5},
            "mini": {"tasks_per_batch": 4, "inner_rate": 0.05, "train_steps": 5, "test_steps": 10},
        },
    }
    xfail_checks: ClassVar = {"class_relabelling": "every class starts from its own learned row of the head"}

    def __init__(self, problem: Problem, settings: MAMLSettings) -> None:
        super().__init__(problem, settings)
        self.network = _Classifier(problem)

    def amortize(self, support: Labelled) -> Posterior[Delta]:
        """psi* after gradient steps on each task's support loss (Eq. 6), and its support statistics."""
        adapted, statistics = zip(*(self._adapt(support.task(t)) for t in range(support.tasks)), strict=True)
        psi = torch.stack([torch.cat([p.flatten() for p in task.values()]) for task in adapted])
        return Posterior(Delta(psi, event_dim=1), cat_statistics(statistics))

    def _adapt(self, task: Labelled) -> tuple[dict[str, Tensor], Statistics]:
        rates = self.settings.rates(self.settings.train_steps if self.training else self.settings.test_steps)
        keep_graph = self.training and torch.is_grad_enabled()

        def support_loss(forward: Any) -> Tensor:
            logits, _ = forward(task.x, None, track=False)
            return F.cross_entropy(logits.flatten(0, 1), task.y.flatten())

        adapted = adapt(
            self.network,
            self._initial(task.way),
            support_loss,
            rates,
            first_order=self.settings.first_order,
            create_graph=keep_graph,
            engine=self.settings.inner_engine,
        )
        _, statistics = functional_call(self.network, adapted, (task.x, None), {"track": True})
        return adapted, statistics

    def _initial(self, way: int) -> dict[str, Tensor]:
        """psi_0, with the head's rows cut or filled up to the task's way."""

        def rows(parameter: Tensor) -> Tensor:
            missing = max(way - len(parameter), 0)
            return torch.cat([parameter[:way], parameter.mean(0, keepdim=True).expand(missing, *parameter.shape[1:])])

        return {n: rows(p) if n.startswith("head.") else p for n, p in self.network.named_parameters()}

    def predictive(self, q: Posterior[Delta], query_x: Tensor) -> Distribution:
        """Softmax of each task's own adapted network."""
        logits = []
        for t in range(query_x.shape[0]):
            parameters = self._unflatten(q.psi.mean[t])
            arguments = (query_x[t : t + 1], task_statistics(q.support, t))
            logits.append(functional_call(self.network, parameters, arguments, {"track": True})[0])
        return Categorical(logits=torch.cat(logits), validate_args=False)

    def _unflatten(self, psi: Tensor) -> dict[str, Tensor]:
        body = {n: p.shape for n, p in self.network.extractor.named_parameters(prefix="extractor")}
        features = self.problem.extractor.features
        way = (len(psi) - sum(s.numel() for s in body.values())) // (features + 1)
        shapes = body | {"head.weight": torch.Size((way, features)), "head.bias": torch.Size((way,))}
        parts = psi.split([s.numel() for s in shapes.values()])
        return {n: part.view(shape) for (n, shape), part in zip(shapes.items(), parts, strict=True)}

    def loss(self, batch: TaskBatch) -> Tensor:
        """Cross-entropy of the queries under the adapted parameters, differentiated through the steps."""
        return mlpip_loss(self.predictive(self.amortize(batch.support), batch.query.x), batch.query)
