"""Drawings of many classes by many drawers, as ``data prepare`` makes them: ink at 255, 28x28.

Layout: ``drawings.npz`` with ``images`` uint8 ``[drawing, 28, 28]``, ``classes`` and ``drawers``, the number of each
drawing's class and drawer, and ``about``, JSON in UTF-8: ``name`` and ``made_from`` of the set, and ``classes`` and
``drawers`` by number, each ``[name, split]``. The split of a class is one of the three, that of a drawer ``train`` or
``test``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mlpip_bench.datasets.archives import broken
from mlpip_bench.datasets.arrays import read_npz
from mlpip_bench.datasets.base import SPLITS, ClassImages, ImageDataset
from mlpip_bench.datasets.reading import Found
from mlpip_bench.utils.errors import UserError

VERSION = 1
"""Version of this reader: change it whenever the arrays that it makes change."""

FILE = "drawings.npz"
SIDE = 28
LEAST = 20
"""Drawings that a class must have: a shot of 5 and the 15 queries of a test task."""
LEAST_BY_DRAWERS = 16
"""The same of a class whose drawers are divided, too: a shot of 1 and 15 queries."""

SplitBy = Literal["classes", "drawers"]
"""What is new in the test split: its classes, drawn by all, or also those who draw them."""

_ARRAYS = ("images", "classes", "drawers", "about")
_MOST = 2**29  # bytes; the kanji of all fonts of Debian have half of it


def layout(name: str) -> str:
    """What a folder of drawings holds, with the command that makes it."""
    return f"{FILE}, which `data prepare {name}` makes"


def find(folder: Path, name: str, split: SplitBy) -> Found | None:
    """The drawings of a folder.

    Args:
        folder: the folder.
        name: of the data set.
        split: what is new in the test split.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    return Found("npz of drawings", folder, (path,), {"split": split}, {}, lambda: _read(path, name, split))


def _read(path: Path, name: str, split: SplitBy) -> ImageDataset:
    images, classes, drawers, text = read_npz(path, _ARRAYS, _MOST).values()
    try:
        about = json.loads(text.tobytes())
        class_names, class_splits = _named(about["classes"], SPLITS)
        _, drawer_splits = _named(about["drawers"], ("train", "test"))
        if about["name"] != name:
            raise ValueError(f"it has the drawings of {about['name']!r}, not of {name!r}")
        if images.dtype != np.uint8 or images.shape[1:] != (SIDE, SIDE):
            raise ValueError(f"its images are {images.dtype} {images.shape}, not uint8 [drawing, {SIDE}, {SIDE}]")
        for numbers, known in ((classes, class_splits), (drawers, drawer_splits)):
            if numbers.shape != (len(images),) or numbers.dtype.kind not in "iu":
                raise ValueError(f"it has {len(images)} images, and numbers {numbers.dtype} {numbers.shape} for them")
            if len(numbers) and not (numbers.min() >= 0 and numbers.max() < len(known)):
                raise ValueError(f"it has a number beyond the {len(known)} names")
        made_from = str(about["made_from"])
    except (ValueError, KeyError, TypeError) as error:
        raise broken(path, f"drawings as `data prepare {name}` makes them", error) from error
    splits, least = {}, LEAST if split == "classes" else LEAST_BY_DRAWERS
    for part in SPLITS:
        chosen = class_splits[classes] == part
        if split == "drawers":
            chosen &= drawer_splits[drawers] == ("test" if part == "test" else "train")
        splits[part] = _classes(images, classes, drawers, np.flatnonzero(chosen), class_names, least)
        if not splits[part].num_classes:
            raise UserError(
                f"each split needs a class with {least} drawings; in {path} the {part} split by {split} has none. "
                f"Make it again of more: data prepare {name}."
            )
    return ImageDataset(name, "real", splits, {"split": split, "size": SIDE, "made_from": made_from})


def _named(entries: Any, known: tuple[str, ...]) -> tuple[list[str], NDArray[np.str_]]:
    """Names, and the split of each."""
    names, splits = [str(name) for name, _ in entries], [str(split) for _, split in entries]
    if len(set(names)) != len(names) or not set(splits) <= set(known):
        raise ValueError("it has a name twice, or an unknown split")
    return names, np.array(splits, dtype=np.str_)


def _classes(
    images: NDArray[np.uint8],
    classes: NDArray[np.int64],
    drawers: NDArray[np.int64],
    rows: NDArray[np.int64],
    names: list[str],
    least: int,
) -> ClassImages:
    """The classes of some rows that have enough of them, each ordered by drawer."""
    counts = np.bincount(classes[rows], minlength=len(names))
    rows = rows[counts[classes[rows]] >= least]
    rows = rows[np.lexsort((drawers[rows], classes[rows]))]
    kept = np.flatnonzero(counts >= least)
    return ClassImages(images[rows][:, None], counts[kept].astype(np.int64), tuple(names[i] for i in kept))
