"""Omniglot: handwritten characters (paper, section 5.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mlpip_bench.benches.budgets import PAPER, QUICK
from mlpip_bench.benches.images import ImageClassification
from mlpip_bench.utils.settings import key_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mlpip_bench.benches.family import TaskSource
    from mlpip_bench.datasets.base import ClassImages
    from mlpip_bench.datasets.pictures import PictureForm
    from mlpip_bench.datasets.sources import DataSource


@dataclass(frozen=True)
class OmniglotOptions:
    """Options of Omniglot.

    Attributes:
        split: ``random``, by character, or ``vinyals``, by alphabet.
        resize: ``nearest``, which most published results saw, or ``antialias``.
        rotations: whether quarter turns of a character are classes of their own: ``on``; ``separate``, but never two of
            one character in a task; ``off``.
    """

    split: Literal["random", "vinyals"] = "random"
    resize: Literal["nearest", "antialias"] = "nearest"
    rotations: Literal["on", "separate", "off"] = "on"


class Omniglot(ImageClassification):
    """1623 characters, 20 drawings each, and their quarter turns as classes of their own."""

    title = "Omniglot"
    needs = "omniglot/ with the npz arrays, the official zip archives or their folders; else the stand-in glyphs"
    examples = ("omni5w1s", "omni5w5s", "omni20w1s", "omni20w5s")
    image_shape = (1, 28, 28)
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

        split, resize = self.options.split, self.options.resize
        rotations = 1 if self.options.rotations == "off" else omniglot.ROTATIONS
        unturned = {"rotations": "off"} if rotations == 1 else {}
        return DataSource(
            "omni",
            "Omniglot: 1623 handwritten characters, 20 drawings each, 28x28",
            omniglot.FOLDERS,
            omniglot.LAYOUTS,
            omniglot.VERSION,
            lambda folder: omniglot.find(folder, split, resize, rotations),
            StandIn(
                "-".join(["glyphs", *unturned]),
                "procedural",
                {"generator": "glyphs", "version": glyphs.VERSION, **unturned},
                lambda _step: glyphs.build_glyphs(rotations),
                fingerprint="" if unturned else glyphs.FINGERPRINT,
            ),
            {name: value for name, value in key_of(self.options).items() if name != "rotations"},
            license="MIT",
            citation="Lake, Salakhutdinov & Tenenbaum 2015, Human-level concept learning through probabilistic program "
            "induction (Science 350)",
        )

    @property
    def task_options(self) -> Mapping[str, Any]:
        """Whether rotations of one character are kept from meeting in a task."""
        return {"rotations": "separate"} if self.options.rotations == "separate" else {}

    def groups(self, classes: ClassImages) -> NDArray[np.int64] | None:
        """The character of each class, where its rotations may not meet."""
        if self.options.rotations != "separate":
            return None
        import numpy as np

        return np.unique([name.partition("@")[0] for name in classes.class_names], return_inverse=True)[1]

    def picture_form(self, data: TaskSource, shape: tuple[int, int, int]) -> PictureForm:  # noqa: ARG002
        """As its drawings are read."""
        from mlpip_bench.datasets import omniglot

        return omniglot.picture_form(data.options.get("resize", self.options.resize))
