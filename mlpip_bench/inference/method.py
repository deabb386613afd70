"""The interface of a meta-learner.

ML-PIP (paper, section 2): an amortizer maps a support set D to q(psi | D), and the predictive is
q(y | x, D) = integral of p(y | x, psi, theta) q(psi | D) d psi.
"""

from __future__ import annotations

import abc
import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MethodType
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution

from mlpip_bench.inference.search import LogUniform, Space
from mlpip_bench.nn.backbone import Backbone, BackboneSpec, InputShape
from mlpip_bench.nn.normalization import Statistics
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.utils.choices import NormMode
from mlpip_bench.utils.settings import NoSettings

Psi = TypeVar("Psi", bound=Distribution)
TaskKind = Literal["classification", "regression", "reconstruction"]


@dataclass(frozen=True, eq=False)
class Posterior(Generic[Psi]):
    """q(psi | D) of a batch of tasks: a value; nothing about a task is kept on a module.

    Attributes:
        psi: distribution over the task parameters, its first dimension is ``task``.
        norm_statistics: the support set's normalization statistics, inferred from D like psi.
    """

    psi: Psi
    norm_statistics: Statistics = ()


@dataclass(frozen=True)
class Problem:
    """What a method is built for.

    Attributes:
        backbone: the network from inputs to features, the same for all methods of a run.
        norm: normalization mode.
        way: classes of a training task; 1 where there are none.
        kind: what its tasks are: classes of images; real numbers, with noise; or images to reconstruct, seen
            from an angle ``x``.
        noise_std: known standard deviation of a target's noise, a pixel's in reconstruction; None for
            classification.
        inputs: length of the vector ``x`` in reconstruction; else 0, since x is then what the backbone takes.
    """

    backbone: BackboneSpec
    norm: NormMode
    way: int
    kind: TaskKind = "classification"
    noise_std: float | None = None
    inputs: int = 0

    @property
    def input_shape(self) -> InputShape:
        """Of one input of the backbone; of an image in reconstruction."""
        return self.backbone.input_shape

    def build_backbone(self, *, dropout: bool = False) -> Backbone:
        """The backbone with initial parameters; ``dropout`` drops activations in training, at its own rate."""
        return self.backbone.build(self.norm, dropout=dropout)


@dataclass(frozen=True)
class TrainingPlan:
    """Budget and optimizer of a meta-training run; Adam throughout.

    Attributes:
        iterations: optimizer steps.
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


class Method(nn.Module, abc.ABC, Generic[Psi]):
    """A meta-learner: three functions of tensors that carry a leading ``task`` dimension.

    A plugin subclasses this, names its class attributes and registers an entry point in the group
    ``mlpip_bench.methods``. Modules and parameters made in ``__init__`` are trained by the suite.

    Attributes:
        reference: where the method comes from.
        psi: what the task parameters are, in a few words.
        handles: the kinds of task that it can be trained on.
        linear_classifier: whether psi are a linear classifier's weights and biases: the mean of q(psi | D) is
            ``[task, way, feature + 1]``, the bias last.
        Settings: frozen dataclass of the method's own settings, with defaults.
        presets: what a budget changes: ``{preset: {"*" | data set | bench: {field: value}}}`` over the
            fields of :class:`TrainingPlan` and ``Settings``; the more specific entry wins.
        bounds_evidence: whether -``loss`` is a lower bound of log p(D), per point of the support set D and
            with a standard normal prior over psi, as an ELBO is.
        search_space: what ``run --tune`` draws from: fields of ``Settings`` or of the training plan, but none of the
            budget; a subclass names its own as ``{**Method.search_space, "scale": LogUniform(0.1, 10)}``.
        xfail_checks: conformance checks that the method fails by its nature, with the reason.
    """

    reference: ClassVar[str]
    psi: ClassVar[str]
    handles: ClassVar[tuple[TaskKind, ...]] = ("classification",)
    linear_classifier: ClassVar[bool] = False
    Settings: ClassVar[type] = NoSettings
    presets: ClassVar[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {}
    bounds_evidence: ClassVar[bool] = False
    search_space: ClassVar[Space] = {"learning_rate": LogUniform(1e-4, 1e-2)}
    xfail_checks: ClassVar[Mapping[str, str]] = {}

    def __init__(self, problem: Problem, settings: Any) -> None:
        super().__init__()
        self.check(problem, settings)
        self.problem = problem
        self.settings = settings

    @classmethod
    def check(cls, problem: Problem, settings: Any) -> None:
        """Refuse settings that do not go with a problem, before any work; the default refuses none.

        Raises:
            UserError: what the rule is, what came, what to do.
        """

    def with_settings(self, settings: Any) -> Self:
        """The same model, parameters and all, under other settings."""
        other = copy.copy(self)
        other.settings = settings
        for name, value in vars(self).items():  # such as what is compiled, which would see the settings of this one
            if isinstance(value, MethodType) and value.__self__ is self:
                setattr(other, name, MethodType(value.__func__, other))
        return other

    @abc.abstractmethod
    def amortize(self, support: Labeled) -> Posterior[Psi]:
        """q(psi | D) for all tasks of the batch at once, in training as in evaluation."""

    @abc.abstractmethod
    def predictive(self, q: Posterior[Psi], query_x: Float[Tensor, "task point ..."]) -> Distribution:
        """q(y | x, D), with batch shape ``(task, point)``."""

    @abc.abstractmethod
    def loss(self, batch: TaskBatch) -> Float[Tensor, ""]:
        """Training objective, in nats per query point."""
