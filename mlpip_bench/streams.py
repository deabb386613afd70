"""The task streams of a bench: what is trained on, validated on, and tested on."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from mlpip_bench.api import TrainingPlan
from mlpip_bench.benches import TEST_QUERIES, BenchSpec
from mlpip_bench.datasets.base import ImageDataset
from mlpip_bench.datasets.linear_gaussian import LinearGaussian, LinearGaussianStream
from mlpip_bench.datasets.views import VIEWS
from mlpip_bench.tasks.batch import Labelled, TaskBatch, TaskShape
from mlpip_bench.tasks.images import ImagePool, TaskStream
from mlpip_bench.tasks.stream import BLOCK, Stream, block_generator, blocks
from mlpip_bench.utils.errors import UserError

Angles = Literal["sincos", "degrees"]
TaskSource = ImageDataset | LinearGaussian


def angle_coordinates(dataset: TaskSource) -> int:
    """Length of x in a data set of views; 0 in others."""
    return {"sincos": 2, "degrees": 3}.get(str(dataset.options.get("angles")), 0)


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
        return self.tasks.indices(first, tasks).classes

    def batch(self, first: int, tasks: int) -> TaskBatch:
        """Tasks ``first .. first+tasks-1``."""
        way, queries = self.shape.way, self.shape.queries
        index = torch.cat(
            [
                self.pool.draw_images(self.classes(b * BLOCK, BLOCK), queries, block_generator(self.seed, b))[rows]
                for b, rows in blocks(first, tasks)
            ]
        ).flatten(1)
        support = self.tasks.indices(first, tasks)
        return TaskBatch(
            self.tasks.pool.labelled(support.support, support.support_y, way),
            self.pool.labelled(index, torch.arange(way).repeat_interleave(queries), way),
        )


class ViewStream:
    """Tasks that ask for views of one object, given some of them; x is a view's angle and y its image.

    Args:
        pool: objects as classes, each with ``VIEWS`` images in the order of their azimuth.
        shape: of way 1; its shots are the given views.
        angles: what x holds: sine and cosine of the azimuth, or degrees before them (as the reference code).
        seed: components of the stream's name.
        every_object: whether task ``i`` is object ``i`` and asks for all ``VIEWS`` views in order, the given
            ones too, as a test does; else objects are drawn at random, and none of the given views is asked for.
    """

    def __init__(
        self, pool: ImagePool, shape: TaskShape, angles: Angles, *seed: str | int, every_object: bool = False
    ) -> None:
        given = shape.shots_per_class[0]
        if given + (0 if every_object else shape.queries) > VIEWS:
            others = "" if every_object else f" and {shape.queries} to reconstruct in training"
            raise UserError(
                f"an object has {VIEWS} views; got {given} given ones{others}. Use views{VIEWS - 1}s at most."
            )
        self.pool, self.shape, self.seed, self.device = pool, shape, seed, pool.device
        self._every_object = every_object
        azimuth = torch.arange(VIEWS, dtype=torch.float64) * (2 * torch.pi / VIEWS)
        columns = [azimuth.sin(), azimuth.cos()]
        if angles == "degrees":
            columns.insert(0, azimuth.rad2deg())
        self._angles = torch.stack(columns, -1).to(torch.float32)
        self._block = functools.lru_cache(maxsize=2)(self._draw)

    def _draw(self, block: int) -> tuple[Tensor, Tensor]:
        """Objects ``[task]``, and their views ``[task, point]``, the given ones first."""
        rng = block_generator(self.seed, block)
        given = self.shape.shots_per_class[0]
        objects = rng.integers(self.pool.data.num_classes, size=BLOCK)
        views = rng.permuted(np.tile(np.arange(VIEWS), (BLOCK, 1)), axis=1)[:, : given + self.shape.queries]
        if self._every_object:
            objects = (block * BLOCK + np.arange(BLOCK)) % self.pool.data.num_classes
            views = np.concatenate([views[:, :given], np.tile(np.arange(VIEWS), (BLOCK, 1))], 1)
        return torch.from_numpy(objects), torch.from_numpy(views)

    def batch(self, first: int, tasks: int) -> TaskBatch:
        """Tasks ``first .. first+tasks-1`` as tensors on the pool's device."""
        objects, views = (
            torch.cat(column)
            for column in zip(*([a[rows] for a in self._block(b)] for b, rows in blocks(first, tasks)), strict=True)
        )
        given = self.shape.shots_per_class[0]
        images = self.pool.gather_images(self.pool.starts[objects].unsqueeze(1) + views)
        x = self._angles[views].to(self.device)
        return TaskBatch(Labelled(x[:, :given], images[:, :given], 1), Labelled(x[:, given:], images[:, given:], 1))


