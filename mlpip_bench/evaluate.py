"""One evaluation loop for all methods: predictives of a fixed task stream, scored per task."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution

from mlpip_bench.api import Method
from mlpip_bench.distributions import MonteCarloMixture, to_float64
from mlpip_bench.errors import CellError
from mlpip_bench.metrics import Metric
from mlpip_bench.progress import Step
from mlpip_bench.results import Model, Scores
from mlpip_bench.tasks import TaskBatch, TaskStream, seed_from

_TASKS_AT_ONCE = {"cpu": 4, "cuda": 50}

Predictions = list[tuple[Distribution, Tensor]]


def predict(method: Method[Any], stream: TaskStream, tasks: int, step: Step | None = None) -> Predictions:
    """Predictives, in float64, and targets of the first ``tasks`` tasks of a stream.

    The method is in evaluation mode, without autograd (a method may switch it on for its own inner
    steps). Mixtures over classes are reduced to their mean probabilities, which is all that any
    score can see of them, so that several protocols can share one pass.
    """
    was_training = method.training
    method.eval()
    chunk = _TASKS_AT_ONCE.get(stream.pool.device.type, 4)
    predictions: Predictions = []
    with torch.no_grad(), torch.random.fork_rng(devices=_cuda(stream)):
        for first in range(0, tasks, chunk):
            torch.manual_seed(seed_from(*stream.seed, "evaluation", first))
            batch = stream.batch(first, min(chunk, tasks - first))
            predictive = to_float64(method.predictive(method.amortize(batch.support), batch.query.x))
            predictions.append((_reduced(predictive), batch.query.y))
            if step is not None:
                step(min(first + chunk, tasks))
    method.train(was_training)
    return predictions


def _cuda(stream: TaskStream) -> list[torch.device]:
    return [stream.pool.device] if stream.pool.device.type == "cuda" else []


def _reduced(predictive: Distribution) -> Distribution:
    if isinstance(predictive, MonteCarloMixture) and isinstance(predictive.components, Categorical):
        return Categorical(logits=predictive.log_probs, validate_args=False)
    return predictive


def score(metric: Metric, predictions: Predictions) -> list[float]:
    """One score a task.

    Raises:
        CellError: a score that is not finite; it would poison every mean.
    """
    scores = torch.cat([metric.score(predictive, y) for predictive, y in predictions])
    if not scores.isfinite().all():
        task = int((~scores.isfinite()).nonzero()[0])
        raise CellError(
            f"{metric.name} is {float(scores[task])} on task {task}: the model's predictions are not finite."
        )
    return [float(s) for s in scores]


class Evaluation:
    """A trained model in front of a bench's fixed test tasks; protocols ask it for scores.

    Args:
        method: the trained method.
        model: which of its states this is.
        stream: the test tasks.
        tasks: how many of them.
        step: told how many tasks are done.
    """

    def __init__(
        self,
        method: Method[Any],
        model: Model,
        stream: TaskStream,
        tasks: int,
        step: Step | None = None,
    ) -> None:
        self.method = method
        self.model: Model = model
        self.stream = stream
        self.tasks = tasks
        self._step = step
        self._predictions: Predictions | None = None

    @property
    def predictions(self) -> Predictions:
        """Predictives and targets of the test tasks, computed once."""
        if self._predictions is None:
            self._predictions = predict(self.method, self.stream, self.tasks, self._step)
        return self._predictions

    def relabelled(self, model: Model) -> Evaluation:
        """The same predictions under the name of another model, for the case that the two are one."""
        twin = copy.copy(self)
        twin.model = model
        return twin

    def scores(self, metrics: Sequence[Metric]) -> list[Scores]:
        """Each metric under the bench's own test condition."""
        shape = self.stream.shape
        return [
            Scores(
                metric=metric.name,
                unit=metric.unit,
                better=metric.better,
                way=shape.way,
                shot=max(shape.shots_per_class),
                queries=shape.queries,
                model=self.model,
                per_task=tuple(score(metric, self.predictions)),
            )
            for metric in metrics
        ]


def is_inductive(method: Method[Any], batch: TaskBatch, queries: int = 5, tolerance: float = 1e-3) -> bool:
    """Whether queries are predicted alike together and one at a time.

    Measured, not declared: a transductive method sees the other queries, for example through batch
    norm, and its accuracy then depends on how many are asked at once.

    Args:
        method: the trained method.
        batch: one or more test tasks.
        queries: how many queries of each task are fed one at a time.
        tolerance: largest difference of a probability that rounding may explain.
    """
    was_training = method.training
    method.eval()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        q = method.amortize(batch.support)
        together = to_float64(method.predictive(q, batch.query.x))
        y = batch.query.y
        worst = 0.0
        for point in range(min(queries, y.shape[1])):
            alone = to_float64(method.predictive(q, batch.query.x[:, point : point + 1]))
            difference = together.log_prob(y)[:, point].exp() - alone.log_prob(y[:, point : point + 1])[:, 0].exp()
            worst = max(worst, float(difference.abs().max()))
    method.train(was_training)
    return worst <= tolerance
