"""ShapeNet: rendered views of 37,108 objects of 12 categories (ShapeNetCore v2, Chang et al. 2015), as the paper's.

Layout: ``<synset>/<object>/00.png`` to ``35.png``, view ``i`` from an azimuth of ``10 i`` degrees. A view is a square
picture of any size; it is laid on white where it is transparent, made gray, then resized to 32x32 with Lanczos.
Synsets that are not among the paper's are left out, and so are objects without any view, which nobody has rendered.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mlpip_bench.datasets.base import ImageDataset
from mlpip_bench.datasets.reading import Found, Sizes, assemble, decode, file_picture, listed
from mlpip_bench.datasets.views import SIDE, VIEWS, view_dataset
from mlpip_bench.utils.errors import UserError

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

_NAMES = tuple(f"{view:02d}.png" for view in range(VIEWS))

_log = logging.getLogger("mlpip_bench")


def find(folder: Path) -> Found | None:
    """Rendered views of ShapeNet in a folder.

    Raises:
        UserError: an object has some of its views only, or others too.
    """
    below = [
        path
        for synset in SYNSETS
        if (folder / synset).is_dir()
        for path in sorted((folder / synset).iterdir())
        if path.is_dir() and not path.name.startswith(".")
    ]
    objects = {f"{path.parent.name}/{path.name}": path for path in below if _is_rendered(path)}
    if not objects:
        return None
    if len(objects) < len(below):
        _log.info("%d objects in %s have no view: they are left out", len(below) - len(objects), folder)
    files = tuple(path / name for path in objects.values() for name in _NAMES)
    return Found("rendered views", folder, files, {"views": "shapenet"}, COMPLETE, lambda: _read(folder, objects))


def _is_rendered(folder: Path) -> bool:
    names = {p.name for p in folder.iterdir() if p.name.lower().endswith(".png") and not p.name.startswith(".")}
    if names and names != set(_NAMES):
        missing = sorted(set(_NAMES) - names)
        what = f"lacks {listed(missing)}" if missing else f"also has {listed(sorted(names - set(_NAMES)))}"
        raise UserError(
            f"an object must have the views {_NAMES[0]} to {_NAMES[-1]}, in steps of {360 // VIEWS} degrees, and no "
            f"other picture; {folder} {what}. Render it again, or move it away."
        )
    return bool(names)


def _read(folder: Path, objects: Mapping[str, Path]) -> ImageDataset:
    if len(objects) < 3:
        raise UserError(f"each split needs an object; {folder} has {len(objects)} objects with views. Render more.")
    _log.info("decoding %d views of %d objects", VIEWS * len(objects), len(objects))
    images = np.empty((len(objects), VIEWS, SIDE, SIDE), dtype=np.uint8)
    for row, path in enumerate(objects.values()):
        for view, name in enumerate(_NAMES):
            images[row, view] = _view(path / name)
    made = view_dataset("shapenet", "real", images, tuple(objects), {})
    return assemble("shapenet", made.splits, {"size": SIDE}, COMPLETE, may_repeat=True)


def _view(path: Path) -> NDArray[np.uint8]:
    """A view as uint8 ``[SIDE, SIDE]``."""
    image = decode(file_picture(path), "L")
    if image.width != image.height:
        raise UserError(f"a view must be square; {path} is {image.width}x{image.height}. Render it again.")
    if image.size != (SIDE, SIDE):
        image = image.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    return np.asarray(image)
