"""Tasks cut out of pools of images."""

from __future__ import annotations

import abc
import dataclasses
import functools
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from mlpip_bench.datasets.base import ClassImages
from mlpip_bench.tasks.batch import Labeled, ShapeRange, TaskBatch, TaskShape
from mlpip_bench.tasks.stream import BLOCK, block_generator, blocks
from mlpip_bench.tasks.unequal import queries_per_class
from mlpip_bench.utils.errors import UserError


@dataclass(frozen=True, eq=False)
class TaskIndices:
    """Which classes and images make up a batch of tasks.

    Attributes:
        classes: class drawn for each label ``0 .. way-1``.
        support, query: image indices, in an order that says nothing of their classes.
        support_y, query_y: the labels of these points.
    """

    classes: Int[Tensor, "task way"]
    support: Int[Tensor, "task point"]
    query: Int[Tensor, "task point"]
    support_y: Int[Tensor, "task point"]
    query_y: Int[Tensor, "task point"]

    def to(self, device: torch.device) -> TaskIndices:
        """The same on a device, by one copy that nobody waits for."""
        if device.type == "cpu":
            return self
        parts = [getattr(self, field.name) for field in dataclasses.fields(self)]
        packed = torch.cat(parts, 1)
        packed = packed.pin_memory() if device.type == "cuda" else packed
        moved = packed.to(device, non_blocking=True).split([part.shape[1] for part in parts], 1)
        return TaskIndices(*moved)


class ImagePool:
    """A split's images in memory on a device, from which tasks are cut by vectorized indexing.

    Args:
        data: the images.
        device: where tensors are.
        groups: a number for each class, 0 and up; a task has no two classes of one number. None where all may meet.
    """

    def __init__(self, data: ClassImages, device: torch.device, groups: NDArray[np.int64] | None = None) -> None:
        self.data = data
        self.device = device
        self.groups = None if groups is None else torch.from_numpy(groups)
        self.counts = torch.from_numpy(data.counts)
        self.starts = self.counts.cumsum(0) - self.counts

    @functools.cached_property
    def images(self) -> Tensor:
        """All images, on the device from the first time that they are asked for."""
        return torch.from_numpy(self.data.images).to(self.device)

    @property
    def most_ways(self) -> int:
        """How many classes a task can have."""
        return self.data.num_classes if self.groups is None else int(self.groups.max()) + 1

    def check(self, shape: TaskShape, *, split: str) -> None:
        """Make sure that every task of a shape can be drawn.

        Raises:
            UserError: too few classes, or a class with too few images for shots plus queries.
        """
        if shape.way > (most := self.most_ways):
            that = "" if self.groups is None else " that may meet in a task"
            raise UserError(
                f"way {shape.way} needs {shape.way} {split} classes{that}; this data set has {most}. "
                f"Use a bench with a way of at most {most}, or another data set; data of your own are split "
                "otherwise by data add --replace --split."
            )
        need = max(shape.shots_per_class) + shape.queries
        poorest = int(self.counts.argmin())
        if (have := int(self.counts[poorest])) < need:
            most = max(shape.shots_per_class)
            setting = "--set train_queries=" if split == "train" else "--queries "
            ways_out = [f"{have - shape.queries} shots"] if have > shape.queries else []
            ways_out += [f"{setting}{have - most}"] if most < have else []
            raise UserError(
                f"shots ({most}) plus queries ({shape.queries}) need {need} images in each class; "
                f"{split} class {self.data.class_names[poorest]!r} has {have}. "
                f"Use at most {' or '.join(ways_out) or f'{have - 1} shots, and fewer queries'}."
            )

    def draw(self, shape: TaskShape, tasks: int, rng: np.random.Generator) -> TaskIndices:
        """Draw tasks: classes without replacement, images without overlap of support and query, in random order."""
        keys = torch.from_numpy(rng.random((tasks, self.data.num_classes)))
        if self.groups is not None:  # classes in the order of their keys, but the first of each group alone
            group = self.groups.expand_as(keys)
            first = keys.new_zeros(tasks, self.most_ways).scatter_reduce(1, group, keys, "amax")
            keys[keys < first.gather(1, group)] = -1.0
        classes = keys.topk(shape.way).indices
        shots = torch.tensor(shape.shots_per_class)
        most = int(shots.max())
        needed = most + shape.queries if shape.concentration is None else int(self.counts.max())
        instances = self.draw_images(classes, needed, rng)
        in_support = torch.arange(most) < shots.unsqueeze(-1)
        labels = torch.arange(shape.way)
        support, support_y = _shuffled(instances[:, :, :most][:, in_support], labels.repeat_interleave(shots), rng)
        if shape.concentration is None:
            query, query_y = instances[:, :, most:].flatten(1), labels.repeat_interleave(shape.queries)
        else:
            available, total = (self.counts[classes] - most).numpy(), shape.way * shape.queries
            of_class = torch.from_numpy(queries_per_class(available, total, shape.concentration, rng))
            chosen = torch.arange(needed - most) < of_class.unsqueeze(-1)
            query = instances[:, :, most:][chosen].view(tasks, total)
            query_y = labels.unsqueeze(-1).expand_as(chosen)[chosen].view(tasks, total)
        query, query_y = _shuffled(query, query_y, rng)
        return TaskIndices(classes, support, query, support_y, query_y)

    def draw_images(
        self, classes: Int[Tensor, "task way"], images: int, rng: np.random.Generator
    ) -> Int[Tensor, "task way image"]:
        """Indices of so many images of each class, without replacement."""
        keys = torch.from_numpy(rng.random((*classes.shape, int(self.counts.max()))))
        keys[torch.arange(keys.shape[-1]) >= self.counts[classes].unsqueeze(-1)] = -1.0  # beyond the class's images
        return keys.topk(images).indices + self.starts[classes].unsqueeze(-1)

    def gather_images(self, index: Int[Tensor, "task point"]) -> Float[Tensor, "task point channel height width"]:
        """Images as float32 in [0, 1]; vectors as they are."""
        chosen = self.images[index.to(self.device)]
        return chosen.to(torch.float32).div_(255) if chosen.dtype == torch.uint8 else chosen

    def labeled(self, index: Int[Tensor, "task point"], y: Int[Tensor, "task point"], way: int) -> Labeled:
        """Images with their labels."""
        return Labeled(self.gather_images(index), y.to(self.device), way)

    def gather(self, indices: TaskIndices) -> TaskBatch:
        """Cut tasks out of the pool."""
        way = indices.classes.shape[1]
        return TaskBatch(
            self.labeled(indices.support, indices.support_y, way),
            self.labeled(indices.query, indices.query_y, way),
            classes=indices.classes,
        )


