"""Omniglot: handwritten characters (paper, section 5.2)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from mlpip_bench.benches.budgets import PAPER, QUICK
from mlpip_bench.benches.images import ImageClassification
from mlpip_bench.utils.settings import key_of

if TYPE_CHECKING:
    from mlpip_bench.datasets.sources import DataSource


@dataclass(frozen=True)
class OmniglotOptions:
    """Options of Omniglot.

    Attributes:
        split: ``random``, by character, or ``vinyals``, by alphabet.
        resize: ``nearest``, which most published results saw, or ``antialias``.
    """

    split: Literal["random", "vinyals"] = "random"
    resize: Literal["nearest", "antialias"] = "nearest"


class Omniglot(ImageClassification):
    """1623 characters, 20 drawings each, and their quarter turns as classes of their own."""

    title = "Omniglot"
    needs = "omniglot/ with the npz arrays, the official zip archives or their folders; else the stand-in glyphs"
    examples = ("omni5w1s", "omni5w5s", "omni20w1s", "omni20w5s")
    budgets: ClassVar = {"quick": QUICK, "paper": PAPER}
    default_methods = ("maml", "protonets", "versa")
    backbone_settings: ClassVar = {"ceil_mode": True, "dropout": 0.1}
    Options = OmniglotOptions
    options: OmniglotOptions

    def source(self) -> DataSource:
        """Omniglot, else drawn glyphs."""
        from mlpip_bench.datasets import omniglot
        from mlpip_bench.datasets.procedural import glyphs
        from mlpip_bench.datasets.sources import DataSource, StandIn

        chosen = dataclasses.asdict(self.options)
        return DataSource(
            "omni",
            "Omniglot: 1623 handwritten characters, 20 drawings each, 28x28",
            omniglot.FOLDERS,
            omniglot.LAYOUTS,
            omniglot.VERSION,
            lambda folder: omniglot.find(folder, **chosen),
            StandIn(
                "glyphs",
                "procedural",
                {"generator": "glyphs", "version": glyphs.VERSION},
                lambda _step: glyphs.build_glyphs(),
                fingerprint=glyphs.FINGERPRINT,
            ),
            key_of(self.options),
        )
