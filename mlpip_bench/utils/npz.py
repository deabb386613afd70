"""Arrays as npz files, the same bytes for equal arrays on every system, so that a digest stands for the arrays."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray


def write_npz(out: IO[bytes], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays by name, sorted; one after the other, so that none is in memory twice."""
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, array in sorted(arrays.items()):
            info = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
            info.create_system, info.external_attr = 3, 0o644 << 16  # the same on every system
            info.file_size = array.nbytes  # which says whether the archive must be one of large files
            with archive.open(info, "w") as file:
                np.lib.format.write_array(file, np.asarray(array, order="C"), (1, 0), allow_pickle=False)
