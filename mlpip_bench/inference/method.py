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

from mlpip_bench.inference.pretraining import Pretraining
from mlpip_bench.inference.search import LogUniform, Space
from mlpip_bench.nn.backbone import Backbone, BackboneSpec, InputShape
from mlpip_bench.nn.normalization import Statistics
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.tasks.kernels import Kernel
from mlpip_bench.tasks.stream import Stream
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
        kernel: covariance of the functions of a regression, of mean 0, where they are from a Gaussian process that is
            known; else None.
        training_classes: how many classes the training tasks are cut out of: ``TaskBatch.classes`` are below it. None
            where tasks are not cut out of classes.
    """

    backbone: BackboneSpec
    norm: NormMode
    way: int
    kind: TaskKind = "classification"
    noise_std: float | None = None
    inputs: int = 0
    kernel: Kernel | None = None
    training_classes: int | None = None

    @property
    def input_shape(self) -> InputShape:
        """Of one input of the backbone; of an image in reconstruction."""
        return self.backbone.input_shape

    def build_backbone(self, *, dropout: bool = False) -> Backbone:
        """The backbone with initial parameters; ``dropout`` drops activations in training, at its own rate."""
        return self.backbone.build(self.norm, dropout=dropout)


@dataclass(frozen=True)
class TrainingPlan:
    """Budget and optimizer of a meta-training run.

    Attributes:
        iterations: optimizer steps; 0 leaves the model as it is at the start.
        tasks_per_batch: tasks of each step.
        train_queries: queries per class in training.
        learning_rate: the optimizer's.
        halve_every: halve the learning rate every so many iterations; 0 keeps it constant.
        validate_every: iterations between validations, which choose the best model.
        validation_tasks: tasks of a validation, always the same.
        test_tasks: tasks of the fixed test stream.
        optimizer: of ``torch.optim``.
        momentum: of SGD; 0 for none.
        weight_decay: as the optimizer has it; 0 for none.
        clip_norm: largest norm of the gradient, to which longer ones are shortened; 0 leaves them.
        schedule: of ``torch.optim.lr_scheduler``, in place of ``halve_every``: a cosine from the learning rate to 0 at
            the last iteration, or the rate times ``gamma`` every ``step_size`` iterations.
        step_size, gamma: of StepLR.
        warmup: iterations in which the rate rises linearly from a third of it (LinearLR), before the schedule begins.
    """

    iterations: int
    tasks_per_batch: int
    train_queries: int
    learning_rate: float
    halve_every: int = 0
    validate_every: int = 250
    validation_tasks: int = 100
    test_tasks: int = 600
    optimizer: Literal["Adam", "AdamW", "SGD"] = "Adam"
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    schedule: Literal["constant", "CosineAnnealingLR", "StepLR"] = "constant"
    step_size: int = 0
    gamma: float = 0.1
    warmup: int = 0

    MAY_BE_0: ClassVar = ("iterations", "halve_every", "momentum", "weight_decay", "clip_norm", "step_size", "warmup")
    OPTIONAL: ClassVar = (
        "optimizer", "momentum", "weight_decay", "clip_norm", "schedule", "step_size", "gamma", "warmup",
    )  # fmt: skip
    """Fields that a record leaves out where they are at their defaults."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, str):
                continue
            if not 0 <= value < math.inf or (value == 0 and f.name not in self.MAY_BE_0):
                least = "at least 0" if f.name in self.MAY_BE_0 else "positive"
                raise ValueError(f"{f.name} must be {least} and finite; got {value}")
        if self.momentum and self.optimizer != "SGD":
            raise ValueError(f"momentum is SGD's; the optimizer is {self.optimizer}")
        if self.schedule != "constant" and self.halve_every:
            raise ValueError(
                f"halve_every is a schedule of its own; set halve_every=0 with schedule={self.schedule}. It is "
                f"{self.halve_every}"
            )
        if (self.schedule == "StepLR") != bool(self.step_size):
            raise ValueError(f"StepLR, and no other schedule, has a step_size; got {self.schedule}, {self.step_size}")
        if self.warmup and self.warmup >= self.iterations:
            raise ValueError(f"warmup must be less than the {self.iterations} iterations; got {self.warmup}")

    @property
    def untrained(self) -> TrainingPlan:
        """The plan of a trial that tests a model as it is at the start, with nothing that only training knows."""
        return TrainingPlan(
            iterations=0,
            tasks_per_batch=1,
            train_queries=1,
            learning_rate=self.learning_rate,
            validation_tasks=self.validation_tasks,
            test_tasks=self.test_tasks,
        )

    def rate(self, iteration: int) -> float:
        """The learning rate at an iteration, from 0 on: that of torch's schedulers in turn, in closed form."""
        if iteration < self.warmup:
            return self.learning_rate * (1 / 3 + 2 / 3 * iteration / self.warmup)
        after = iteration - self.warmup
        if self.schedule == "CosineAnnealingLR":
            return self.learning_rate * (1 + math.cos(math.pi * after / (self.iterations - self.warmup))) / 2
        if self.schedule == "StepLR":
            return float(self.learning_rate * self.gamma ** (after // self.step_size))
        return (
            float(self.learning_rate * 0.5 ** (after // self.halve_every)) if self.halve_every else self.learning_rate
        )


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
        gaussian_weights: whether q(psi | D) of a regression is a Gaussian over weights and bias of a linear function of
            the features, which may be compared with the exact posterior where that is known.
        Settings: frozen dataclass of the method's own settings, with defaults.
        trainable: whether there is anything that meta-training changes; a method without is tested as it is built, or
            as its pre-training left it.
        network_name: what it has in the place of the run's backbone, with a norm of its own; empty where it uses that.
        outside: what a record says of a model that was trained somewhere else: ``what``, ``saw``, and of a file
            ``file`` and ``sha256``.
        pretraining: how its backbone is trained before it, unless a run says otherwise; None where it is not.
        presets: what a budget changes: ``{preset: {"*" | kind of task | data set | bench: {field: value}}}`` over the
            fields of :class:`TrainingPlan` and ``Settings``; the more specific entry wins.
        search_space: what ``run --tune`` draws from: fields of ``Settings`` or of the training plan, but none of the
            budget; a subclass names its own as ``{**Method.search_space, "scale": LogUniform(0.1, 10)}``.
        xfail_checks: conformance checks that the method fails by its nature, with the reason.
        in_float32: whether it computes in float32, in whatever precision it is asked.
    """

    reference: ClassVar[str]
    psi: ClassVar[str]
    handles: ClassVar[tuple[TaskKind, ...]] = ("classification",)
    linear_classifier: ClassVar[bool] = False
    gaussian_weights: ClassVar[bool] = False
    Settings: ClassVar[type] = NoSettings
    trainable: ClassVar[bool] = True
    network_name: ClassVar[str] = ""
    outside: ClassVar[Mapping[str, str]] = {}
    pretraining: ClassVar[Pretraining | None] = None
    presets: ClassVar[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {}
    search_space: ClassVar[Space] = {"learning_rate": LogUniform(1e-4, 1e-2)}
    xfail_checks: ClassVar[Mapping[str, str]] = {}
    in_float32: ClassVar[bool] = False

    def __init__(self, problem: Problem, settings: Any) -> None:
        super().__init__()
        self.check(problem, settings)
        self.problem = problem
        self.settings = settings

    @property
    def bounds_evidence(self) -> bool:
        """Whether -``loss`` is a lower bound of log p(D), as an ELBO is.

        Per point of the support set D, and with a standard normal prior over psi; a class may set it to True.
        """
        return False

    @property
    def learns(self) -> bool:
        """Whether training changes it: parameters that are not frozen; or its state, of a method without parameters."""
        parameters = list(self.parameters())
        moves = any(p.requires_grad for p in parameters) if parameters else bool(self.state_dict())
        return self.trainable and moves

    @property
    def parameter_count(self) -> int:
        """How many numbers it has learned, here or before."""
        return sum(p.numel() for p in self.parameters())

    @classmethod
    def check(cls, problem: Problem, settings: Any) -> None:
        """Refuse settings that do not go with a problem, before any work; the default refuses none.

        Raises:
            UserError: what the rule is, what came, what to do.
        """

    def prepare(self, training: Stream) -> None:
        """What a method that is not trained needs of the training tasks before it is tested; the default needs nothing.

        It sets buffers, such as the mean of their features. The method is in evaluation mode, without autograd.
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
