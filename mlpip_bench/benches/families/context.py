"""Context independence: fifty fixed tasks of digits, do a class's weights depend on its context? (appendix B.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from mlpip_bench.benches.budgets import SHORT
from mlpip_bench.benches.images import FixedTasks
from mlpip_bench.benches.spec import BenchSpec

if TYPE_CHECKING:
    from mlpip_bench.benches.family import TaskSource
    from mlpip_bench.datasets.pictures import PictureForm
    from mlpip_bench.datasets.sources import DataSource

_BUDGET = SHORT | {"tasks_per_batch": 5}


class ContextDigits(FixedTasks):
    """5-way 20-shot tasks of MNIST's digits; the number of a bench is the dimension of the features."""

    title = "MNIST, fifty 5-way 20-shot tasks that stay the same (appendix B.2); the number is the features' dimension"
    needs = "mnist/ with the t10k files; else scikit-learn's digits"
    examples = ("context16", "context2")
    image_shape = (1, 28, 28)
    naming = "{features}"
    way, shot, train_tasks = 5, 20, 50
    budgets: ClassVar = {"quick": _BUDGET, "paper": _BUDGET}
    default_methods = ("nonamortized_vi",)
    backbone_settings: ClassVar = {"ceil_mode": True}

    @classmethod
    def settings_of_backbone(cls, bench: BenchSpec) -> Mapping[str, Any]:
        """The convolutions, and a last linear layer with as many outputs as the bench's name says."""
        return {**cls.backbone_settings, "last": dict(bench.numbers)["features"]}

    def source(self) -> DataSource:
        """MNIST's test digits, else those of scikit-learn."""
        import PIL

        from mlpip_bench.datasets import mnist
        from mlpip_bench.datasets.sources import DataSource, StandIn

        return DataSource(
            "context",
            "MNIST: 10,000 handwritten digits (its test images), 28x28",
            mnist.FOLDERS,
            mnist.LAYOUTS,
            mnist.VERSION,
            mnist.find,
            StandIn(
                "digits",
                "bundled",
                {"generator": "digits", "version": mnist.VERSION, "pillow": PIL.__version__},
                lambda _step: mnist.build_digits(),
            ),
        )

    def picture_form(self, data: TaskSource, shape: tuple[int, int, int]) -> PictureForm:  # noqa: ARG002
        """Strokes are bright."""
        from mlpip_bench.datasets.pictures import drawings

        return drawings(shape)
