"""The task streams of a bench: what is trained on, validated on, and tested on."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from mlpip_bench.benches.settings import TEST_QUERIES
from mlpip_bench.benches.spec import BenchSpec
from mlpip_bench.datasets.base import ImageDataset
from mlpip_bench.datasets.views import VIEWS
from mlpip_bench.inference.method import TrainingPlan
from mlpip_bench.tasks.images import HeldOutStream, ImagePool, TaskStream
from mlpip_bench.tasks.linear_gaussian import LinearGaussian, LinearGaussianStream
from mlpip_bench.tasks.stream import Repeated, Stream
from mlpip_bench.tasks.views import ViewStream

TaskSource = ImageDataset | LinearGaussian


def angle_coordinates(dataset: TaskSource) -> int:
    """Length of x in a data set of views; 0 in others."""
    return {"sincos": 2, "degrees": 3}.get(str(dataset.options.get("angles")), 0)


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
    """The three task streams of a trial by split; no seed of theirs names the method.

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
