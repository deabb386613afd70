"""ShapeNet: rendered views of 37,108 objects of 12 categories (ShapeNetCore v2, Chang et al. 2015), as the paper's.

Layout: ``<synset>/<object>/00.png`` to ``35.png``, as :mod:`~mlpip_bench.datasets.rendered` reads it. Synsets that are
not among the paper's are left out.
"""

from __future__ import annotations

from pathlib import Path

from mlpip_bench.datasets import rendered
from mlpip_bench.datasets.reading import Found, Sizes
from mlpip_bench.datasets.views import VIEWS

VERSION = 2
"""Version of this reader: change it whenever the arrays that it makes change."""

FOLDERS = ("shapenet",)
LAYOUTS = ("<synset>/<object>/{00..35}.png, rendered every 10 degrees of azimuth: ShapeNet",)
COMPLETE: Sizes = {"train": (25976, VIEWS), "validation": (3711, VIEWS), "test": (7421, VIEWS)}
"""Of the paper's 37,108 objects; its own shares are 25,975, 3,710 and 7,423."""

SYNSETS = {
    "02691156": "airplane",
    "02828884": "bench",
    "02933112": "cabinet",
    "02958343": "car",
    "02992529": "phone",
    "03001627": "chair",
    "03211117": "display",
    "03636649": "lamp",
    "03691459": "speaker",
    "04256520": "sofa",
    "04379243": "table",
    "04530566": "boat",
}
"""The paper's categories (appendix E)."""


def find(folder: Path) -> Found | None:
    """Rendered views of ShapeNet in a folder.

    Raises:
        UserError: an object has some of its views only, or others too.
    """
    return rendered.find(folder, "shapenet", SYNSETS, COMPLETE)
