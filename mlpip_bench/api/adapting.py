"""What adapts to a task and predicts: a trained model, or a function that was wrapped."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from mlpip_bench.datasets.pictures import PictureForm, photographs
from mlpip_bench.evaluation.predict import POINTS_AT_ONCE
from mlpip_bench.inference.distributions import to_float64
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.wrapping import Wrapped
from mlpip_bench.nn.backbone import BackboneSpec, NoBackbone
from mlpip_bench.tasks.batch import Labeled
from mlpip_bench.utils.choices import OWN_NORM
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.numerics import SCORED
from mlpip_bench.utils.seeding import seed_from
from mlpip_bench.utils.settings import NoSettings


@dataclass(frozen=True, eq=False)
class Adaptable(abc.ABC):
    """A method that is ready to adapt to a task and to predict.

    Attributes:
        method: the module, in evaluation mode.
    """

    method: Method[Any]

    @property
    @abc.abstractmethod
    def device(self) -> torch.device:
        """Where its tensors are."""

    @property
    @abc.abstractmethod
    def seed(self) -> int:
        """Part of the seed of what it draws."""

    @property
    @abc.abstractmethod
    def pictures(self) -> PictureForm:
        """How files of pictures become its images: ``model.pictures.read(paths)``.

        Raises:
            UserError: it takes no pictures.
        """

    @property
    def shape_of_pictures(self) -> tuple[int, int, int]:
        """``(channel, height, width)``.

        Raises:
            UserError: it takes no pictures.
        """
        shape = self.method.problem.input_shape
        if self.method.problem.kind != "classification" or shape[1:] == (1, 1):  # which feature vectors have
            what = "feature vectors" if self.method.problem.kind == "classification" else self.method.problem.kind
            raise UserError(f"pictures are for models that classify pictures; this one is for {what}.")
        return shape

    def adapt(self, images: ArrayLike, labels: ArrayLike | Sequence[Any]) -> AdaptedModel:
        """Infer the task's parameters from a support set.

        Args:
            images: ``[point, channel, height, width]``, or without the channel where there is one; integers from 0
                to 255, or floating-point numbers in [0, 1].
            labels: of each point, of any kind that can be sorted.

        Raises:
            UserError: another shape than the model's, or fewer than two classes.
        """
        if self.method.problem.kind != "classification":
            raise UserError(
                f"adapt takes images and their classes; this model is for {self.method.problem.kind}. "
                "Use its method's amortize and predictive."
            )
        x = self.as_tensor(images)
        of_points = labels.tolist() if isinstance(labels, np.ndarray | torch.Tensor) else list(labels)  # type: ignore[arg-type]
        try:
            classes = tuple(sorted(set(of_points)))
        except TypeError as error:
            raise UserError(f"labels must be numbers, or texts, one for each image; got others: {error}.") from error
        if len(of_points) != x.shape[1] or len(classes) < 2:
            raise UserError(
                f"a support set needs a label for each image, and at least two classes; got {len(of_points)} labels of "
                f"{len(classes)} classes for {x.shape[1]} images."
            )
        y = torch.tensor([[classes.index(label) for label in of_points]], device=x.device)
        with self.computing():
            return AdaptedModel(self, classes, self.method.amortize(Labeled(x, y, len(classes))))

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """As in evaluation; what is drawn is the same each time, and nobody else's generator moves."""
        device = self.device
        with (
            torch.no_grad(),
            SCORED.applied(),
            torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        ):
            torch.manual_seed(seed_from("prediction", self.seed))
            yield

    def as_tensor(self, images: ArrayLike) -> torch.Tensor:
        """One task's images as the method takes them, ``[1, point, channel, height, width]``."""
        shape = self.method.problem.input_shape
        try:
            array = np.asarray(images)
        except (TypeError, ValueError) as error:  # a tensor of a GPU; lists of unequal lengths
            raise UserError(f"images must be an array in the CPU's memory; these are none: {error}.") from error
        if array.ndim == 3 and shape[0] == 1:
            array = array[:, None]
        if array.ndim != 4 or array.shape[1:] != shape or not len(array):
            raise UserError(
                f"images must be [point, {', '.join(map(str, shape))}], and at least one; got {array.shape}."
            )
        if array.dtype.kind not in "buif":
            raise UserError(f"images must be numbers; these are of the type {array.dtype}.")
        largest = 255 if array.dtype.kind in "ui" else 1
        if not (array.min() >= 0 and array.max() <= largest):  # which NaN is not, either
            raise UserError(
                f"images must be integers from 0 to 255, or floating-point numbers in [0, 1]; these are {array.dtype} "
                f"from {array.min()} to {array.max()}."
            )
        return torch.as_tensor(array / largest, dtype=torch.float32, device=self.device).unsqueeze(0)


@dataclass(frozen=True, eq=False)
class AdaptedModel:
    """A model that was adapted to one task.

    Attributes:
        model: the trained model.
        classes: the labels of the support set, sorted; columns of :meth:`predict`.
        posterior: q(psi | D).
    """

    model: Adaptable
    classes: tuple[Any, ...]
    posterior: Posterior[Any]

    def predict(self, images: ArrayLike) -> NDArray[np.float64]:
        """Predictive probabilities ``[point, class]`` in the order of ``classes``; images as in :meth:`Model.adapt`.

        Raises:
            UserError: images of another shape than the model's.
        """
        x = self.model.as_tensor(images)
        parts = []
        for some in x.split(POINTS_AT_ONCE, dim=1):
            with self.model.computing():
                predictive: Any = to_float64(self.model.method.predictive(self.posterior, some))
                parts.append(predictive.probs[0].cpu().numpy())
        return np.concatenate(parts)


@dataclass(frozen=True, eq=False)
class WrappedModel(Adaptable):
    """A wrapped function; its pictures are scaled, with the middle cut out.

    Attributes:
        method: of the class that :func:`~mlpip_bench.inference.wrapping.wrap` made.
        where: where tensors are.
    """

    where: torch.device

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        return self.where

    @property
    def seed(self) -> int:
        """None of its own."""
        return 0

    @property
    def pictures(self) -> PictureForm:
        """As photographs are made."""
        return photographs(self.shape_of_pictures)


def wrapped_model(plugin: type[Wrapped], device: torch.device) -> WrappedModel:
    """What ``wrap`` returned, ready to adapt and to predict.

    Raises:
        UserError: it does not say what images it takes.
    """
    if plugin.takes is None:
        raise UserError(
            "a wrapped model that is to classify pictures says what images it takes, for example "
            "wrap(..., input_shape=(3, 84, 84)); this one does not."
        )
    spec = BackboneSpec(plugin.network_name, NoBackbone, NoSettings(), plugin.takes)
    return WrappedModel(plugin(Problem(spec, OWN_NORM, way=2), NoSettings()).eval(), device)
