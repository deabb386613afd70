"""Idx files, as MNIST, Kuzushiji and EMNIST have them: ``*-images-idx3-ubyte`` with ``*-labels-idx1-ubyte``, or gzip.

All pairs of a folder are put together, since training and test have the same classes. EMNIST's images are stored
transposed, and its ``*-mapping.txt`` says which character a label is.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mlpip_bench.datasets.adding.material import UNSPLIT, Item, Material
from mlpip_bench.datasets.archives import broken
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import open_file

_IMAGES, _LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
_MOST = 2**32  # bytes of an array


def find(folder: Path) -> Material | None:
    """The images of all idx files of a folder.

    Raises:
        UserError: labels are missing, or a file is damaged.
    """
    paths = sorted(folder.glob(f"*{_IMAGES}*")) if folder.is_dir() else []
    classes: dict[str, list[Item]] = defaultdict(list)
    sides = set()
    for path in paths:
        of_labels = path.with_name(path.name.replace(_IMAGES, _LABELS))
        if not of_labels.is_file():
            raise UserError(f"{path.name} needs its labels; {of_labels} is not there. Fetch it.")
        images, labels = read_idx(path), read_idx(of_labels)
        if images.ndim != 3 or labels.shape != images.shape[:1] or not images.size:
            raise UserError(
                f"each image must have a label; {path} is {images.shape} and {of_labels.name} {labels.shape}. Fetch "
                "both again."
            )
        images = images.transpose(0, 2, 1) if path.name.startswith("emnist-") else images
        names = _names(path)
        sides |= set(images.shape[1:])
        for row, label in enumerate(labels.tolist()):
            item = Item(f"row {row} of {path}", partial(_image, images, row))
            classes[names.get(label, f"{label:03d}")].append(item)
    return Material("idx files", {UNSPLIT: classes}, size=max(sides)) if paths else None


def _image(images: NDArray[np.uint8], row: int) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(images[row])).convert("RGB")


def _names(images: Path) -> dict[int, str]:
    """The character of each label, with its number, since some characters cannot stand in a name."""
    stem = images.name.partition(_IMAGES)[0].removesuffix("-train-").removesuffix("-test-")
    path = images.with_name(f"{stem}-mapping.txt")
    if not path.is_file():
        return {}
    rows = [line.split() for line in path.read_text(encoding="ascii", errors="replace").splitlines()]
    return {int(row[0]): f"{int(row[0]):03d} {chr(int(row[1]))}" for row in rows if len(row) > 1}


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The bytes of an idx file, in the shape that it says.

    Raises:
        UserError: it is none, or not a whole one.
    """
    what = "an idx file of bytes"
    try:
        with open_file(path) as opened, gzip.open(opened) if path.suffix == ".gz" else opened as file:
            head = file.read(4)
            if head[:3] != b"\0\0\x08" or head[3:] not in (b"\1", b"\3"):
                raise ValueError(f"it begins with {head.hex(' ')}")
            shape = struct.unpack(f">{head[3]}I", file.read(4 * head[3]))
            size = math.prod(shape)
            if size > _MOST:
                raise ValueError(f"it says that it has {size} values")
            values = file.read(size + 1)  # one more, to see that the file ends there
            if len(values) != size:
                raise ValueError("it goes on after its values" if len(values) > size else f"it has {len(values)}")
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise broken(path, what, error) from error
    return np.frombuffer(values, dtype=np.uint8).reshape(shape)
