"""Views of objects in picture files, as ``data prepare`` renders them of meshes.

Layout: ``<category>/<object>/00.png`` to ``35.png``, view ``i`` from an azimuth of ``10 i`` degrees. A view is a square
picture of any size; it is laid on white where it is transparent, made gray, then resized to 32x32 with Lanczos.
Objects without any view, which nobody has rendered, are left out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mlpip_bench.datasets.base import ImageDataset
from mlpip_bench.datasets.reading import Found, Sizes, assemble, decode, file_picture, listed
from mlpip_bench.datasets.views import SIDE, VIEWS, view_dataset
from mlpip_bench.utils.errors import UserError

_NAMES = tuple(f"{view:02d}.png" for view in range(VIEWS))

_log = logging.getLogger("mlpip_bench")


def find(folder: Path, name: str, categories: Iterable[str], complete: Sizes) -> Found | None:
    """Rendered views in a folder.

    Args:
        folder: has a folder for each category.
        name: of the data set.
        categories: names of the folders that are looked into.
        complete: the sizes of the complete set.

    Raises:
        UserError: an object has some of its views only, or others too.
    """
    below = [
        path
        for category in categories
        if (folder / category).is_dir()
        for path in sorted((folder / category).iterdir())
        if path.is_dir() and not path.name.startswith(".")
    ]
    objects = {f"{path.parent.name}/{path.name}": path for path in below if _is_rendered(path)}
    if not objects:
        return None
    if len(objects) < len(below):
        _log.info("%d objects in %s have no view: they are left out", len(below) - len(objects), folder)
    files = tuple(path / file for path in objects.values() for file in _NAMES)

    def read() -> ImageDataset:
        return _read(folder, name, objects, complete)

    return Found("rendered views", folder, files, {"views": name}, complete, read)


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


def _read(folder: Path, name: str, objects: Mapping[str, Path], complete: Sizes) -> ImageDataset:
    if len(objects) < 3:
        raise UserError(f"each split needs an object; {folder} has {len(objects)} objects with views. Render more.")
    _log.info("decoding %d views of %d objects", VIEWS * len(objects), len(objects))
    images = np.empty((len(objects), VIEWS, SIDE, SIDE), dtype=np.uint8)
    for row, path in enumerate(objects.values()):
        for view, file in enumerate(_NAMES):
            images[row, view] = _view(path / file)
    made = view_dataset(name, "real", images, tuple(objects), {})
    return assemble(name, made.splits, {"size": SIDE}, complete, may_repeat=True)


def _view(path: Path) -> NDArray[np.uint8]:
    """A view as uint8 ``[SIDE, SIDE]``."""
    image = decode(file_picture(path), "L")
    if image.width != image.height:
        raise UserError(f"a view must be square; {path} is {image.width}x{image.height}. Render it again.")
    if image.size != (SIDE, SIDE):
        image = image.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    return np.asarray(image)
