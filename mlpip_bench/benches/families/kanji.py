"""Kanji: characters as many typefaces draw them, enough of them for tasks of 1,000 classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from mlpip_bench.benches.budgets import PAPER, QUICK
from mlpip_bench.benches.images import ImageClassification
from mlpip_bench.utils.settings import key_of

if TYPE_CHECKING:
    from mlpip_bench.datasets.sources import DataSource


@dataclass(frozen=True)
class KanjiOptions:
    """Options of kanji.

    Attributes:
        split: what is new at test: the ``classes``; or the ``drawers``, too, the typefaces that draw them.
    """

    split: Literal["classes", "drawers"] = "classes"


class Kanji(ImageClassification):
    """Thousands of characters, each as 20 typefaces or more draw it."""

    title = "Kanji"
    needs = "kanji/ as `data prepare kanji` makes it; no stand-in"
    examples = ("kanji5w1s", "kanji20w1s", "kanji100w1s", "kanji1000w1s")
    image_shape = (1, 28, 28)
    budgets: ClassVar = {"quick": QUICK, "paper": PAPER}
    default_methods = ("maml", "protonets", "versa")
    backbone_settings: ClassVar = {"ceil_mode": True}
    Options = KanjiOptions
    options: KanjiOptions

    def source(self) -> DataSource:
        """The drawings that ``data prepare kanji`` makes."""
        from mlpip_bench.datasets import drawings
        from mlpip_bench.datasets.preparing.kanji import PREPARER
        from mlpip_bench.datasets.sources import DataSource

        return DataSource(
            "kanji",
            "Kanji: the characters of JIS X 0208 as many typefaces draw them, 28x28",
            ("kanji",),
            (drawings.layout("kanji"),),
            drawings.VERSION,
            lambda folder: drawings.find(folder, "kanji", self.options.split),
            chosen=key_of(self.options),
            preparers={"kanji": PREPARER},
        )