def fitted(plan: TrainingPlan, bench: BenchSpec, dataset: TaskSource) -> TrainingPlan:
    """The plan, with no more tasks and queries than there are where there are only so many."""
    if bench.data.kind == "reconstruction" and isinstance(dataset, ImageDataset):
        validation, test = (dataset.splits[split].num_classes for split in ("validation", "test"))
        queries = min(plan.train_queries, VIEWS - bench.shot)
    elif bench.data.train_tasks and isinstance(dataset, ImageDataset):
        validation = test = bench.data.train_tasks
        queries = plan.train_queries
    else:
        return plan
    return dataclasses.replace(
        plan,
        train_queries=max(1, queries),
        validation_tasks=min(plan.validation_tasks, validation),
        test_tasks=min(plan.test_tasks, test),
    )


def queries_at_test(bench: BenchSpec, asked: int) -> int:
    """Queries per class at test: all views in reconstruction, whatever was asked for."""
    return VIEWS if bench.data.kind == "reconstruction" else asked


def task_streams(
    bench: BenchSpec,
    dataset: TaskSource,
    plan: TrainingPlan,
    *,
    queries: int,
    seed: int,
    device: torch.device,
) -> dict[str, Stream]:
    """The three task streams of a cell by split; no seed of theirs names the method.

    Validation and test tasks are the same for all training seeds too, so seeds can be compared task by task.

    Args:
        bench: says what tasks are.
        dataset: what they are made of.
        plan: says how many queries a training task has.
        queries: per class at test.
        seed: training seed.
        device: where tensors are.

    Raises:
        UserError: tasks that the data cannot give.
    """
    shapes = {
        split: bench.task_shape(number)
        for split, number in (("train", plan.train_queries), ("validation", TEST_QUERIES), ("test", queries))
    }
    seeds: dict[str, tuple[str | int, ...]] = {split: (bench.name, split) for split in shapes}
    seeds["train"] += (seed,)
    if isinstance(dataset, LinearGaussian):
        streams: dict[str, Stream] = {s: LinearGaussianStream(dataset, shapes[s], device, *seeds[s]) for s in shapes}
        if bench.data.train_tasks:
            streams["train"] = Repeated(streams["train"], bench.data.train_tasks)
        return streams
    pools = {split: ImagePool(data, device) for split, data in dataset.splits.items()}
    if bench.data.kind == "reconstruction":
        shapes["validation"] = shapes["test"] = bench.task_shape(VIEWS)
        angles: Any = dataset.options["angles"]
        return {s: ViewStream(pools[s], shapes[s], angles, *seeds[s], every_object=s != "train") for s in shapes}
    if bench.data.train_tasks:  # the same for all seeds
        tasks = TaskStream(pools["train"], shapes["train"], bench.name, "tasks", split="train")
        return {
            "train": Repeated(tasks, bench.data.train_tasks),
            **{
                s: HeldOutStream(tasks, pools[s], shapes[s].queries, *seeds[s], split=s) for s in ("validation", "test")
            },
        }
    # Validation never stands in the way of a bench: way and queries shrink to what its classes allow, at most 15.
    held_out = dataset.splits["validation"]
    shapes["validation"] = dataclasses.replace(
        shapes["validation"],
        way=min(bench.way, held_out.num_classes),
        queries=max(1, min(TEST_QUERIES, int(held_out.counts.min()) - bench.shot)),
    )
    return {s: TaskStream(pools[s], shapes[s], *seeds[s], split=s) for s in shapes}
