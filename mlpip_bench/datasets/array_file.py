"""A decoded data set in one npz file: the arrays of its splits, and what they are."""

from __future__ import annotations

import contextlib
import functools
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from mlpip_bench.datasets.base import SPLITS, ClassImages, ImageDataset, fingerprint
from mlpip_bench.utils.files import mode_of_new_files, open_file

About = Mapping[str, Any]
"""What a file says of its arrays, as JSON values; ``key`` is its writer's own mark."""
Arrays = dict[str, NDArray[Any]]
"""By split."""


def read_about(opened: IO[bytes]) -> About:
    """What an open file says of its arrays, which are not read.

    Raises:
        Exception: it is damaged; of what kind depends on the damage.
    """
    with np.load(opened, allow_pickle=False) as file:
        about: About = json.loads(file["about"].tobytes())
    return about


def as_dataset(path: Path, about: About, damaged: Callable[[Exception], Arrays]) -> ImageDataset:
    """The data set of a file, whose arrays are read and verified when the first of them is asked for.

    Args:
        path: the file.
        about: what it says.
        damaged: gives the arrays where they cannot be read or have another fingerprint, or raises.

    Raises:
        Exception: what it says is not of the form.
    """
    arrays: Arrays = {}

    def read(split: str) -> NDArray[Any]:
        if not arrays:
            try:
                arrays.update(_verified(path, about))
            except Exception as error:  # whatever a damaged file makes its readers raise
                arrays.update(damaged(error))
        return arrays.pop(split)  # the caller keeps it

    splits = {
        split: ClassImages(
            functools.partial(read, split),
            np.array(about["counts"][split], dtype=np.int64),
            tuple(about["class_names"][split]),
            tuple(about["image_shape"]),
        )
        for split in SPLITS
    }
    return ImageDataset(about["name"], about["source"], splits, about["options"], about["fingerprint"])


def _verified(path: Path, about: About) -> Arrays:
    with open_file(path) as opened, np.load(opened, allow_pickle=False) as file:
        arrays: Arrays = {split: file[split] for split in SPLITS}
    splits = {
        split: ClassImages(array, np.array(about["counts"][split]), tuple(about["class_names"][split]))
        for split, array in arrays.items()
    }
    if fingerprint(about["name"], splits, about["options"]) != about["fingerprint"]:
        raise ValueError("the arrays do not have the fingerprint that was stored with them")
    return arrays


def write(path: Path, key: str, dataset: ImageDataset) -> None:
    """Write a data set, whole or not at all.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    about = {
        "key": key,
        "name": dataset.name,
        "source": dataset.source,
        "options": dict(dataset.options),
        "fingerprint": dataset.fingerprint,
        "image_shape": dataset.image_shape,
        "counts": {split: data.counts.tolist() for split, data in dataset.splits.items()},
        "class_names": {split: data.class_names for split, data in dataset.splits.items()},
    }
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Not files.write_atomically: that wants all bytes in memory, and there may be 1.3 GB of them.
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = file.name
            np.savez(
                file,
                about=np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
                train=dataset.splits["train"].images,
                validation=dataset.splits["validation"].images,
                test=dataset.splits["test"].images,
            )
        Path(temporary).chmod(mode_of_new_files())
        Path(temporary).replace(path)
        temporary = None
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
