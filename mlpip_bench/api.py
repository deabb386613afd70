"""The plugin interfaces: a meta-learner, and a rule of measurement, for one model or for several side by side.

ML-PIP (paper, section 2): an amortizer maps a support set D to q(psi | D), and the predictive is
q(y | x, D) = integral of p(y | x, psi, theta) q(psi | D) d psi.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from jaxtyping import Float
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn
from torch.distributions import Distribution

from mlpip_bench.networks import ExtractorSpec
from mlpip_bench.normalization import NormMode, Statistics
from mlpip_bench.tasks.batch import Labelled, TaskBatch
from mlpip_bench.utils.errors import UserError, unknown_name

if TYPE_CHECKING:
    from mlpip_bench.evaluate import Contender, Evaluation
    from mlpip_bench.metrics import Metric
    from mlpip_bench.records.record import Scores
    from mlpip_bench.utils.progress import Reporter

Psi = TypeVar("Psi", bound=Distribution)
TaskKind = Literal["classification", "regression", "reconstruction"]


@dataclass(frozen=True, eq=False)
class Posterior(Generic[Psi]):
    """q(psi | D) of a batch of tasks: a value; nothing about a task is kept on a module.

    Attributes:
        psi: distribution over the task parameters, its first dimension is ``task``.
        support: the support set's normalisation statistics, inferred from D like psi.
    """

    psi: Psi
    support: Statistics = ()


@dataclass(frozen=True)
class Problem:
    """What a method is built for.

    Attributes:
        extractor: shape of the shared feature extractor.
        norm: normalisation mode.
        way: classes of a training task; 1 where there are none.
        kind: what its tasks are: classes of images; real numbers, with noise; or images to reconstruct, seen
            from an angle ``x``.
        noise_std: known standard deviation of a target's noise, a pixel's in reconstruction; None for
            classification.
        inputs: length of the vector ``x`` in reconstruction; else 0, since the extractor says what x is.
    """

    extractor: ExtractorSpec
    norm: NormMode
    way: int
    kind: TaskKind = "classification"
    noise_std: float | None = None
    inputs: int = 0


@dataclass(frozen=True)
class TrainingPlan:
    """Budget and optimiser of a meta-training run; Adam throughout.

    Attributes:
        iterations: optimiser steps.
        tasks_per_batch: tasks of each step.
        train_queries: queries per class in training.
        learning_rate: Adam's.
        halve_every: halve the learning rate every so many iterations; 0 keeps it constant.
        validate_every: iterations between validations, which choose the best model.
        validation_tasks: tasks of a validation, always the same.
        test_tasks: tasks of the fixed test stream.
    """

    iterations: int
    tasks_per_batch: int
    train_queries: int
    learning_rate: float
    halve_every: int = 0
    validate_every: int = 250
    validation_tasks: int = 100
    test_tasks: int = 600

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if not 0 <= value < math.inf or (value == 0 and f.name != "halve_every"):
                raise ValueError(f"{f.name} must be positive and finite; got {value}")


@dataclass(frozen=True)
class NoSettings:
    """Settings of a method that has none."""


class Method(nn.Module, abc.ABC, Generic[Psi]):
    """A meta-learner: three functions of tensors that carry a leading ``task`` dimension.

    A plugin subclasses this, names its class attributes and registers an entry point in the group
    ``mlpip_bench.methods``. Modules and parameters made in ``__init__`` are trained by the suite.

    Attributes:
        reference: where the method comes from.
        psi: what the task parameters are, in a few words.
        handles: the kinds of task that it can be trained on.
        default_for: data sets whose benches it enters where no method is named.
        linear_classifier: whether psi are a linear classifier's weights and biases: the mean of q(psi | D) is
            ``[task, way, feature + 1]``, the bias last.
        Settings: frozen dataclass of the method's own settings, with defaults.
        presets: what a budget changes: ``{preset: {"*" | data set | bench: {field: value}}}`` over the
            fields of :class:`TrainingPlan` and ``Settings``; the more specific entry wins.
        bounds_evidence: whether -``loss`` is a lower bound of log p(D), per point of the support set D and
            with a standard normal prior over psi, as an ELBO is.
        xfail_checks: conformance checks that the method fails by its nature, with the reason.
    """

    reference: ClassVar[str]
    psi: ClassVar[str]
    handles: ClassVar[tuple[TaskKind, ...]] = ("classification",)
    default_for: ClassVar[tuple[str, ...]] = ()
    linear_classifier: ClassVar[bool] = False
    Settings: ClassVar[type] = NoSettings
    presets: ClassVar[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {}
    bounds_evidence: ClassVar[bool] = False
    xfail_checks: ClassVar[Mapping[str, str]] = {}

    def __init__(self, problem: Problem, settings: Any) -> None:
        super().__init__()
        self.problem = problem
        self.settings = settings

    @abc.abstractmethod
    def amortize(self, support: Labelled) -> Posterior[Psi]:
        """q(psi | D) for all tasks of the batch at once, in training as in evaluation."""

    @abc.abstractmethod
    def predictive(self, q: Posterior[Psi], query_x: Float[Tensor, "task point ..."]) -> Distribution:
        """q(y | x, D), with batch shape ``(task, point)``."""

    @abc.abstractmethod
    def loss(self, batch: TaskBatch) -> Float[Tensor, ""]:
        """Training objective, in nats per query point."""


class MeasurementRule(abc.ABC):
    """What the two kinds of protocol share; a plugin subclasses one of them.

    Attributes:
        description: what it measures, in one line.
        metrics: the metrics it reports.
        handles: the kinds of task that it can measure.
        datasets: keys of the only data sets that it can measure; none for all.
        default: whether it is measured where no protocol is named.
    """

    description: ClassVar[str]
    metrics: ClassVar[tuple[Metric, ...]]
    handles: ClassVar[tuple[TaskKind, ...]] = ("classification",)
    datasets: ClassVar[tuple[str, ...]] = ()
    default: ClassVar[bool] = False

    def applies(self, plugin: type[Method[Any]], settings: Any) -> bool:  # noqa: ARG002  # for those that override it
        """Whether a method with these settings has what is measured; all do, unless a protocol says otherwise."""
        return True


class EvalProtocol(MeasurementRule):
    """A rule of measurement for one trained model, the same for every method."""

    @abc.abstractmethod
    def measure(self, evaluation: Evaluation) -> list[Scores]:
        """Per-task scores of a trained model."""


class SideBySideProtocol(MeasurementRule):
    """A rule of measurement for all methods of a bench at once, so that what changes meanwhile meets them all alike."""

    @abc.abstractmethod
    def measure(self, contenders: Sequence[Contender], reporter: Reporter) -> list[list[Scores]]:
        """Scores over repeats, for each of the trained models."""


@dataclass(frozen=True)
class Resolved:
    """A method's plan and settings after preset and user overrides.

    Attributes:
        plan: the training plan.
        settings: an instance of the method's ``Settings``.
    """

    plan: TrainingPlan
    settings: Any


def resolve(
    method: type[Method[Any]],
    name: str,
    default: Mapping[str, Any],
    preset: str,
    scopes: tuple[str, ...],
    overrides: Mapping[str, Any],
) -> Resolved:
    """Layer a bench's default budget, the method's preset and the user's overrides.

    Args:
        method: the plugin.
        name: its registered name, for messages.
        default: fields of the plan that the bench sets for all methods.
        preset: budget name.
        scopes: keys of the preset from the most general to the most specific.
        overrides: what the user set; fields of the plan or of the settings.

    Raises:
        UserError: an override that names no field, or has a value of the wrong type.
    """
    merged: dict[str, Any] = dict(default)
    for scope in ("*", *scopes):
        merged |= method.presets.get(preset, {}).get(scope, {})
    merged |= overrides
    plan_types, setting_types = get_type_hints(TrainingPlan), get_type_hints(method.Settings)
    types = plan_types | setting_types
    for key, value in list(merged.items()):
        if key not in types:
            raise unknown_name(f"setting of {name}", key, types)
        try:
            # The validated value: 1 for a setting that is a number becomes 1.0, and no cell of its own.
            merged[key] = TypeAdapter(types[key]).validate_python(value, strict=True)
        except ValidationError as error:
            raise UserError(f"{name}.{key} must be {_described(types[key])}; got {value!r}.") from error
    try:
        return Resolved(
            TrainingPlan(**{k: v for k, v in merged.items() if k in plan_types}),
            method.Settings(**{k: v for k, v in merged.items() if k in setting_types}),
        )
    except ValueError as error:
        raise UserError(f"settings of {name} are not valid: {error}.") from error


_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def _described(annotation: Any) -> str:
    """A type in words that say what to type."""
    if get_origin(annotation) is Literal:
        return f"one of {', '.join(map(str, get_args(annotation)))}"
    if get_origin(annotation) is tuple:
        return f"several with commas between them, each {_described(get_args(annotation)[0])}"
    options = get_args(annotation) or (annotation,)
    return " or ".join(_described(o) if get_origin(o) else _WORDS.get(o, str(o)) for o in options)
