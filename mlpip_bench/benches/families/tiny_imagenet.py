"""Tiny-ImageNet-32: natural images of 32x32."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mlpip_bench.benches.budgets import PAPER_NATURAL, SHORT
from mlpip_bench.benches.images import ImageClassification

if TYPE_CHECKING:
    from mlpip_bench.datasets.sources import DataSource


class TinyImageNet(ImageClassification):
    """100 classes of natural images, 300 each."""

    title = "Tiny-ImageNet-32"
    needs = "tiny-imagenet-32/ with train.tar, val.tar and test.tar; no stand-in"
    examples = ("tiny5w1s", "tiny5w5s")
    image_shape = (3, 32, 32)
    budgets: ClassVar = {"quick": SHORT, "paper": PAPER_NATURAL}
    default_methods = ("maml", "protonets", "versa")
    backbone_settings: ClassVar = {"dropout": 0.5}

    def source(self) -> DataSource:
        """The three archives."""
        from mlpip_bench.datasets import tiny_imagenet
        from mlpip_bench.datasets.sources import DataSource

        return DataSource(
            "tiny",
            "Tiny-ImageNet-32: 100 classes of natural images, 300 each, 32x32 RGB",
            tiny_imagenet.FOLDERS,
            tiny_imagenet.LAYOUTS,
            tiny_imagenet.VERSION,
            tiny_imagenet.find,
        )