def _shuffled(
    index: Int[Tensor, "task point"], y: Int[Tensor, "*task point"], rng: np.random.Generator
) -> tuple[Int[Tensor, "task point"], Int[Tensor, "task point"]]:
    """Points that come class by class in a random order, each task's its own, so that no position tells a class."""
    order = torch.from_numpy(rng.random(index.shape)).argsort(1)
    return index.gather(1, order), y.expand_as(order).gather(1, order)


_DRAWING = ThreadPoolExecutor(1, "drawing")
"""Draws the blocks of all image streams, so that a step seldom waits for one; its thread starts with the first."""


class PoolStream(abc.ABC):
    """A stream of tasks cut out of a pool of images.

    Task ``i`` is a function of the pool, the shape and the named seed alone: neither the batch size
    nor the device nor the method can change it.

    Attributes:
        shape: of its tasks; the largest where each has its own.
    """

    def __init__(self, pool: ImagePool, shape: TaskShape, *seed: str | int, split: str = "") -> None:
        pool.check(shape, split=split)
        self.pool = pool
        self.shape = shape
        self.seed = seed
        self.device = pool.device

    def reshaped(self, shape: TaskShape, *seed: str | int) -> TaskStream:
        """Another stream of tasks, of one shape, out of the same pool."""
        return TaskStream(self.pool, shape, *seed, split="test")

    @abc.abstractmethod
    def unequal(self, concentration: float) -> PoolStream:
        """The same classes and support sets, with unequal numbers of queries."""

    @abc.abstractmethod
    def indices(self, first: int, tasks: int) -> TaskIndices:
        """Classes and images of tasks ``first .. first+tasks-1``, in memory of their own."""

    def batch(self, first: int, tasks: int) -> TaskBatch:
        """Tasks ``first .. first+tasks-1`` as tensors on the pool's device."""
        return self.pool.gather(self.indices(first, tasks))


