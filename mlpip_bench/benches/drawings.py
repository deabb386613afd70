"""Families of things that many designers draw, as ``data prepare`` makes them of public packages."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from mlpip_bench.benches.budgets import PAPER, QUICK
from mlpip_bench.benches.images import ImageClassification
from mlpip_bench.utils.settings import key_of

if TYPE_CHECKING:
    from mlpip_bench.benches.family import TaskSource
    from mlpip_bench.datasets.pictures import PictureForm
    from mlpip_bench.datasets.preparing.preparer import Preparer
    from mlpip_bench.datasets.sources import DataSource


@dataclass(frozen=True)
class DrawingsOptions:
    """Options of drawings.

    Attributes:
        split: what is new at test: the ``classes``; or the ``drawers``, too, the sets or typefaces that draw them.
    """

    split: Literal["classes", "drawers"] = "classes"


class Drawings(ImageClassification):
    """Classes of 20 drawings or more, 28x28 and gray, each by another designer.

    Attributes:
        key: of the data set, its folder and its recipe.
        described: the data set in a line.
    """

    key: ClassVar[str]
    described: ClassVar[str]
    image_shape = (1, 28, 28)
    budgets: ClassVar = {"quick": QUICK, "paper": PAPER}
    backbone_settings: ClassVar = {"ceil_mode": True}
    Options = DrawingsOptions
    options: DrawingsOptions

    @abc.abstractmethod
    def preparer(self) -> Preparer:
        """What makes them."""

    def source(self) -> DataSource:
        """The drawings that ``data prepare`` makes."""
        from mlpip_bench.datasets import drawings
        from mlpip_bench.datasets.sources import DataSource

        return DataSource(
            self.key,
            self.described,
            (self.key,),
            (drawings.layout(self.key),),
            drawings.VERSION,
            lambda folder: drawings.find(folder, self.key, self.options.split),
            chosen=key_of(self.options),
            preparers={self.key: self.preparer()},
        )

    def picture_form(self, data: TaskSource, shape: tuple[int, int, int]) -> PictureForm:  # noqa: ARG002
        """Ink is bright."""
        from mlpip_bench.datasets.pictures import drawings

        return drawings(shape)
