"""Batches of tasks as tensors.

Shapes use one vocabulary: ``task``, ``point`` (an image of a task), ``way`` (its classes).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mlpip_bench.utils.errors import UserError


@dataclass(frozen=True, eq=False)
class Labeled:
    """Labeled points of a batch of tasks: a support set D, or the queries with their targets.

    Attributes:
        x: inputs ``[task, point, ...]``.
        y: targets ``[task, point]``; class indices ``0 .. way-1`` where the task is classification,
            real numbers in regression, images ``[task, point, channel, height, width]`` in reconstruction.
        way: number of classes of each task; 1 where there are none.
    """

    x: Float[Tensor, "task point ..."]
    y: Int[Tensor, "task point"] | Float[Tensor, "task point ..."]
    way: int

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return self.x.shape[0]

    def task(self, index: int) -> Labeled:
        """One task, as a batch of one."""
        return Labeled(self.x[index : index + 1], self.y[index : index + 1], self.way)

    def split(self, tasks: int) -> list[Labeled]:
        """So many tasks at a time."""
        starts = range(0, self.tasks, tasks)
        return [Labeled(self.x[i : i + tasks], self.y[i : i + tasks], self.way) for i in starts]

    @functools.cached_property
    def one_hot(self) -> Float[Tensor, "task point way"]:
        """Membership of points in classes, in the dtype of ``x``."""
        return torch.nn.functional.one_hot(self.y, self.way).to(self.x.dtype)

    def class_means(self, values: Float[Tensor, "task point feature"]) -> Float[Tensor, "task way feature"]:
        """Mean of ``values`` over the points of each class; shots may differ between classes."""
        return self.one_hot.mT @ values / self.one_hot.sum(1).unsqueeze(-1)


@dataclass(frozen=True, eq=False)
class TaskBatch:
    """Tasks with their support sets and their disjoint queries.

    Attributes:
        support: the sets D that q is conditioned on.
        query: held-out points with targets.
        classes: which class of its split each label is, from 0, where tasks are cut out of classes; a turned class that
            counts as one of its own has a number of its own. For losses alone: what predicts gets support sets and
            queries.
    """

    support: Labeled
    query: Labeled
    classes: Int[Tensor, "task way"] | None = field(default=None, kw_only=True)

    def task(self, index: int) -> TaskBatch:
        """One task, as a batch of one."""
        classes = None if self.classes is None else self.classes[index : index + 1]
        return TaskBatch(self.support.task(index), self.query.task(index), classes=classes)

    @property
    def merged(self) -> Labeled:
        """All points of each task, without the split."""
        x, y = (torch.cat([getattr(self.support, name), getattr(self.query, name)], 1) for name in ("x", "y"))
        return Labeled(x, y, self.support.way)

    @staticmethod
    def parted(x: Tensor, y: Tensor, support: int) -> TaskBatch:
        """Tasks without classes whose first points are the support set, and the others the queries.

        In memory of their own: a view of ``y`` would lead a method from its support set to the targets of the queries.
        """
        parts = [slice(None, support), slice(support, None)]
        return TaskBatch(*(Labeled(x[:, part].clone(), y[:, part].clone(), 1) for part in parts))

    @staticmethod
    def cat(batches: Sequence[TaskBatch]) -> TaskBatch:
        """The tasks of several batches of one shape."""

        def joined(parts: Sequence[Labeled]) -> Labeled:
            return Labeled(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]), parts[0].way)

        classes = [b.classes for b in batches if b.classes is not None]
        return TaskBatch(
            joined([b.support for b in batches]),
            joined([b.query for b in batches]),
            classes=torch.cat(classes) if len(classes) == len(batches) else None,
        )


@dataclass(frozen=True)
class TaskShape:
    """Way, shots and queries of a task.

    Attributes:
        way: classes of a task; 1 where there are none.
        shots: support points per class: one number, or one per class of a task.
        queries: query points per class.
        concentration: where classes have unequal numbers of queries: of the Dirichlet distribution, the same for all
            classes, that their shares are drawn from; ``queries`` is then the mean. None where all have as many.
    """

    way: int
    shots: int | tuple[int, ...]
    queries: int
    concentration: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.shots, tuple) and len(self.shots) != self.way:
            raise UserError(f"shots need one number per class: got {len(self.shots)} for {self.way} classes.")
        if self.way < 1 or min(self.shots_per_class) < 1 or self.queries < 1:
            raise UserError(
                f"a task needs at least 1 class, 1 shot and 1 query; got way {self.way}, shots {self.shots}, "
                f"queries {self.queries}."
            )

    @property
    def shots_per_class(self) -> tuple[int, ...]:
        """Support points of each of the ``way`` classes."""
        return self.shots if isinstance(self.shots, tuple) else (self.shots,) * self.way


@dataclass(frozen=True)
class ShapeRange:
    """Shapes of tasks that each have a way, and each of whose classes has a shot, of its own; all equally likely.

    Attributes:
        ways, shots: the least and the largest.
        queries, concentration: as of :class:`TaskShape`.
    """

    ways: tuple[int, int]
    shots: tuple[int, int]
    queries: int
    concentration: float | None = None

    @property
    def largest(self) -> TaskShape:
        """The shape that needs the most classes and images."""
        return TaskShape(self.ways[1], self.shots[1], self.queries, self.concentration)

    def draw(self, rng: np.random.Generator) -> TaskShape:
        """The shape of a task."""
        way = int(rng.integers(*self.ways, endpoint=True))
        shots = tuple(rng.integers(*self.shots, size=way, endpoint=True).tolist())
        return TaskShape(way, shots, self.queries, self.concentration)
