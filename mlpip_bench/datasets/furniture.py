"""Furniture: rendered views of human-made meshes of Sweet Home 3D's catalogs, in 12 categories.

Layout: ``<category>/<object>/00.png`` to ``35.png``, as :mod:`~mlpip_bench.datasets.rendered` reads it; ``data prepare
furniture`` makes them of Debian's package ``sweethome3d-furniture``.
"""

from __future__ import annotations

from pathlib import Path

from mlpip_bench.datasets import rendered
from mlpip_bench.datasets.reading import Found, Sizes
from mlpip_bench.datasets.views import VIEWS

VERSION = 1
"""Version of this reader: change it whenever the arrays that it makes change."""

FOLDERS = ("furniture",)
LAYOUTS = ("<category>/<object>/{00..35}.png, which `data prepare furniture` renders: Sweet Home 3D's furniture",)
COMPLETE: Sizes = {"train": (574, VIEWS), "validation": (82, VIEWS), "test": (164, VIEWS)}
"""Of the 820 objects of version 1.8."""

CATEGORIES = (
    "bathroom",
    "bedroom",
    "characters",
    "doors-and-windows",
    "exterior",
    "kitchen",
    "lights",
    "living-room",
    "miscellaneous",
    "office",
    "staircases",
    "vehicles",
)


def find(folder: Path) -> Found | None:
    """Rendered views of furniture in a folder.

    Raises:
        UserError: an object has some of its views only, or others too.
    """
    return rendered.find(folder, "furniture", CATEGORIES, COMPLETE)
