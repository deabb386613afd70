"""View reconstruction: all views of an object, from a few of them (paper, section 5.3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mlpip_bench.benches.family import TaskSource
from mlpip_bench.benches.images import ImageFamily, as_images
from mlpip_bench.benches.spec import BenchSpec

if TYPE_CHECKING:
    import torch

    from mlpip_bench.datasets.sources import DataSource
    from mlpip_bench.inference.method import TrainingPlan
    from mlpip_bench.tasks.stream import Stream


@dataclass(frozen=True)
class ViewOptions:
    """Options of view reconstruction.

    Attributes:
        source: which data set: ``shapenet``, ``coil100``, ``furniture``, or ``auto``, the first of these that is found.
        angles: how the angle of a view is given: sine and cosine (``sincos``), or ``degrees`` before them, as the
            reference code has it.
    """

    source: Literal["auto", "shapenet", "coil100", "furniture"] = "auto"
    angles: Literal["sincos", "degrees"] = "sincos"


_QUICK = {
    "iterations": 2000,
    "tasks_per_batch": 8,
    "train_queries": 12,
    "learning_rate": 3e-4,  # three times as much can end in a generator that draws white only
    "halve_every": 800,
    "validate_every": 250,
    "validation_tasks": 100,
    "test_tasks": 10_000,
}
_PAPER = {
    "iterations": 500_000,
    "tasks_per_batch": 24,
    "train_queries": 35,
    "learning_rate": 1e-4,
    "validate_every": 5_000,
    "validation_tasks": 2_400,
    "test_tasks": 10_000,
}


class Views(ImageFamily):
    """Views all around objects, one every 10 degrees."""

    title = "views of objects, reconstructed from a few of them (section 5.3)"
    needs = "shapenet/ with rendered views, coil100/ or furniture/; else the stand-in solids"
    examples = ("views1s", "views5s")
    image_shape = (1, 32, 32)
    naming = "{shot}s"
    kind = "reconstruction"
    noise_std = 1.0
    budgets: ClassVar = {"quick": _QUICK, "paper": _PAPER}
    default_methods = ("cvae", "mean_view", "nearest_view", "versa")
    backbone = "view_encoder"
    Options = ViewOptions
    options: ViewOptions

    def source(self) -> DataSource:
        """ShapeNet, COIL-100 or furniture, else drawn solids."""
        from mlpip_bench.datasets import coil100, furniture, shapenet
        from mlpip_bench.datasets.preparing import furniture as furniture_meshes
        from mlpip_bench.datasets.preparing import shapenet as shapenet_meshes
        from mlpip_bench.datasets.procedural import solids
        from mlpip_bench.datasets.sources import DataSource, StandIn

        title, readers = {
            "auto": ("ShapeNet, COIL-100 or furniture", (shapenet, coil100, furniture)),
            "shapenet": ("ShapeNet", (shapenet,)),
            "coil100": ("COIL-100", (coil100,)),
            "furniture": ("Furniture", (furniture,)),
        }[self.options.source]
        return DataSource(
            "views",
            f"{title}: views all around objects, one every 10 degrees, 32x32 gray",
            tuple(name for reader in readers for name in reader.FOLDERS),
            tuple(layout for reader in readers for layout in reader.LAYOUTS),
            # One for all choices: what one has cached serves the others.
            10_000 * furniture.VERSION + 100 * shapenet.VERSION + coil100.VERSION,
            lambda folder: next(filter(None, (reader.find(folder) for reader in readers)), None),
            StandIn(
                "solids",
                "procedural",
                {"generator": "solids", "version": solids.VERSION},
                lambda step: solids.build_solids(lambda done, _all: step(done)),
                solids.OBJECTS,  # it takes more than a minute, once
                solids.FINGERPRINT,
            ),
            {} if self.options.source == "auto" else {"source": self.options.source},
            preparers={"furniture": furniture_meshes.PREPARER, "shapenet": shapenet_meshes.PREPARER},
        )

    def fitted(self, plan: TrainingPlan, bench: BenchSpec, data: TaskSource) -> TrainingPlan:
        """No more objects and views than there are."""
        from mlpip_bench.datasets.views import VIEWS

        splits = as_images(data).splits
        return dataclasses.replace(
            plan,
            train_queries=max(1, min(plan.train_queries, VIEWS - bench.shot)),
            validation_tasks=min(plan.validation_tasks, splits["validation"].num_classes),
            test_tasks=min(plan.test_tasks, splits["test"].num_classes),
        )

    def queries_at_test(self, asked: int) -> int:  # noqa: ARG002
        """All views, whatever was asked for."""
        from mlpip_bench.datasets.views import VIEWS

        return VIEWS

    @property
    def task_options(self) -> Mapping[str, Any]:
        """How angles are given."""
        return {"angles": self.options.angles}

    @property
    def inputs(self) -> int:
        """Length of x, which holds the angle."""
        return {"sincos": 2, "degrees": 3}[self.options.angles]

    def streams(
        self,
        bench: BenchSpec,
        data: TaskSource,
        plan: TrainingPlan,
        *,
        queries: int,  # noqa: ARG002  # all views
        seed: int,
        device: torch.device,
    ) -> dict[str, Stream]:
        """Objects of the three splits; in validation and test each object once, with all its views."""
        from mlpip_bench.datasets.views import VIEWS
        from mlpip_bench.tasks.batch import TaskShape
        from mlpip_bench.tasks.images import ImagePool
        from mlpip_bench.tasks.views import ViewStream

        splits = as_images(data).splits

        def stream(split: str, queries: int, *more: Any) -> ViewStream:
            pool, shape = ImagePool(splits[split], device), TaskShape(1, bench.shot, queries)
            return ViewStream(pool, shape, self.options.angles, bench.name, split, *more, every_object=split != "train")

        return {
            "train": stream("train", plan.train_queries, seed),
            "validation": stream("validation", VIEWS),
            "test": stream("test", VIEWS),
        }
