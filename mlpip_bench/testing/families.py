"""What every task family must keep for results on its benches to be comparable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from mlpip_bench.benches.family import DataRequest, TaskFamily, TaskSource
from mlpip_bench.benches.images import FixedTasks
from mlpip_bench.benches.spec import BenchSpec
from mlpip_bench.datasets.base import SPLITS, ImageDataset
from mlpip_bench.inference.method import TrainingPlan
from mlpip_bench.registry import family_faults
from mlpip_bench.tasks.batch import TaskBatch
from mlpip_bench.tasks.stream import Stream

TASKS = 4


def assert_family_conforms(plugin: type[TaskFamily], request: DataRequest | None = None) -> None:
    """For test suites: one AssertionError that lists all that a task family breaks.

    On the first bench of ``examples``: splits have no class and no image in common (of :class:`FixedTasks`, no
    image); the same seed gives the same tasks, loaded again and in batches of any size; tasks of validation and test
    are the same for every training seed; queries are none of the support points, and cannot be reached through the
    memory of those; queries of classes come in an order of each task's own; shapes are those of the bench.

    Args:
        plugin: the class; it need not be registered.
        request: where its data is; by default no real data is looked for.
    """
    problems = [f"it {fault}" for fault in family_faults(plugin)]
    problems = problems or list(_problems(plugin, request or DataRequest("procedural")))
    if problems:
        raise AssertionError(f"{getattr(plugin, '__name__', plugin)} does not conform:\n" + "\n".join(problems))


def _problems(plugin: type[TaskFamily], request: DataRequest) -> Iterator[str]:
    for name in plugin.examples:
        if plugin.read_name(name) is None:
            yield f"examples must be names of its benches; {name!r} does not read {plugin.naming!r}"
            return
    bench = plugin.read_name(plugin.examples[0])
    assert bench is not None
    family = plugin(plugin.Options())
    data, again = family.load(request), family.load(request)
    if data.fingerprint != again.fingerprint:
        yield "equal data must have equal fingerprints; loaded again, it has another"
    if isinstance(data, ImageDataset):
        yield from _of_splits(plugin, data)
    streams = _streams(family, bench, data, seed=0)
    if set(streams) != set(SPLITS):
        yield f"streams must be {', '.join(SPLITS)}; got {', '.join(streams)}"
        return
    others, seeded = _streams(family, bench, again, seed=0), _streams(family, bench, data, seed=1)
    for split in SPLITS:
        batch = streams[split].batch(0, TASKS)
        if not _same(batch, others[split].batch(0, TASKS)):
            yield f"{split}: the same seed must give the same tasks"
        if not _same(batch, TaskBatch.cat([streams[split].batch(0, 1), streams[split].batch(1, TASKS - 1)])):
            yield f"{split}: task i must be the same in a batch of any size"
        if split != "train" and not _same(batch, seeded[split].batch(0, TASKS)):
            yield f"{split}: tasks must be the same for every training seed"
        yield from (f"{split}: {problem}" for problem in _of_tasks(family, bench, data, batch))


def _streams(family: TaskFamily, bench: BenchSpec, data: TaskSource, seed: int) -> Mapping[str, Stream]:
    plan = family.fitted(TrainingPlan(**family.budgets["quick"]), bench, data)
    queries = family.queries_at_test(3)
    return family.streams(bench, data, plan, queries=queries, seed=seed, device=torch.device("cpu"))


def _of_splits(plugin: type[TaskFamily], data: ImageDataset) -> Iterator[str]:
    met_classes: set[str] = set()
    met_images: set[bytes] = set()
    for split, part in data.splits.items():
        images = {image.tobytes() for image in part.images}
        if met_images & images:
            yield f"splits must have no image in common; {split} has one of an earlier split"
        if met_classes & set(part.class_names) and not issubclass(plugin, FixedTasks):
            common = sorted(met_classes & set(part.class_names))[0]
            yield f"splits must have no class in common; {split} has {common!r} of an earlier split"
        met_images |= images
        met_classes |= set(part.class_names)


def _of_tasks(family: TaskFamily, bench: BenchSpec, data: TaskSource, batch: TaskBatch) -> Iterator[str]:
    support, query = batch.support, batch.query
    images = family.input_shape(data)
    points = bench.way * bench.shot
    x_shape = (family.inputs,) if family.inputs else images
    if support.x.shape != (TASKS, points, *x_shape):
        yield f"support.x must be {(TASKS, points, *x_shape)}; got {tuple(support.x.shape)}"
    if query.x.shape[2:] != x_shape:
        yield f"query.x must end with {x_shape}; got {tuple(query.x.shape)}"
    y_shape = images if family.kind == "reconstruction" else ()
    if support.y.shape != (TASKS, points, *y_shape):
        yield f"support.y must be {(TASKS, points, *y_shape)}; got {tuple(support.y.shape)}"
    elif family.kind == "classification":
        shots = support.y.unsqueeze(-1) == torch.arange(support.way)
        if support.way != bench.way or not bool((shots.sum(1) == bench.shot).all()):
            yield f"each of {bench.way} classes must have {bench.shot} support points"
        if not bool(((query.y >= 0) & (query.y < support.way)).all()):
            yield "labels of queries must be those of the support set's classes"
        if bool((query.y == query.y[0]).all()):
            yield "queries must be in an order of each task's own; in all tasks their labels come in one order"
    if any(t.untyped_storage().nbytes() > t.numel() * t.element_size() for t in (support.x, support.y, query.x)):
        yield "support set and images of queries must be in memory of their own, and no views of what holds the targets"
    # A reconstruction is scored on all views, the given ones too; where x is empty, points have nothing to compare.
    if family.kind != "reconstruction" and support.x.numel() and _shares_points(support.x, query.x):
        yield "queries must be none of the support points"


def _shares_points(support: Tensor, query: Tensor) -> bool:
    pairs = support.flatten(2).unsqueeze(2) == query.flatten(2).unsqueeze(1)
    return bool(pairs.all(-1).any())


def _same(one: TaskBatch, other: TaskBatch) -> bool:
    parts = ((one.support, other.support), (one.query, other.query))
    return all(torch.equal(a.x, b.x) and torch.equal(a.y, b.y) for a, b in parts)
