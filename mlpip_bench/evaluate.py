"""One evaluation loop for all methods: predictives of a fixed task stream, scored per task."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution

from mlpip_bench.api import Method, Posterior, TrainingPlan
from mlpip_bench.distributions import Delta, MonteCarloMixture, to_float64
from mlpip_bench.metrics import Metric
from mlpip_bench.networks import features_once
from mlpip_bench.records.record import Model, Scores
from mlpip_bench.tasks.batch import Labelled, TaskBatch
from mlpip_bench.tasks.stream import Stream
from mlpip_bench.utils.device import Numerics
from mlpip_bench.utils.errors import CellError
from mlpip_bench.utils.progress import Quiet, Reporter, Step
from mlpip_bench.utils.seeding import seed_from

_TASKS_AT_ONCE = {"cpu": 20, "cuda": 50}
_PROBABILITIES_AT_ONCE = 120_000  # of a chunk of tasks; a hundredfold while samples are averaged

Predictions = list[tuple[Distribution, Tensor]]


def predict(
    method: Method[Any], stream: Stream, tasks: int, step: Step | None = None, *, one_at_a_time: bool = False
) -> Predictions:
    """Predictives, in float64, and targets of the first ``tasks`` tasks of a stream.

    The method is in evaluation mode, without autograd (a method may switch it on for its own inner
    steps). Mixtures over classes are reduced to their mean probabilities, and predicted images to their
    mean in float32, which is all that any score can see of them, so that several protocols can share one pass.

    Args:
        method: the method.
        stream: the tasks.
        tasks: how many of them.
        step: told how many are done.
        one_at_a_time: ask for each query alone; classification only.

    Raises:
        CellError: a predictive of the wrong kind or shape.
    """
    (predictions,) = predict_each(method, stream, tasks, [method.settings], step, one_at_a_time=one_at_a_time)
    return predictions


def predict_each(
    method: Method[Any],
    stream: Stream,
    tasks: int,
    settings: Sequence[Any],
    step: Step | None = None,
    *,
    one_at_a_time: bool = False,
) -> list[Predictions]:
    """The same under each of several settings of the method; features that they share are computed once."""
    was_training, own = method.training, method.settings
    method.eval()
    chunk = chunk_size(stream)
    predictions: list[Predictions] = [[] for _ in settings]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=_cuda(stream)):
            for first in range(0, tasks, chunk):
                batch = stream.batch(first, min(chunk, tasks - first))
                with features_once(method) if len(settings) > 1 else contextlib.nullcontext():
                    for found, varied in zip(predictions, settings, strict=True):
                        method.settings = varied
                        torch.manual_seed(seed_from(*stream.seed, "evaluation", first))
                        found.append((_of_batch(method, batch, one_at_a_time=one_at_a_time), batch.query.y))
                if step is not None:
                    step(min(first + chunk, tasks))
    finally:
        method.settings = own
    method.train(was_training)
    return predictions


def _of_batch(method: Method[Any], batch: TaskBatch, *, one_at_a_time: bool) -> Distribution:
    q = method.amortize(batch.support)
    if not isinstance(q, Posterior):
        raise CellError(f"amortize must return a Posterior; {type(method).__name__}'s is a {type(q).__name__}.")
    if not one_at_a_time:
        return _predictive(method, q, batch.query)
    points = [_predictive(method, q, _point(batch.query, i)) for i in range(batch.query.y.shape[1])]
    return Categorical(logits=torch.cat([p.logits for p in points], 1), validate_args=False)  # type: ignore[attr-defined]


def chunk_size(stream: Stream) -> int:
    """Tasks predicted at once: fewer where tasks are large."""
    shape = stream.shape
    return max(
        1, min(_TASKS_AT_ONCE.get(stream.device.type, 4), _PROBABILITIES_AT_ONCE // (shape.queries * shape.way**2))
    )


def _point(query: Labelled, index: int) -> Labelled:
    return Labelled(query.x[:, index : index + 1], query.y[:, index : index + 1], query.way)


def _predictive(method: Method[Any], q: Posterior[Any], query: Labelled) -> Distribution:
    """The predictive in float64, checked before its numbers are believed."""
    predictive = method.predictive(q, query.x)
    points = query.y.shape[:2]
    if not isinstance(predictive, Distribution) or predictive.batch_shape != points:
        came = (
            f"batch shape {tuple(predictive.batch_shape)}"
            if isinstance(predictive, Distribution)
            else f"a {type(predictive).__name__}"
        )
        raise CellError(
            f"predictive must return a distribution with batch shape (task, point) = {tuple(points)}; "
            f"{type(method).__name__}'s is {came}."
        )
    if method.problem.kind == "reconstruction":
        return _images(predictive, query, type(method).__name__)
    predictive = _reduced(to_float64(predictive))
    if method.problem.kind == "classification" and not hasattr(predictive, "probs"):
        raise CellError(
            f"predictive must be a distribution over the task's classes; {type(method).__name__}'s is a "
            f"{type(predictive).__name__}."
        )
    if isinstance(predictive, Categorical) and predictive.logits.shape[-1] != query.way:
        raise CellError(
            f"predictive must have a probability for each of the task's {query.way} classes; "
            f"{type(method).__name__}'s has {predictive.logits.shape[-1]}."
        )
    return predictive


def _images(predictive: Distribution, query: Labelled, name: str) -> Delta:
    """The mean of predicted images, the only thing that is scored of them."""
    if predictive.event_shape != query.y.shape[2:]:
        raise CellError(
            f"predictive must be over images of the shape {tuple(query.y.shape[2:])}; {name}'s event shape is "
            f"{tuple(predictive.event_shape)}."
        )
    return Delta(predictive.mean, event_dim=3)


def _cuda(stream: Stream) -> list[torch.device]:
    return [stream.device] if stream.device.type == "cuda" else []


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
        method: the trained method, which holds the state that is tested.
        model: which of its states that is.
        stream: the test tasks.
        tasks: how many of them.
        reporter: shows a bar for each pass over the tasks.
        title: what the bars are called.
    """

    def __init__(
        self,
        method: Method[Any],
        model: Model,
        stream: Stream,
        tasks: int,
        reporter: Reporter | None = None,
        title: str = "",
    ) -> None:
        self.method = method
        self.model: Model = model
        self.stream = stream
        self.tasks = tasks
        self._reporter = reporter or Quiet()
        self._title = f"{title}: testing the {model} model".removeprefix(": ")

    @functools.cached_property
    def predictions(self) -> Predictions:
        """Predictives and targets of the test tasks, computed once."""
        return self.predict()

    def predict(self, note: str = "", *, one_at_a_time: bool = False) -> Predictions:
        """A pass over the test tasks of its own, for a protocol that changes how they are predicted."""
        title = f"{self._title}, {note}" if note else self._title
        with self._reporter.stage(title, self.tasks) as step:
            return predict(self.method, self.stream, self.tasks, step, one_at_a_time=one_at_a_time)

    def predict_each(self, note: str, settings: Sequence[Any]) -> list[Predictions]:
        """A pass over the test tasks under each of several settings of the method."""
        with self._reporter.stage(f"{self._title}, {note}", self.tasks) as step:
            return predict_each(self.method, self.stream, self.tasks, settings, step)

    def on(self, stream: Stream) -> Evaluation:
        """The same model in front of as many tasks of another stream."""
        shape = stream.shape
        title = f"{self._title} at {shape.way}w{max(shape.shots_per_class)}s"
        other = Evaluation(self.method, self.model, stream, self.tasks, self._reporter)
        other._title = title
        return other

    def scores(
        self,
        metrics: Sequence[Metric],
        predictions: Predictions | None = None,
        condition: Mapping[str, str | int | float] | None = None,
    ) -> list[Scores]:
        """Each metric on the predictions, by default those under the bench's own test condition."""
        predictions = self.predictions if predictions is None else predictions
        return [self.labelled(metric, score(metric, predictions), condition=condition) for metric in metrics]

    def labelled(
        self,
        metric: Metric,
        per_task: Sequence[float],
        *,
        condition: Mapping[str, str | int | float] | None = None,
        detail: Mapping[str, tuple[float, ...] | str] | None = None,
    ) -> Scores:
        """Scores, one a test task, with all that says how they were measured."""
        how = {"condition": dict(condition or {}), "detail": dict(detail or {})}
        return scores_of(metric, self.stream, per_task, model=self.model, **how)


