"""Benches: the name grammar ``<dataset><way>w<shot>s``, and what each data set brings with it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from mlpip_bench.errors import UserError, unknown_name
from mlpip_bench.networks import ExtractorSpec
from mlpip_bench.tasks import TaskShape

PRESETS = ("quick", "paper")
TEST_QUERIES = 15
"""Queries per class at test, unless ``--queries`` says otherwise; the paper's protocol is the shot."""


@dataclass(frozen=True)
class Dataset:
    """A data set as benches use it.

    Attributes:
        title: its full name.
        needs: what must be there for a run on real data.
        extractor: the shared feature extractor.
        budgets: fields of the training plan by preset, the same for every method unless its preset
            says otherwise.
    """

    title: str
    needs: str
    extractor: ExtractorSpec
    budgets: Mapping[str, Mapping[str, Any]]


_QUICK_SMALL = {
    "iterations": 2400,
    "tasks_per_batch": 4,
    "train_queries": 5,
    "learning_rate": 1e-3,
    "halve_every": 800,
    "validate_every": 240,
    "validation_tasks": 100,
    "test_tasks": 600,
}
_QUICK_TINY = _QUICK_SMALL | {"iterations": 400, "halve_every": 200, "validate_every": 100}
# 84x84 images cost forty times as much as Omniglot's; a laptop does these in minutes all the same.
_QUICK_LARGE = _QUICK_SMALL | {
    "iterations": 100,
    "tasks_per_batch": 1,
    "halve_every": 0,
    "validate_every": 100,
    "validation_tasks": 10,
    "test_tasks": 60,
}
_PAPER_OMNIGLOT = {
    "iterations": 80_000,
    "tasks_per_batch": 16,
    "train_queries": 15,
    "learning_rate": 1e-4,
    "validate_every": 1_000,
    "validation_tasks": 600,
    "test_tasks": 600,
}
_PAPER_MINI = _PAPER_OMNIGLOT | {"iterations": 100_000, "tasks_per_batch": 4}

DATASETS: Mapping[str, Dataset] = MappingProxyType(
    {
        "omni": Dataset(
            "Omniglot",
            "omniglot/ with the npz arrays, the official zip archives or their folders; else the stand-in glyphs",
            ExtractorSpec((1, 28, 28), blocks=4, ceil_mode=True, dropout=0.1),
            {"quick": _QUICK_SMALL, "paper": _PAPER_OMNIGLOT},
        ),
        "tiny": Dataset(
            "Tiny-ImageNet-32",
            "tiny-imagenet-32/ with train.tar, val.tar and test.tar; no stand-in",
            ExtractorSpec((3, 32, 32), blocks=4, dropout=0.5),
            {"quick": _QUICK_TINY, "paper": _PAPER_MINI},
        ),
        "mini": Dataset(
            "miniImageNet",
            "miniimagenet/ in any of five layouts; else the stand-in patches",
            ExtractorSpec((3, 84, 84), blocks=5, dropout=0.5),
            {"quick": _QUICK_LARGE, "paper": _PAPER_MINI},
        ),
    }
)

LISTED = (
    *("omni5w1s", "omni5w5s", "omni20w1s", "omni20w5s", "mini5w1s", "mini5w5s"),  # the paper's six
    *("tiny5w1s", "tiny5w5s"),
)

_LARGEST = 10_000  # no data set here has so many classes, or images in one
_GRAMMAR = re.compile(r"([a-z]+?)(\d+)w(\d+)s")


@dataclass(frozen=True)
class BenchSpec:
    """A bench: a data set, and the way and shot that tasks are trained and tested with.

    Attributes:
        name: ``<dataset><way>w<shot>s``, for example ``mini5w5s``.
        dataset: key of :data:`DATASETS`.
        way: classes of a task.
        shot: support images per class.
    """

    name: str
    dataset: str
    way: int
    shot: int

    @property
    def data(self) -> Dataset:
        """What its data set brings with it."""
        return DATASETS[self.dataset]

    def task_shape(self, queries: int) -> TaskShape:
        """Shape of its tasks with so many queries per class."""
        return TaskShape(self.way, self.shot, queries)


def parse_bench(name: str) -> BenchSpec:
    """Read a bench's name.

    Raises:
        UserError: not of the grammar, an unknown data set, or a way below 2 or shot below 1.
    """
    match = _GRAMMAR.fullmatch(name)
    if match is None or match[1] not in DATASETS:
        error = unknown_name("bench", name, LISTED)
        datasets = "|".join(DATASETS)
        raise UserError(f"{error} Any way and shot works: ({datasets})<way>w<shot>s, for example omni10w3s.")
    dataset, way, shot = match[1], int(match[2]), int(match[3])
    if max(way, shot) > _LARGEST:
        raise UserError(f"way and shot of a bench are at most {_LARGEST}; got {name!r}.")
    if way < 2 or shot < 1:
        raise UserError(f"a bench needs a way of at least 2 and a shot of at least 1; {name!r} has {way} and {shot}.")
    return BenchSpec(f"{dataset}{way}w{shot}s", dataset, way, shot)
