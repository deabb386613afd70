"""Icons: what many icon sets draw of the same thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from mlpip_bench.benches.budgets import PAPER, QUICK
from mlpip_bench.benches.images import ImageClassification
from mlpip_bench.utils.settings import key_of

if TYPE_CHECKING:
    from mlpip_bench.datasets.sources import DataSource


@dataclass(frozen=True)
class IconsOptions:
    """Options of icons.

    Attributes:
        split: what is new at test: the ``classes``; or the ``drawers``, too, the icon sets that draw them.
    """

    split: Literal["classes", "drawers"] = "classes"


class Icons(ImageClassification):
    """Concepts such as an anchor, each as 20 icon sets or more draw it."""

    title = "Icons"
    needs = "icons/ as `data prepare icons` makes it; no stand-in"
    examples = ("icons5w1s", "icons5w5s", "icons20w1s")
    image_shape = (1, 28, 28)
    budgets: ClassVar = {"quick": QUICK, "paper": PAPER}
    default_methods = ("maml", "protonets", "versa")
    backbone_settings: ClassVar = {"ceil_mode": True}
    Options = IconsOptions
    options: IconsOptions

    def source(self) -> DataSource:
        """The drawings that ``data prepare icons`` makes."""
        from mlpip_bench.datasets import drawings
        from mlpip_bench.datasets.preparing.icons import PREPARER
        from mlpip_bench.datasets.sources import DataSource

        return DataSource(
            "icons",
            "Icons: things as many icon sets draw them, 28x28",
            ("icons",),
            (drawings.layout("icons"),),
            drawings.VERSION,
            lambda folder: drawings.find(folder, "icons", self.options.split),
            chosen=key_of(self.options),
            preparers={"icons": PREPARER},
        )
