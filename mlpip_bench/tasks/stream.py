"""Streams of tasks: endless, fixed, and drawn in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from mlpip_bench.tasks.batch import TaskBatch, TaskShape
from mlpip_bench.utils.seeding import seed_from

BLOCK = 128  # tasks drawn at once; fixed, because a task's identity depends on it


class Stream(Protocol):
    """An endless, fixed sequence of tasks; task ``i`` is a function of the named seed and ``i`` alone.

    Attributes:
        shape: way, shots and queries of its tasks.
        seed: the components of its name.
        device: where its tensors are.
    """

    shape: TaskShape
    seed: tuple[str | int, ...]
    device: torch.device

    def batch(self, first: int, tasks: int) -> TaskBatch:
        """Tasks ``first .. first+tasks-1``."""


@runtime_checkable
class OfClasses(Protocol):
    """A stream whose tasks are made of the classes of a data set."""

    def classes(self, first: int, tasks: int) -> Tensor:
        """Which class each label is, ``[task, way]``, in tasks ``first .. first+tasks-1``."""


@runtime_checkable
class OfShapes(Protocol):
    """A stream whose tasks have a shape each; its ``shape`` is the largest, and its batches are of one task."""

    def shapes(self, first: int, tasks: int) -> list[TaskShape]:
        """Way, shots and queries of the tasks ``first .. first+tasks-1``."""


@runtime_checkable
class WithUnequalQueries(Protocol):
    """A stream whose tasks could have unequal numbers of queries of their classes."""

    def unequal(self, concentration: float) -> Stream:
        """The same classes and support sets, with queries as :class:`~mlpip_bench.tasks.batch.TaskShape` says."""


def batches(stream: Stream, first: int, tasks: int) -> Iterator[TaskBatch]:
    """The tasks ``first .. first+tasks-1``: all at once, or, where each has a shape of its own, one by one."""
    size = 1 if isinstance(stream, OfShapes) else tasks
    return (stream.batch(i, size) for i in range(first, first + tasks, size))


def blocks(first: int, tasks: int) -> Iterator[tuple[int, slice]]:
    """Numbers of the blocks that hold the tasks ``first .. first+tasks-1``, and their rows in each."""
    for block in range(first // BLOCK, (first + tasks - 1) // BLOCK + 1):
        yield block, slice(max(first - block * BLOCK, 0), first + tasks - block * BLOCK)


def block_generator(seed: tuple[str | int, ...], block: int) -> np.random.Generator:
    """The generator of a block; Philox is counter-based and gives the same stream on every platform."""
    return np.random.Generator(np.random.Philox(seed_from(*seed, "block", block)))


class Repeated:
    """The first tasks of a stream, again and again: a training set of a fixed size."""

    def __init__(self, stream: Stream, tasks: int) -> None:
        self.stream, self.tasks = stream, tasks
        self.shape, self.seed, self.device = stream.shape, stream.seed, stream.device

    def batch(self, first: int, tasks: int) -> TaskBatch:
        """Tasks ``first .. first+tasks-1``, of which task ``i`` is the stream's ``i mod self.tasks``."""
        parts, end = [], first + tasks
        while first < end:
            start = first % self.tasks
            many = min(self.tasks - start, end - first)
            parts.append(self.stream.batch(start, many))
            first += many
        return parts[0] if len(parts) == 1 else TaskBatch.cat(parts)
