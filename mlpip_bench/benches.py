"""Benches: the name grammar ``<dataset><way>w<shot>s``, and what each data set brings with it.

A regression family has no way: ``<family><shot>s``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, get_args

from mlpip_bench.api import TaskKind
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
        noise_std: of the targets given psi, in a regression family; None for classification.
    """

    title: str
    needs: str
    extractor: ExtractorSpec
    budgets: Mapping[str, Mapping[str, Any]]
    noise_std: float | None = None

    @property
    def kind(self) -> TaskKind:
        """What its tasks are."""
        return "classification" if self.noise_std is None else "regression"


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

PAPER_BUDGETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "omni20w1s": {"iterations": 100_000},
        "omni20w5s": {"iterations": 60_000},
        "mini5w1s": {"learning_rate": 2.5e-4, "tasks_per_batch": 8, "iterations": 50_000},
    }
)
"""How the paper trained its own model where that differs from the data set's budget; for methods' presets."""

_LINEAR = {
    "iterations": 2000,
    "tasks_per_batch": 16,
    "train_queries": 15,
    "learning_rate": 1e-2,
    "halve_every": 400,
    "validate_every": 400,
    "validation_tasks": 200,
    "test_tasks": 600,
}

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
        "linear": Dataset(
            "linear-Gaussian regression, 3 inputs",
            "nothing: tasks are drawn from the model",
            ExtractorSpec((3, 1, 1), blocks=0),
            {"quick": _LINEAR, "paper": _LINEAR},
            noise_std=0.5,
        ),
    }
)

LISTED = (
    *("omni5w1s", "omni5w5s", "omni20w1s", "omni20w5s", "mini5w1s", "mini5w5s"),  # the paper's six
    *("tiny5w1s", "tiny5w5s"),
    *("linear5s", "linear20s"),  # the posterior is known
)

_LARGEST = 10_000  # no data set here has so many classes, or images in one
_GRAMMAR = re.compile(r"([a-z]+?)(?:(\d+)w)?(\d+)s")


_IMAGES, _FAMILIES = ("|".join(k for k, d in DATASETS.items() if d.kind == kind) for kind in get_args(TaskKind))
GRAMMAR = f"Any way and shot works: ({_IMAGES})<way>w<shot>s or ({_FAMILIES})<shot>s, for example omni10w3s."


@dataclass(frozen=True)
class BenchSpec:
    """A bench: a data set, and the way and shot that tasks are trained and tested with.

    Attributes:
        name: ``<dataset><way>w<shot>s``, for example ``mini5w5s``; ``<family><shot>s`` in regression.
        dataset: key of :data:`DATASETS`.
        way: classes of a task; 1 in regression.
        shot: support images per class; support points in regression.
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
    regression = match is not None and match[1] in DATASETS and DATASETS[match[1]].kind == "regression"
    if match is None or match[1] not in DATASETS or (match[2] is None) != regression:
        error = unknown_name("bench", name, LISTED)
        raise UserError(f"{error} {GRAMMAR}")
    dataset, way, shot = match[1], int(match[2] or 1), int(match[3])
    if max(way, shot) > _LARGEST:
        raise UserError(f"way and shot of a bench are at most {_LARGEST}; got {name!r}.")
    if regression:
        if shot < 1:
            raise UserError(f"a bench needs a shot of at least 1; {name!r} has {shot}.")
        return BenchSpec(f"{dataset}{shot}s", dataset, way, shot)
    if way < 2 or shot < 1:
        raise UserError(f"a bench needs a way of at least 2 and a shot of at least 1; {name!r} has {way} and {shot}.")
    return BenchSpec(f"{dataset}{way}w{shot}s", dataset, way, shot)
