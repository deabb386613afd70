"""Pickles of each split: arrays with labels (CIFAR-FS, FC100, miniImageNet), or encoded pictures (tieredImageNet).

* ``FC100_train.pickle``, ``CIFAR_FS_val.pickle``, ...: a dict of ``data`` (or ``image_data``), uint8
  ``[image, height, width, 3]``, with ``labels``, one an image, or ``class_dict``, the rows of each class;
* ``train_images_png.pkl`` with ``train_labels.pkl``, ...: a list of PNG files, and a dict with ``label_specific``.

They are read by a reader that knows arrays and plain containers only, and runs no code.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mlpip_bench.datasets.adding.material import Classes, Item, Material, encoded
from mlpip_bench.datasets.array_rows import (
    described,
    one_per_split,
    rows_by_label,
    rows_in_dict,
    splits_of_names,
    text,
)
from mlpip_bench.datasets.reading import Picture
from mlpip_bench.datasets.unpickling import load_plain_pickle
from mlpip_bench.utils.errors import UserError

_MOST = 2**34  # bytes of a file; tieredImageNet's encoded training pictures have 6.5 GB


def find(folder: Path) -> Material | None:
    """The classes of the pickles of a folder.

    Raises:
        UserError: they are not of these forms, or one split has none.
    """
    paths = [path for path in sorted(folder.iterdir()) if path.suffix in (".pkl", ".pickle")] if folder.is_dir() else []
    labels = [path for path in paths if "labels" in path.stem.lower()]
    data = one_per_split(folder, splits_of_names([path for path in paths if path not in labels]), "pickle")
    if not data:
        return None
    if labels:
        of_labels = one_per_split(folder, splits_of_names(labels), "pickle of labels")
        splits = {split: _encoded(split, path, of_labels[split]) for split, path in data.items()}
        return Material("pickles of encoded pictures", splits)
    sizes: set[int] = set()
    splits = {split: _arrays(split, path, sizes) for split, path in data.items()}
    return Material("pickles of arrays", splits, size=max(sizes))


def _named(path: Path) -> dict[str, Any]:
    content = load_plain_pickle(path, _MOST)
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold a dict; it holds {described(content)}.")
    return {text(name): value for name, value in content.items()}


def _arrays(split: str, path: Path, sizes: set[int]) -> Classes:
    content = _named(path)
    images = content.get("image_data", content.get("data"))
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[3:] != (3,) or not images.size:
        raise UserError(
            f"{path} must hold uint8 images [image, height, width, 3] as data or image_data; it holds "
            f"{described(content if images is None else images)}."
        )
    sizes.update(images.shape[1:3])
    if "class_dict" in content:
        rows_of = rows_in_dict(path, content["class_dict"], len(images))
    else:
        rows_of = rows_by_label(path, split, content.get("labels"), len(images))
    return _items(rows_of, [Item(f"row {row} of {path}", partial(_image, images, row)) for row in range(len(images))])


def _image(images: NDArray[np.uint8], row: int) -> Image.Image:
    return Image.fromarray(images[row])


def _encoded(split: str, path: Path, of_labels: Path) -> Classes:
    pictures, labels = load_plain_pickle(path, _MOST), _named(of_labels)
    if not isinstance(pictures, list | tuple) or not all(isinstance(each, bytes | np.ndarray) for each in pictures):
        raise UserError(f"{path} must hold a list of encoded pictures; it holds {described(pictures)}.")
    rows_of = rows_by_label(of_labels, split, labels.get("label_specific", labels.get("labels")), len(pictures))
    return _items(
        rows_of,
        [encoded(Picture(f"row {row} of {path}", partial(bytes, each))) for row, each in enumerate(pictures)],
    )


def _items(rows_of: dict[str, NDArray[np.int64]], items: list[Item]) -> Classes:
    filled = {name: rows for name, rows in rows_of.items() if len(rows)}
    if beyond := [name for name, rows in filled.items() if rows.min() < 0 or rows.max() >= len(items)]:
        raise UserError(f"class_dict must list rows of image_data; {beyond[0]} has one beyond its {len(items)}.")
    return {name: [items[row] for row in rows] for name, rows in filled.items()}
