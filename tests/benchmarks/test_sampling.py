"""Tasks per second of the suite's sampler, beside a loader that handles one image after the other.

The loader does what a ``Dataset`` in a ``DataLoader`` without workers does for a few-shot task; its images are
already in memory, so neither side reads files. Both run on one thread, since a second one on a busy machine makes
either wait for the scheduler. Times are of this machine: compare within one run only.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from statistics import median

import numpy as np
import pytest
import torch

from mlpip_bench.datasets.base import ClassImages
from mlpip_bench.tasks import ImagePool, Labelled, TaskBatch, TaskShape, TaskStream

SHAPE = TaskShape(way=5, shots=1, queries=15)
CLASSES, PER_CLASS = 1692, 20
TASKS = 16  # a batch


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def data() -> ClassImages:
    """Random images in the number and size of Omniglot's test classes and their rotations."""
    images = np.random.default_rng(0).integers(0, 256, (CLASSES * PER_CLASS, 1, 28, 28), dtype=np.uint8)
    return ClassImages(images, np.full(CLASSES, PER_CLASS), tuple(map(str, range(CLASSES))))


def stream_batches(data: ClassImages) -> Callable[[], TaskBatch]:
    """The next batch of the suite's stream, at each call."""
    stream = TaskStream(ImagePool(data, torch.device("cpu")), SHAPE, "benchmark")
    first = itertools.count(step=TASKS)
    return lambda: stream.batch(next(first), TASKS)


def image_by_image_batches(data: ClassImages) -> Callable[[], TaskBatch]:
    """The next batch, drawn and stacked one task and one image at a time, at each call."""
    rng = np.random.default_rng(0)

    def tensors(rows: list[int]) -> torch.Tensor:
        return torch.stack([torch.from_numpy(data.images[row]).float() / 255 for row in rows])

    def task() -> tuple[torch.Tensor, torch.Tensor]:
        support: list[int] = []
        query: list[int] = []
        for label in rng.choice(CLASSES, SHAPE.way, replace=False):
            rows = label * PER_CLASS + rng.choice(PER_CLASS, 1 + SHAPE.queries, replace=False)
            support.append(rows[0])
            query.extend(rows[1:])
        return tensors(support), tensors(query)

    def batch() -> TaskBatch:
        support, query = (torch.stack(parts) for parts in zip(*(task() for _ in range(TASKS)), strict=True))
        labels = torch.arange(SHAPE.way)
        return TaskBatch(
            Labelled(support, labels.expand(TASKS, -1), SHAPE.way),
            Labelled(query, labels.repeat_interleave(SHAPE.queries).expand(TASKS, -1), SHAPE.way),
        )

    return batch


LOADERS = {"stream": stream_batches, "image by image": image_by_image_batches}


@pytest.mark.benchmark(group=f"a batch of {TASKS} tasks", min_rounds=40, warmup=True, warmup_iterations=8)
@pytest.mark.parametrize("loader", LOADERS)
def test_batches(benchmark, data, loader):
    batch = benchmark(LOADERS[loader](data))
    assert batch.support.x.shape == (TASKS, 5, 1, 28, 28)
    assert batch.query.x.shape == (TASKS, 75, 1, 28, 28)
    assert batch.query.x.dtype == torch.float32
    assert 0.9 < float(batch.query.x.max()) <= 1
    if benchmark.stats is not None:  # None with --benchmark-disable
        benchmark.extra_info["tasks_per_second"] = round(TASKS / benchmark.stats.stats.median)


def test_stream_is_faster_than_image_by_image(benchmark, data):
    """Both by turns, so that a slow spell of the machine meets both; a turn is one block of tasks, draw included."""
    batches_a_turn = 128 // TASKS
    loaders = {name: make(data) for name, make in LOADERS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in LOADERS}

    def turn() -> None:
        for name, batch in loaders.items():
            began = time.perf_counter()
            for _ in range(batches_a_turn):
                batch()
            seconds[name].append(time.perf_counter() - began)

    benchmark.pedantic(turn, rounds=9, warmup_rounds=1)
    ratio = median(loader / stream for loader, stream in zip(seconds["image by image"], seconds["stream"], strict=True))
    benchmark.extra_info["stream_is_faster_by"] = round(ratio, 1)
    assert ratio > 3, f"the stream is {ratio:.1f} times as fast as the plain loader; 6 to 8 times is usual"
