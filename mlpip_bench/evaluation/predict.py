"""Predictives of a fixed task stream, the same way for all methods."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution

from mlpip_bench.evaluation.metrics import Metric
from mlpip_bench.inference.distributions import Delta, GaussianSoftmax, MonteCarloMixture, to_float64, where_float64_is
from mlpip_bench.inference.method import Method, Posterior
from mlpip_bench.nn.backbone import features_once
from mlpip_bench.tasks.batch import Labeled, TaskShape
from mlpip_bench.tasks.stream import OfShapes, Stream
from mlpip_bench.utils.errors import TrialError
from mlpip_bench.utils.numerics import SCORED
from mlpip_bench.utils.progress import Step
from mlpip_bench.utils.seeding import seed_from

_TASKS_AT_ONCE = {"cpu": 20, "cuda": 50}
_PROBABILITIES_AT_ONCE = 120_000  # of a chunk of tasks; samples are averaged a part at a time
POINTS_AT_ONCE = 2000
"""Queries of a task; it takes 134 ways with 15 of each to have more."""
Predictions = list[tuple[Distribution, Tensor]]


def predict(
    method: Method[Any], stream: Stream, tasks: int, step: Step | None = None, *, one_at_a_time: bool = False
) -> Predictions:
    """Predictives, in float64, and targets of the first ``tasks`` tasks of a stream.

    The method is in evaluation mode, without autograd (a method may switch it on for its own inner
    steps), and computes in float32 whatever the precision of its training. Mixtures over classes are reduced to
    their mean probabilities, and predicted images to their mean in float32, which is all that any score can see
    of them, so that several protocols can share one pass.

    Args:
        method: the method.
        stream: the tasks.
        tasks: how many of them.
        step: called with the number of tasks that are done.
        one_at_a_time: ask for each query alone; classification only.

    Raises:
        TrialError: a predictive of the wrong kind or shape.
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
    keep: Callable[[Distribution, Tensor], Any] = lambda predictive, y: (predictive, y),
) -> list[list[Any]]:
    """The same under each of several settings of the method; features that they share are computed once.

    ``keep`` takes predictives and targets of some tasks at a time, and gives what is kept of them: all, or less where
    that would be more than the memory has.
    """
    was_training = method.training
    method.eval()
    variants = [method.with_settings(varied) for varied in settings]
    chunk = chunk_size(stream)
    kept: list[list[Any]] = [[] for _ in settings]
    with torch.no_grad(), SCORED.applied(), torch.random.fork_rng(devices=_cuda(stream)):
        for first in range(0, tasks, chunk):
            batch = stream.batch(first, min(chunk, tasks - first))
            parts: Iterable[Labeled] = _parts(method, batch.query, one_at_a_time=one_at_a_time)
            if len(variants) > 1:  # the same ones for each, or their features would be computed anew
                parts = list(parts)
            with features_once(method) if len(variants) > 1 else contextlib.nullcontext():
                for found, variant in zip(kept, variants, strict=True):
                    torch.manual_seed(seed_from(*stream.seed, "evaluation", first))
                    predictive = _of_batch(variant, batch.support, parts)
                    found.append(keep(predictive, where_float64_is(batch.query.y)))
            if step is not None:
                step(min(first + chunk, tasks))
    method.train(was_training)
    return kept


def _of_batch(method: Method[Any], support: Labeled, queries: Iterable[Labeled]) -> Distribution:
    q = method.amortize(support)
    if not isinstance(q, Posterior):
        raise TrialError(f"amortize must return a Posterior; {type(method).__name__}'s is a {type(q).__name__}.")
    first, *others = [_predictive(method, q, part) for part in queries]
    if not others:
        return first
    logits = torch.cat([part.logits for part in (first, *others)], 1)  # type: ignore[attr-defined]
    return Categorical(logits=logits, validate_args=False)


def _parts(method: Method[Any], query: Labeled, *, one_at_a_time: bool) -> Iterator[Labeled]:
    """The queries that are predicted at once: not all of those of a large task, unless they see each other."""
    points = query.y.shape[1]
    together = method.problem.kind != "classification" or method.problem.norm == "transductive"
    size = 1 if one_at_a_time else points if together else POINTS_AT_ONCE
    return (some_queries(query, first, size) for first in range(0, points, size))


