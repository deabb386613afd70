"""The interface of a protocol: a rule of measurement, for one model or for several side by side."""

from __future__ import annotations

import abc
import copy
import dataclasses
import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from mlpip_bench.evaluation.metrics import Metric
from mlpip_bench.evaluation.predict import Predictions, checked, predict, predict_each, probabilities
from mlpip_bench.inference.method import Method, TaskKind, TrainingPlan
from mlpip_bench.nn.fused import plain_operations
from mlpip_bench.records.record import Model, Scores
from mlpip_bench.tasks.stream import Stream
from mlpip_bench.utils.numerics import Numerics
from mlpip_bench.utils.progress import Quiet, Reporter
from mlpip_bench.utils.settings import NoSettings


class MeasurementRule(abc.ABC):
    """What the two kinds of protocol share; a plugin subclasses one of them.

    Attributes:
        description: what it measures, in one line.
        metrics: the metrics it reports.
        handles: the kinds of task that it can measure.
        families: classes of the only task families that it can measure; none for all.
        ranges: whether it can measure tasks that each have a way and shots of their own (``omni2..20w1..10s``).
        default: whether it is measured where no protocol is named.
        Settings: frozen dataclass of its own settings (``--set PROTOCOL.NAME=VALUE``), with defaults.

    Args:
        settings: an instance of ``Settings``; None for the defaults.
    """

    description: ClassVar[str]
    metrics: ClassVar[tuple[Metric, ...]]
    handles: ClassVar[tuple[TaskKind, ...]] = ("classification",)
    families: ClassVar[tuple[type, ...]] = ()
    ranges: ClassVar[bool] = True
    default: ClassVar[bool] = False
    Settings: ClassVar[type] = NoSettings

    def __init__(self, settings: Any = None) -> None:
        self.settings = self.Settings() if settings is None else settings

    def check(self, test: Stream) -> None:  # noqa: B027  # most have nothing to refuse
        """Refuse test tasks that cannot be measured with the settings, before anything is trained.

        Raises:
            UserError: what the rule is, what came, what to do.
        """

    def note(self, test: Stream) -> str:  # noqa: ARG002  # most measure what is asked
        """What is measured otherwise than a user would expect of the test tasks, to be said once; empty for nothing."""
        return ""

    def applies(self, plugin: type[Method[Any]], settings: Any) -> bool:  # noqa: ARG002  # for those that override it
        """Whether a method with these settings has what is measured; all do, unless a protocol says otherwise."""
        return True


class EvalProtocol(MeasurementRule):
    """A rule of measurement for one trained model, the same for every method."""

    @abc.abstractmethod
    def measure(self, evaluation: Evaluation) -> list[Scores]:
        """Per-task scores of a trained model."""


class SideBySideProtocol(MeasurementRule):
    """A rule of measurement for all methods of a bench at once, so that what changes meanwhile affects all equally."""

    @abc.abstractmethod
    def measure(self, contenders: Sequence[Contender], reporter: Reporter) -> list[list[Scores] | BaseException]:
        """Scores over repeats for each of the trained models, or why one that failed has none."""


SCRAMBLES, SCRAMBLED_TASKS = 3, 100
"""Sets of fixed points that are compared, its own first, and first test tasks that they are compared on."""
MOST_KEPT = 2**31
"""Bytes of the predictions of all test tasks that several protocols share, under all sets of fixed points."""


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

    @functools.cached_property
    def scrambled(self) -> list[Predictions]:
        """Predictives of the first test tasks under other sets of fixed points; none for a method without a choice.

        A method whose class probabilities are averages over fixed points has the setting ``scramble``.
        """
        return self._under_sets_of_points()

    @property
    def _other_sets(self) -> list[Any]:
        """The method's settings with other sets of fixed points."""
        settings = self.method.settings
        if self.method.problem.kind != "classification" or not hasattr(settings, "scramble"):
            return []
        return [dataclasses.replace(settings, scramble=settings.scramble + i) for i in range(1, SCRAMBLES)]

    def _under_sets_of_points(self, **keep: Any) -> list[Any]:
        if not (sets := self._other_sets):
            return []
        tasks = min(self.tasks, SCRAMBLED_TASKS)
        with self._reporter.stage(f"{self._title}, other sets of points", tasks) as step:
            return predict_each(self.method, self.stream, tasks, sets, step, **keep)

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
        """Each metric on the predictions, by default those under the bench's own test condition.

        With those, and a method that averages over fixed points, the detail ``scramble_means`` has the mean score of
        the first test tasks under each of several sets of points.
        """

        def scored(predictive: Distribution, y: Tensor) -> list[Tensor]:
            return [metric.score(predictive, y) for metric in metrics]

        if predictions is None and self._is_large():  # passes of their own, which keep nothing else
            with self._reporter.stage(self._title, self.tasks) as step:
                (found,) = predict_each(self.method, self.stream, self.tasks, [self.method.settings], step, keep=scored)
            of_sets = self._under_sets_of_points(keep=scored)
        else:
            sets = self.scrambled if predictions is None else []
            passes = (self.predictions if predictions is None else predictions, *sets)
            found, *of_sets = ([scored(*chunk) for chunk in each] for each in passes)

        def of_tasks(chunks: Sequence[Sequence[Tensor]], number: int) -> list[float]:
            return checked(metrics[number], [scores[number] for scores in chunks])

        scores = []
        for number, metric in enumerate(metrics):
            own = of_tasks(found, number)
            first, *others = own[:SCRAMBLED_TASKS], *(of_tasks(each, number) for each in of_sets)
            detail = {"scramble_means": tuple(map(statistics.fmean, (first, *others)))} if others else None
            scores.append(self.labeled(metric, own, condition=condition, detail=detail))
        return scores

    def _is_large(self) -> bool:
        """Whether predictions are too many to keep: those of one task of a thousand ways take 240 MB."""
        if self.method.problem.kind != "classification":
            return False
        tasks = self.tasks + len(self._other_sets) * min(self.tasks, SCRAMBLED_TASKS)
        both = 2 * torch.float64.itemsize  # probabilities and their logs
        return tasks * probabilities(self.stream.shape) * both > MOST_KEPT

    def labeled(
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
    """A trained model that is measured side by side with others of its bench.

    Attributes:
        title: for messages.
        method: the model that is best on validation.
        plan: how it was trained.
        streams: its task streams, ``train`` and ``test`` among them; tasks of ``test`` are the same for all.
        build: the same model, built anew and with the same state, for what trains it; nothing of it is compiled. A
            copy would fail for models that hold an open file, a hook or a tensor that is computed.
    """

    title: str
    method: Method[Any]
    plan: TrainingPlan
    streams: Mapping[str, Stream]
    build: Callable[[], Method[Any]]


_OF_A_TEST_TASK = ("amortize", "predictive")


def compiled_for_tests(method: Method[Any], numerics: Numerics) -> Method[Any]:
    """The same model, with what is done to a test task compiled if that is asked for; training would then fail."""
    if numerics.compile == "off":
        return method
    compiled = copy.copy(method)
    for name in _OF_A_TEST_TASK:
        function = torch.compile(getattr(type(method), name), mode=numerics.compile)
        setattr(compiled, name, MethodType(_in_plain_operations(function), compiled))
    return compiled


def _in_plain_operations(function: Callable[..., Any]) -> Callable[..., Any]:
    """Of those that the compiler knows; it would try its hand at what calls the others."""

    def call(*arguments: Any) -> Any:
        with plain_operations():
            return function(*arguments)

    return call
