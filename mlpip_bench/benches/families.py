"""What each task family brings with it: title, backbone, budgets, naming."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from mlpip_bench.inference.method import TaskKind
from mlpip_bench.nn.backbones import ExtractorSpec


@dataclass(frozen=True)
class Dataset:
    """A data set as benches use it.

    Attributes:
        title: its full name.
        needs: what must be there for a run on real data.
        extractor: the shared feature extractor.
        budgets: fields of the training plan by preset, the same for every method unless its preset
            says otherwise.
        naming: what follows the data set's name in a bench's: fields of :class:`BenchSpec` in braces.
        kind: what its tasks are.
        noise_std: of the targets given psi, a pixel's in reconstruction; None for classification.
        way, shot: of its benches where their names do not say.
        train_tasks: how many tasks there are to train on, met again and again; None for an endless stream.
    """

    title: str
    needs: str
    extractor: ExtractorSpec
    budgets: Mapping[str, Mapping[str, Any]]
    naming: str = "{way}w{shot}s"
    kind: TaskKind = "classification"
    noise_std: float | None = None
    way: int = 1
    shot: int = 0
    train_tasks: int | None = None


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

_TOY = _LINEAR | {
    "iterations": 8000,
    "tasks_per_batch": 125,
    "learning_rate": 5e-2,
    "halve_every": 2000,
    "validate_every": 2000,
}

_CONTEXT = _QUICK_SMALL | {"iterations": 400, "tasks_per_batch": 5, "halve_every": 200, "validate_every": 100}

_QUICK_VIEWS = {
    "iterations": 2000,
    "tasks_per_batch": 8,
    "train_queries": 12,
    "learning_rate": 3e-4,  # three times as much can end in a generator that draws white only
    "halve_every": 800,
    "validate_every": 250,
    "validation_tasks": 100,
    "test_tasks": 10_000,
}

_PAPER_VIEWS = {
    "iterations": 500_000,
    "tasks_per_batch": 24,
    "train_queries": 35,
    "learning_rate": 1e-4,
    "validate_every": 5_000,
    "validation_tasks": 2_400,
    "test_tasks": 10_000,
}


def _linear_gaussian(
    title: str, dimension: int, noise_std: float, budget: Mapping[str, Any], naming: str, train_tasks: int | None = None
) -> Dataset:
    return Dataset(
        title,
        "nothing: tasks are drawn from the model",
        ExtractorSpec((dimension, 1, 1), blocks=0),
        {"quick": budget, "paper": budget},
        naming=naming,
        kind="regression",
        noise_std=noise_std,
        train_tasks=train_tasks,
    )


_TOY_TITLE = "Gaussian with an unknown mean (section 5.1), trained on "

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
        "linear": _linear_gaussian("linear-Gaussian regression, 3 inputs", 3, 0.5, _LINEAR, "{shot}s"),
        "toy": _linear_gaussian(_TOY_TITLE + "250 tasks", 0, 1.0, _TOY, "{shot}", train_tasks=250),
        "toyfresh": _linear_gaussian(_TOY_TITLE + "new tasks at every step", 0, 1.0, _TOY, "{shot}"),
        "context": Dataset(
            "MNIST, fifty 5-way 20-shot tasks that stay the same (appendix B.2); the number is the features' dimension",
            "mnist/ with the t10k files; else scikit-learn's digits",
            ExtractorSpec((1, 28, 28), blocks=4, ceil_mode=True),
            {"quick": _CONTEXT, "paper": _CONTEXT},
            naming="{features}",
            way=5,
            shot=20,
            train_tasks=50,
        ),
        "views": Dataset(
            "views of objects, reconstructed from a few of them (section 5.3)",
            "shapenet/ with rendered views, or coil100/; else the stand-in solids",
            ExtractorSpec((1, 32, 32), blocks=4),
            {"quick": _QUICK_VIEWS, "paper": _PAPER_VIEWS},
            naming="{shot}s",
            kind="reconstruction",
            noise_std=1.0,
        ),
    }
)
