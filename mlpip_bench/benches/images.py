"""Families of images of classes, and of views of objects."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from mlpip_bench.benches.family import TEST_QUERIES, DataRequest, TaskFamily, TaskSource
from mlpip_bench.benches.spec import BenchSpec

if TYPE_CHECKING:  # families are listed without what reads images and makes tasks
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from mlpip_bench.datasets.base import ClassImages, ImageDataset
    from mlpip_bench.datasets.sources import DataSource
    from mlpip_bench.inference.method import TrainingPlan
    from mlpip_bench.tasks.stream import Stream


def as_images(data: TaskSource) -> ImageDataset:
    """The data set of a family of images."""
    from mlpip_bench.datasets.base import ImageDataset

    assert isinstance(data, ImageDataset)  # which ImageFamily.load gives
    return data


class ImageFamily(TaskFamily):
    """A family whose tasks are cut out of a data set of images.

    A plugin writes ``source`` for images that are on a user's disk, or ``load`` for images that a program draws.
    """

    def source(self) -> DataSource | None:
        """Where the data set is looked for, and what stands in for it; None where it is drawn."""
        return None

    def load(self, request: DataRequest) -> ImageDataset:
        """The data set, whose images are read when a task asks for them."""
        source = self.source()
        if source is None:
            raise NotImplementedError(f"{type(self).__name__} must have source (images on disk) or load (drawn images)")
        from mlpip_bench.datasets import sources

        return sources.load(source, choice=request.choice, data_root=request.data_root, reporter=request.reporter)

    def input_shape(self, data: TaskSource) -> tuple[int, int, int]:
        """That of its images."""
        return as_images(data).image_shape

    def training_classes(self, data: TaskSource) -> int | None:
        """Those of the training split, turned ones too that count as classes of their own."""
        return as_images(data).splits["train"].num_classes if self.kind == "classification" else None


class ImageClassification(ImageFamily):
    """Classes of images, disjoint between the splits; tasks are drawn anew without end."""

    ranges = ("way", "shot")

    def groups(self, classes: ClassImages) -> NDArray[np.int64] | None:  # noqa: ARG002  # for those that override it
        """A number for each class of a split, of which no two in a task are equal; None where all classes may meet."""
        return None

    def test_classes(self, data: TaskSource) -> int:
        """Those of the test split."""
        return as_images(data).splits["test"].num_classes

    def streams(
        self,
        bench: BenchSpec,
        data: TaskSource,
        plan: TrainingPlan,
        *,
        queries: int,
        seed: int,
        device: torch.device,
    ) -> dict[str, Stream]:
        """Tasks of the three splits; in validation, way and queries shrink to what its classes allow."""
        from mlpip_bench.tasks.batch import ShapeRange, TaskShape
        from mlpip_bench.tasks.images import ImagePool, PoolStream, TaskStream, VariedTaskStream

        splits = as_images(data).splits
        pools = {split: ImagePool(classes, device, self.groups(classes)) for split, classes in splits.items()}
        held_out = pools["validation"]
        in_validation = max(1, min(TEST_QUERIES, int(held_out.counts.min()) - bench.shot))
        queries_of = {"train": plan.train_queries, "validation": in_validation, "test": queries}
        seeds: dict[str, tuple[str | int, ...]] = {split: (bench.name, split) for split in pools}
        seeds["train"] += (seed,)

        def stream(split: str, pool: ImagePool) -> PoolStream:
            ways, shots = bench.range_of("way"), bench.range_of("shot")
            if split == "validation":
                ways = min(ways[0], pool.most_ways), min(ways[1], pool.most_ways)
            if bench.least:
                shapes = ShapeRange(ways, shots, queries_of[split])
                return VariedTaskStream(pool, shapes, *seeds[split], split=split)
            return TaskStream(pool, TaskShape(ways[1], shots[1], queries_of[split]), *seeds[split], split=split)

        return {split: stream(split, pool) for split, pool in pools.items()}


class FixedTasks(ImageFamily):
    """The same few tasks in training, validation and test, with other images of the same classes.

    Attributes:
        train_tasks: how many tasks there are.
    """

    train_tasks: ClassVar[int]

    def fitted(self, plan: TrainingPlan, bench: BenchSpec, data: TaskSource) -> TrainingPlan:  # noqa: ARG002
        """No more tasks than there are."""
        return dataclasses.replace(
            plan,
            validation_tasks=min(plan.validation_tasks, self.train_tasks),
            test_tasks=min(plan.test_tasks, self.train_tasks),
        )

    def streams(
        self,
        bench: BenchSpec,
        data: TaskSource,
        plan: TrainingPlan,
        *,
        queries: int,
        seed: int,  # noqa: ARG002  # the tasks are the same for all seeds
        device: torch.device,
    ) -> dict[str, Stream]:
        """The training tasks again and again, and their support sets with queries of the other splits."""
        from mlpip_bench.tasks.batch import TaskShape
        from mlpip_bench.tasks.images import HeldOutStream, ImagePool, TaskStream
        from mlpip_bench.tasks.stream import Repeated

        pools = {split: ImagePool(images, device) for split, images in as_images(data).splits.items()}
        shape = TaskShape(bench.way, bench.shot, plan.train_queries)
        tasks = TaskStream(pools["train"], shape, bench.name, "tasks", split="train")
        return {
            "train": Repeated(tasks, self.train_tasks),
            "validation": HeldOutStream(
                tasks, pools["validation"], TEST_QUERIES, bench.name, "validation", split="validation"
            ),
            "test": HeldOutStream(tasks, pools["test"], queries, bench.name, "test", split="test"),
        }
