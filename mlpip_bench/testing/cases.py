"""A method before tiny made tasks of one kind."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from mlpip_bench.inference.method import Method, Posterior, Problem, TaskKind
from mlpip_bench.nn.backbone import BackboneSpec, InputShape
from mlpip_bench.nn.backbones.conv4 import Conv4, Conv4Settings
from mlpip_bench.nn.backbones.identity import Identity
from mlpip_bench.nn.backbones.mlp import MLP, MLPSettings
from mlpip_bench.nn.backbones.view_encoder import ViewEncoder, ViewEncoderSettings
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.tasks.kernels import LinearKernel
from mlpip_bench.utils.choices import NORM_MODES, NormMode
from mlpip_bench.utils.settings import NoSettings

KINDS: tuple[TaskKind, ...] = get_args(TaskKind)
WAY = 3
NOISE_STD = 2.0
ROUNDING = 1e-7
ROUNDING_FLOAT32 = 1e-4
QUADRATURE = 2e-2  # of a probability, which a few thousand samples at evaluation leave
MANY_SAMPLES = 2048
RELABELED = 1e-4  # of a probability: a class is no nearer to a dimension of fixed points than the others
TARGETS = (-2.0, 0.0, 1.5)  # where densities over the reals are compared


class CheckFailedError(Exception):
    """The method does not pass; the message says how."""


class NotApplicableError(Exception):
    """The check has nothing to say of this method; the message says why."""


class ExpectedDeviationError(Exception):
    """The method deviates in a way that is known and common; the message names it."""


_SHAPES: Mapping[TaskKind, InputShape] = {
    "classification": (1, 8, 8),
    "regression": (3, 1, 1),
    "reconstruction": (1, 8, 8),
}


@dataclass(frozen=True)
class Case:
    """A method before tiny tasks of one kind.

    Attributes:
        plugin: the method's class.
        kind: what its tasks are.
        bench_shape: of the inputs of a bench's backbone; None for tiny ones.
    """

    plugin: type[Method[Any]]
    kind: TaskKind
    bench_shape: InputShape | None = None

    @property
    def shape(self) -> InputShape:
        """Of inputs of the backbone; of images in reconstruction."""
        return self.bench_shape or _SHAPES[self.kind]

    @property
    def rounding(self) -> float:
        """How much two answers may differ that should be one; inputs are in float64."""
        return ROUNDING_FLOAT32 if self.plugin.in_float32 else ROUNDING

    @property
    def backbone(self) -> BackboneSpec:
        """A narrow network, which leaves two or three pixels of an image's height and width."""
        if self.kind == "classification" and self.shape[1:] == (1, 1):  # vectors have no height and width to halve
            return BackboneSpec("mlp", MLP, MLPSettings(features=8), self.shape)
        blocks = max(1, int(math.log2(min(self.shape[1:]))) - 1)
        if self.kind == "classification":
            settings = Conv4Settings(blocks=blocks, channels=4, dropout=0.2)
            return BackboneSpec("conv4", Conv4, settings, self.shape)
        if self.kind == "regression":
            return BackboneSpec("identity", Identity, NoSettings(), self.shape)
        return BackboneSpec("view_encoder", ViewEncoder, ViewEncoderSettings(blocks=blocks, channels=4), self.shape)

    @property
    def norms(self) -> tuple[NormMode, ...]:
        """Modes worth trying; without classes nothing is normalized."""
        return NORM_MODES if self.kind == "classification" else ("layer",)

    def method(self, norm: NormMode = "metabn", *, eval_samples: int | None = None, most_steps: int = 5) -> Method[Any]:
        """An instance, always the same one, in float64 and evaluation mode.

        Args:
            norm: normalization mode.
            eval_samples: what to set where the method has a setting of that name.
            most_steps: cap of all settings whose name ends in ``steps``: a few show what many would.
        """
        settings = self.plugin.Settings()
        changes: dict[str, int] = {}
        for field in dataclasses.fields(settings):
            value = getattr(settings, field.name)
            if field.name == "eval_samples" and eval_samples:
                changes[field.name] = eval_samples
            elif field.name == "eval_samples" and self.kind == "reconstruction":
                changes[field.name] = min(value, 16)  # each of which draws images
            elif field.name.endswith("steps") and isinstance(value, int):
                changes[field.name] = min(value, most_steps)
        settings = dataclasses.replace(settings, **changes)
        torch.manual_seed(0)
        way, noise_std = (WAY, None) if self.kind == "classification" else (1, NOISE_STD)
        inputs = 2 if self.kind == "reconstruction" else 0
        kernel = LinearKernel(bias_variance=0.0) if self.kind == "regression" else None
        classes = WAY if self.kind == "classification" else None
        problem = Problem(self.backbone, norm, way, self.kind, noise_std, inputs, kernel, classes)
        method = self.plugin(problem, settings).double()
        with torch.no_grad():
            for parameter in trained_parameters(method).values():
                parameter.add_(0.1 * torch.randn_like(parameter))
        if norm == "running" and self.kind == "classification":
            seeded_loss(method, self.batch(seed=5))  # some training, so that averages differ from their initial values
        return method.eval()

    def batch(self, *, tasks: int = 3, way: int = WAY, shots: int = 2, queries: int = 2, seed: int = 0) -> TaskBatch:
        """Tasks with ``way * shots`` support points and ``way * queries`` queries, in float64.

        Classes are images of noise that get brighter with the label; regression is linear with noise; views are
        images of noise at one of 36 angles.
        """
        generator = torch.Generator().manual_seed(seed)
        float64 = torch.float64
        dimension = self.shape[0] if self.kind == "regression" else 3
        weights = torch.randn(tasks, dimension, 1, generator=generator, dtype=float64)

        def labeled(per_class: int) -> Labeled:
            points = way * per_class
            if self.kind == "classification":
                y = torch.arange(way).repeat_interleave(per_class).expand(tasks, -1)
                x = torch.rand(tasks, points, *self.shape, generator=generator, dtype=float64)
                return Labeled(x + 0.2 * y[..., None, None, None], y, way)
            if self.kind == "reconstruction":
                turn = torch.randint(36, (tasks, points), generator=generator) * (2 * math.pi / 36)
                y = torch.rand(tasks, points, *self.shape, generator=generator, dtype=float64)
                return Labeled(torch.stack([turn.sin(), turn.cos()], -1).to(float64), y, 1)
            x = torch.randn(tasks, points, dimension, generator=generator, dtype=float64)
            noise = torch.randn(tasks, points, generator=generator, dtype=float64)
            return Labeled(x[..., None, None], (x @ weights).squeeze(-1) + NOISE_STD * noise, 1)

        classes = torch.arange(way).expand(tasks, -1) if self.kind == "classification" else None
        return TaskBatch(labeled(shots), labeled(queries), classes=classes)

    def densities(self, predictive: Distribution, query: Labeled, targets: Sequence[float] = TARGETS) -> Tensor:
        """Log-densities ``[task, point, target]``: at every class, or at some real numbers, the same for all pixels."""
        values = range(query.way) if self.kind == "classification" else targets
        return torch.stack([predictive.log_prob(torch.full_like(query.y, value)) for value in values], -1)

    def predict(self, method: Method[Any], batch: TaskBatch) -> Tensor:
        """Evaluate: probabilities ``[task, point, way]``, or log-densities ``[task, point, target]``."""
        with torch.no_grad():
            return self.answer(method, method.amortize(batch.support), batch.query)

    def answer(self, method: Method[Any], q: Posterior[Any], query: Labeled) -> Tensor:
        """The same for a posterior that is at hand."""
        predictive = method.predictive(q, query.x)
        if not isinstance(predictive, Distribution):
            raise CheckFailedError(f"predictive must return a torch Distribution; got a {type(predictive).__name__}")
        if predictive.batch_shape != query.y.shape[:2]:
            raise CheckFailedError(
                f"predictive must have batch shape (task, point) = {tuple(query.y.shape[:2])}; "
                f"got {tuple(predictive.batch_shape)}"
            )
        log_density = self.densities(predictive, query)
        return log_density.exp() if self.kind == "classification" else log_density


def trained_parameters(method: Method[Any]) -> dict[str, nn.Parameter]:
    """Parameters that are trained, by name."""
    return {name: p for name, p in method.named_parameters() if p.requires_grad and method.trainable}


def seeded_loss(method: Method[Any], batch: TaskBatch, seed: int = 0) -> Tensor:
    """The training loss under seeded noise."""
    method.train()
    torch.manual_seed(seed)
    return method.loss(batch)
