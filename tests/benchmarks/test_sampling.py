"""Tasks per second of the suite's sampler, against two loaders that handle one image after the other.

One loader reads files as code for Omniglot does: a ``Dataset`` opens, resizes and converts an image, and a
``DataLoader`` without workers stacks those of a task. The other does the same with images already in memory, so that
neither side reads files. All run on one thread, to which the suite's stream adds one that draws the next tasks. Times
are of this machine: compare within one run only.
"""

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from mlpip_bench.datasets.base import ClassImages
from mlpip_bench.tasks.batch import Labeled, TaskBatch, TaskShape
from mlpip_bench.tasks.images import ImagePool, TaskStream
from mlpip_bench.tasks.stream import BLOCK

SHAPE = TaskShape(way=5, shots=1, queries=15)
CLASSES, PER_CLASS = 1692, 20
FILES = 2000
TASKS = 16  # a batch


@pytest.fixture(scope="module")
def data() -> ClassImages:
    """Random images in the number and size of Omniglot's test classes and their rotations."""
    images = np.random.default_rng(0).integers(0, 256, (CLASSES * PER_CLASS, 1, 28, 28), dtype=np.uint8)
    return ClassImages(images, np.full(CLASSES, PER_CLASS), tuple(map(str, range(CLASSES))))


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """Black and white drawings in the format of Omniglot's; fewer, which the system's cache then holds."""
    folder = tmp_path_factory.mktemp("drawings")
    for number, drawing in enumerate(np.random.default_rng(0).integers(0, 2, (FILES, 7, 7), dtype=np.uint8)):
        image = Image.fromarray(drawing * np.uint8(255)).resize((105, 105), Image.Resampling.NEAREST)
        image.convert("1").save(folder / f"{number:04}.png")
    return folder


def stream_batches(data: ClassImages, files: Path) -> Callable[[], TaskBatch]:
    """The next batch of the suite's stream, at each call."""
    stream = TaskStream(ImagePool(data, torch.device("cpu")), SHAPE, "benchmark")
    first = itertools.count(step=TASKS)
    return lambda: stream.batch(next(first), TASKS)


def rows_of_a_task(rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """Which images are the support set and the queries of a task, drawn one class after the other."""
    support: list[int] = []
    query: list[int] = []
    for label in rng.choice(CLASSES, SHAPE.way, replace=False):
        rows = label * PER_CLASS + rng.choice(PER_CLASS, 1 + SHAPE.queries, replace=False)
        support.append(rows[0])
        query.extend(rows[1:])
    return support, query


def stacked(tasks: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> TaskBatch:
    support, query = (torch.stack(parts) for parts in zip(*tasks, strict=True))
    labels = torch.arange(SHAPE.way)
    return TaskBatch(
        Labeled(support, labels.expand(TASKS, -1), SHAPE.way),
        Labeled(query, labels.repeat_interleave(SHAPE.queries).expand(TASKS, -1), SHAPE.way),
    )


def image_by_image_batches(data: ClassImages, files: Path) -> Callable[[], TaskBatch]:
    """The next batch, drawn and stacked one task and one image at a time, at each call."""
    rng = np.random.default_rng(0)

    def tensors(rows: list[int]) -> torch.Tensor:
        return torch.stack([torch.from_numpy(data.images[row]).float() / 255 for row in rows])

    def task() -> tuple[torch.Tensor, torch.Tensor]:
        support, query = rows_of_a_task(rng)
        return tensors(support), tensors(query)

    return lambda: stacked(task() for _ in range(TASKS))


class ImageFiles(Dataset[torch.Tensor]):
    """Images that are opened, resized and turned into tensors when they are asked for."""

    def __init__(self, files: Path) -> None:
        self.files = sorted(files.iterdir())

    def __getitem__(self, row: int) -> torch.Tensor:
        with Image.open(self.files[row % len(self.files)]) as image:
            small = image.convert("L").resize((28, 28))
        return torch.from_numpy(np.asarray(small, dtype=np.float32) / 255).unsqueeze(0)


def file_by_file_batches(data: ClassImages, files: Path) -> Callable[[], TaskBatch]:
    """The next batch out of a ``DataLoader`` without workers, a task at a time, at each call."""
    rng = np.random.default_rng(0)
    episodes = (support + query for support, query in (rows_of_a_task(rng) for _ in itertools.count()))
    loader = iter(DataLoader(ImageFiles(files), batch_sampler=episodes))
    return lambda: stacked((images[: SHAPE.way], images[SHAPE.way :]) for images in itertools.islice(loader, TASKS))


LOADERS = {
    "stream": stream_batches,
    "image by image": image_by_image_batches,
    "file by file": file_by_file_batches,
}


@pytest.mark.benchmark(group=f"a batch of {TASKS} tasks")
@pytest.mark.parametrize("loader", LOADERS)
def test_batches(benchmark, data, files, loader):
    batch = benchmark.pedantic(LOADERS[loader](data, files), rounds=16, warmup_rounds=1)
    assert batch.support.x.shape == (TASKS, 5, 1, 28, 28)
    assert batch.query.x.shape == (TASKS, 75, 1, 28, 28)
    assert batch.query.x.dtype == torch.float32
    assert 0.9 < float(batch.query.x.max()) <= 1
    if benchmark.enabled:
        benchmark.extra_info["tasks_per_second"] = round(TASKS / benchmark.stats.stats.median)


@pytest.mark.benchmark(group=f"{BLOCK} tasks, {TASKS} at a time")
@pytest.mark.parametrize(("loader", "bar", "turns"), [("image by image", 3, 12), ("file by file", 50, 5)])
def test_stream_beside(faster, data, files, loader, bar, turns):
    """A turn is as many tasks as the stream draws at once, so that the draw has its share."""

    def of_a_block(batch: Callable[[], TaskBatch]) -> Callable[[], None]:
        def block() -> None:
            for _ in range(BLOCK // TASKS):
                batch()

        return block

    ours, theirs = (of_a_block(LOADERS[name](data, files)) for name in ("stream", loader))
    faster(ours, theirs, f"{loader} / stream, drawing tasks", bar=bar, turns=turns)