def chunk_size(stream: Stream) -> int:
    """Tasks predicted at once: fewer where tasks are large, and one where each has its own shape."""
    shape = stream.shape
    if isinstance(stream, OfShapes):
        return 1
    return max(1, min(_TASKS_AT_ONCE.get(stream.device.type, 4), _PROBABILITIES_AT_ONCE // probabilities(shape)))


def probabilities(shape: TaskShape) -> int:
    """How many numbers a task's predictives are: of each of its queries, one a class."""
    return shape.queries * shape.way**2


def single_query(query: Labeled, index: int) -> Labeled:
    """One query of each task, in memory of its own, through which the others are not seen."""
    return some_queries(query, index, 1)


def some_queries(query: Labeled, first: int, size: int) -> Labeled:
    """Some of the queries of each task, in memory of their own, if they are not all."""
    if size >= query.y.shape[1]:
        return query
    return Labeled(query.x[:, first : first + size].clone(), query.y[:, first : first + size], query.way)


def _predictive(method: Method[Any], q: Posterior[Any], query: Labeled) -> Distribution:
    """The predictive in float64, checked before its numbers are believed."""
    predictive = method.predictive(q, query.x)
    points = query.y.shape[:2]
    if not isinstance(predictive, Distribution) or predictive.batch_shape != points:
        came = (
            f"batch shape {tuple(predictive.batch_shape)}"
            if isinstance(predictive, Distribution)
            else f"a {type(predictive).__name__}"
        )
        raise TrialError(
            f"predictive must return a distribution with batch shape (task, point) = {tuple(points)}; "
            f"{type(method).__name__}'s is {came}."
        )
    if method.problem.kind == "reconstruction":
        return _images(predictive, query, type(method).__name__)
    predictive = over_classes(predictive)
    if method.problem.kind == "classification" and not hasattr(predictive, "probs"):
        raise TrialError(
            f"predictive must be a distribution over the task's classes; {type(method).__name__}'s is a "
            f"{type(predictive).__name__}."
        )
    if isinstance(predictive, Categorical) and predictive.logits.shape[-1] != query.way:
        raise TrialError(
            f"predictive must have a probability for each of the task's {query.way} classes; "
            f"{type(method).__name__}'s has {predictive.logits.shape[-1]}."
        )
    return predictive


def _images(predictive: Distribution, query: Labeled, name: str) -> Delta:
    """The mean of predicted images, the only thing that is scored of them."""
    if predictive.event_shape != query.y.shape[2:]:
        raise TrialError(
            f"predictive must be over images of the shape {tuple(query.y.shape[2:])}; {name}'s event shape is "
            f"{tuple(predictive.event_shape)}."
        )
    return Delta(where_float64_is(predictive.mean), event_dim=3)


def _cuda(stream: Stream) -> list[torch.device]:
    return [stream.device] if stream.device.type == "cuda" else []


def over_classes(predictive: Distribution) -> Distribution:
    """The predictive in float64; an average over psi, of probabilities of classes, as these probabilities alone."""
    predictive = to_float64(predictive)
    if isinstance(predictive, GaussianSoftmax) or (
        isinstance(predictive, MonteCarloMixture) and isinstance(predictive.components, Categorical)
    ):
        return Categorical(logits=predictive.log_probs, validate_args=False)
    return predictive


class ZeroProbabilityError(TrialError):
    """The predictive rules out what came."""


def score(metric: Metric, predictions: Predictions) -> list[float]:
    """One score a task, as :func:`checked` has it."""
    return checked(metric, [metric.score(predictive, y) for predictive, y in predictions])


def checked(metric: Metric, of_tasks: Sequence[Tensor]) -> list[float]:
    """One score a task, of scores of some tasks at a time.

    Raises:
        ZeroProbabilityError: a log-loss that is infinite.
        TrialError: a score that is not finite; it would poison every mean.
    """
    scores = torch.cat(list(of_tasks))
    if not scores.isfinite().all():
        task = int((~scores.isfinite()).nonzero()[0])
        if scores[task] == math.inf and metric.unit.startswith("nats"):
            raise ZeroProbabilityError(
                f"{metric.name} is infinite on task {task}, and on {int((scores == math.inf).sum()) - 1} others of "
                f"{len(scores)}: the predictive gives what came a probability of exactly 0, which says that it cannot "
                "come. Give logits in place of probabilities that round to 0, or every class some probability; nothing "
                "is clipped. Accuracy is not affected."
            )
        raise TrialError(
            f"{metric.name} is {float(scores[task])} on task {task}: the model's predictions are not finite."
        )
    return [float(s) for s in scores]
