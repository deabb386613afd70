"""COIL-100: real objects on a turntable, a view every 5 degrees (Nene, Nayar, Murase 1996); for research only.

Every second view is used, gray and 32x32, of the 88 objects whose 36 views are all there.

Layout: ``coil100_32.npz`` with ``images`` uint8 ``[object, 36, 32, 32]``, ``objects`` (numbers of the objects) and
``azimuth_degrees`` (0, 10, ... 350).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mlpip_bench.datasets.arrays import read_npz
from mlpip_bench.datasets.base import ImageDataset
from mlpip_bench.datasets.reading import Found, Sizes, assemble
from mlpip_bench.datasets.views import SIDE, VIEWS, view_dataset
from mlpip_bench.utils.errors import UserError

VERSION = 1
"""Version of this reader: change it whenever the arrays that it makes change."""

FOLDERS = ("coil100", "coil-100")
LAYOUTS = ("coil100_32.npz, arrays images [objects, 36, 32, 32], objects, azimuth_degrees: COIL-100",)
COMPLETE: Sizes = {"train": (62, VIEWS), "validation": (9, VIEWS), "test": (17, VIEWS)}

_FILE = "coil100_32.npz"
_AGAIN = "Fetch it again, or move it away."
_ARRAYS = ("images", "objects", "azimuth_degrees")
_MOST = 2**26  # bytes; the complete images have 4 MB


def find(folder: Path) -> Found | None:
    """COIL-100 in a folder."""
    path = folder / _FILE
    if not path.is_file():
        return None
    return Found("npz arrays", folder, (path,), {"views": "coil100"}, COMPLETE, lambda: _read(path))


def _read(path: Path) -> ImageDataset:
    images, objects, azimuths = read_npz(path, _ARRAYS, _MOST).values()
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != (VIEWS, SIDE, SIDE):
        raise UserError(
            f"`images` must be uint8 [object, {VIEWS}, {SIDE}, {SIDE}]; in {path} it is {images.dtype} {images.shape}. "
            f"{_AGAIN}"
        )
    if not np.array_equal(azimuths, np.arange(0, 360, 360 // VIEWS)):
        raise UserError(
            f"the views of an object must be in steps of {360 // VIEWS} degrees, from 0 on; `azimuth_degrees` in "
            f"{path} has {azimuths.ravel().tolist()}. {_AGAIN}"
        )
    if objects.shape != (len(images),) or objects.dtype.kind not in "iu" or len(np.unique(objects)) != len(images):
        raise UserError(
            f"`objects` must be one number for each of the {len(images)} objects, no two the same; in {path} it is "
            f"{objects.dtype} {objects.shape} with {len(np.unique(objects))} values. {_AGAIN}"
        )
    if len(images) < 3:
        raise UserError(f"each split needs an object; {path} has {len(images)} objects. {_AGAIN}")
    made = view_dataset("coil100", "real", images, [f"obj{number}" for number in objects], {})
    return assemble("coil100", made.splits, {"size": SIDE}, COMPLETE, may_repeat=True)