def scores_of(
    metric: Metric, stream: Stream, per_task: Sequence[float], *, model: Model = "best", **how: Any
) -> Scores:
    """Scores on the tasks of a stream; ``how`` are further fields of :class:`Scores`."""
    shape = stream.shape
    return Scores(
        metric=metric.name,
        unit=metric.unit,
        better=metric.better,
        way=shape.way,
        shot=max(shape.shots_per_class),
        queries=shape.queries,
        model=model,
        per_task=tuple(per_task),
        **how,
    )


@dataclass(frozen=True, eq=False)
class Contender:
    """A trained model that is measured beside others of its bench.

    Attributes:
        title: for messages.
        method: the model that is best on validation.
        plan: how it was trained.
        streams: its task streams, ``train`` and ``test`` among them; tasks of ``test`` are the same for all.
    """

    title: str
    method: Method[Any]
    plan: TrainingPlan
    streams: Mapping[str, Stream]

    def trainee(self) -> Method[Any]:
        """A copy of the model that can be trained; nothing of it is compiled."""
        method = copy.deepcopy(self.method)
        for name in _OF_A_TEST_TASK:
            vars(method).pop(name, None)
        return method


_OF_A_TEST_TASK = ("amortize", "predictive")


def compile_for_tests(method: Method[Any], numerics: Numerics) -> None:
    """From here on, what is done to a test task is compiled, if that is asked for; training would then fail."""
    if numerics.compile != "off":
        for name in _OF_A_TEST_TASK:
            setattr(method, name, torch.compile(getattr(method, name), mode=numerics.compile))


def is_inductive(method: Method[Any], batch: TaskBatch, queries: int = 5, tolerance: float = 1e-3) -> bool:
    """Whether queries are predicted alike together and one at a time.

    Measured, not declared: a transductive method sees the other queries, for example through batch
    norm, and its accuracy then depends on how many are asked at once.

    Args:
        method: the trained method.
        batch: one or more test tasks.
        queries: how many queries of each task are fed one at a time.
        tolerance: largest difference of a density, or of a pixel, that rounding may explain.
    """
    was_training = method.training
    method.eval()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        q = method.amortize(batch.support)

        def answers(query: Labelled) -> Tensor:
            """Density at the target; in reconstruction, where densities underflow, the image."""
            predictive = method.predictive(q, query.x)
            if method.problem.kind == "reconstruction":
                return predictive.mean
            density: Tensor = to_float64(predictive).log_prob(query.y).exp()
            return density

        together = answers(batch.query)
        worst = 0.0
        for point in range(min(queries, batch.query.y.shape[1])):
            difference = together[:, point : point + 1] - answers(_point(batch.query, point))
            worst = max(worst, float(difference.abs().max()))
    method.train(was_training)
    return worst <= tolerance
