"""miniImageNet: natural images of 84x84 (paper, section 5.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mlpip_bench.benches.budgets import PAPER_NATURAL, SHORTEST
from mlpip_bench.benches.images import ImageClassification

if TYPE_CHECKING:
    from mlpip_bench.benches.family import TaskSource
    from mlpip_bench.datasets.pictures import PictureForm
    from mlpip_bench.datasets.sources import DataSource


class MiniImageNet(ImageClassification):
    """100 classes of natural images, 600 each."""

    title = "miniImageNet"
    needs = "miniimagenet/ in any of five layouts; else the stand-in patches"
    examples = ("mini5w1s", "mini5w5s")
    image_shape = (3, 84, 84)
    budgets: ClassVar = {"quick": SHORTEST, "paper": PAPER_NATURAL}
    default_methods = ("maml", "protonets", "versa")
    backbone_settings: ClassVar = {"blocks": 5, "dropout": 0.5}

    def source(self) -> DataSource:
        """The data set, else drawn patches."""
        from mlpip_bench.datasets import mini_imagenet
        from mlpip_bench.datasets.procedural import patches
        from mlpip_bench.datasets.sources import DataSource, StandIn

        return DataSource(
            "mini",
            "miniImageNet: 100 classes of natural images, 600 each, 84x84 RGB",
            mini_imagenet.FOLDERS,
            mini_imagenet.LAYOUTS,
            mini_imagenet.VERSION,
            mini_imagenet.find,
            StandIn(
                "patches",
                "procedural",
                {"generator": "patches", "version": patches.VERSION},
                lambda _step: patches.build_patches(),
                fingerprint=patches.FINGERPRINT,
            ),
            facts=(mini_imagenet.SPLIT_LIST,),
        )

    def picture_form(self, data: TaskSource, shape: tuple[int, int, int]) -> PictureForm:  # noqa: ARG002
        """As its pictures are read, whatever the ratio of their sides."""
        from mlpip_bench.datasets.pictures import resized

        return resized(shape)