class TaskStream(PoolStream):
    """Tasks of one shape."""

    def __init__(self, pool: ImagePool, shape: TaskShape, *seed: str | int, split: str = "") -> None:
        super().__init__(pool, shape, *seed, split=split)
        self._block = functools.lru_cache(maxsize=3)(self._start_block)
        self._drawn = functools.lru_cache(maxsize=2)(self._wait_for_block)

    def unequal(self, concentration: float) -> TaskStream:
        """The same classes and support sets, with unequal numbers of queries."""
        return self.reshaped(dataclasses.replace(self.shape, concentration=concentration), *self.seed)

    def _start_block(self, block: int) -> Future[TaskIndices]:
        return _DRAWING.submit(self.pool.draw, self.shape, BLOCK, block_generator(self.seed, block))

    def _wait_for_block(self, block: int) -> TaskIndices:
        # Not copied by the thread that draws: while a CUDA graph is captured, no other thread may use the GPU.
        return self._block(block).result().to(self.device)

    def indices(self, first: int, tasks: int) -> TaskIndices:
        """Drawn in blocks."""
        parts = []
        for block, rows in blocks(first, tasks):
            drawn = self._drawn(block)
            self._block(block + 1)  # drawn while this one is used
            parts.append([getattr(drawn, field.name)[rows] for field in dataclasses.fields(drawn)])
        return TaskIndices(*(torch.cat(columns) for columns in zip(*parts, strict=True)))

    def classes(self, first: int, tasks: int) -> Tensor:
        """Class of each label, ``[task, way]``."""
        return self.indices(first, tasks).classes.cpu()


class VariedTaskStream(PoolStream):
    """Tasks that each have a way, and each of whose classes has a shot, of its own."""

    def __init__(self, pool: ImagePool, shapes: ShapeRange, *seed: str | int, split: str = "") -> None:
        super().__init__(pool, shapes.largest, *seed, split=split)
        self.range, self.split = shapes, split

    def unequal(self, concentration: float) -> VariedTaskStream:
        """The same classes and support sets, with unequal numbers of queries."""
        shapes = dataclasses.replace(self.range, concentration=concentration)
        return VariedTaskStream(self.pool, shapes, *self.seed, split=self.split)

    def shapes(self, first: int, tasks: int) -> list[TaskShape]:
        """Way, shots and queries of the tasks ``first .. first+tasks-1``."""
        return [self.range.draw(self._rng(i)) for i in range(first, first + tasks)]

    def indices(self, first: int, tasks: int) -> TaskIndices:
        """Of one task.

        Raises:
            ValueError: several are asked for.
        """
        if tasks != 1:
            raise ValueError(f"tasks with shapes of their own make no batch; got {tasks}, ask for one")
        rng = self._rng(first)
        return self.pool.draw(self.range.draw(rng), 1, rng).to(self.device)

    def _rng(self, task: int) -> np.random.Generator:
        return block_generator((*self.seed, "shapes"), task)


class HeldOutStream:
    """The tasks of another stream, classes and support sets, with queries out of a second pool with the same classes.

    Args:
        tasks: the stream whose support sets are kept.
        pool: where the queries come from.
        queries: per class.
        seed: components of the name of the queries' seed.
        split: what the pool is, for messages.
    """

    def __init__(self, tasks: TaskStream, pool: ImagePool, queries: int, *seed: str | int, split: str) -> None:
        pool.check(TaskShape(tasks.shape.way, 1, queries), split=split)
        self.tasks, self.pool, self.seed, self.device = tasks, pool, seed, pool.device
        self.shape = dataclasses.replace(tasks.shape, queries=queries)

    def classes(self, first: int, tasks: int) -> Tensor:
        """Class of each label, ``[task, way]``."""
        return self.tasks.classes(first, tasks)

    def batch(self, first: int, tasks: int) -> TaskBatch:
        """Tasks ``first .. first+tasks-1``."""
        way = self.shape.way
        parts = [[part[rows] for part in self._queries(block)] for block, rows in blocks(first, tasks)]
        query, query_y = (torch.cat(columns) for columns in zip(*parts, strict=True))
        of_tasks = self.tasks.indices(first, tasks)
        return TaskBatch(
            self.tasks.pool.labeled(of_tasks.support, of_tasks.support_y, way),
            self.pool.labeled(query, query_y, way),
            classes=of_tasks.classes,
        )

    def _queries(self, block: int) -> tuple[Tensor, Tensor]:
        rng, queries = block_generator(self.seed, block), self.shape.queries
        images = self.pool.draw_images(self.classes(block * BLOCK, BLOCK), queries, rng)
        return _shuffled(images.flatten(1), torch.arange(self.shape.way).repeat_interleave(queries), rng)
