"""Decoded data sets, kept in a folder so that a second run need not decode them again.

A cache file is trusted only where it was made from the same things and its arrays still have the
fingerprint that was stored with them; otherwise it is made anew.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from numpy.typing import NDArray

from mlpip_bench.datasets.base import SPLITS, ClassImages, ImageDataset, fingerprint
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import given_path, is_own, mode_of_new_files, open_file, remove_leftovers
from mlpip_bench.utils.locks import locked

VERSION = 2
"""Version of the cache files' format."""

_log = logging.getLogger("mlpip_bench")


def cache_folder() -> Path:
    """``MLPIP_BENCH_CACHE``, else the system's folder for caches; where that is nowhere, what cannot be written."""
    if chosen := os.environ.get("MLPIP_BENCH_CACHE"):
        return given_path(chosen)
    try:
        folder = Path(platformdirs.user_cache_dir("mlpip_bench")).expanduser()
    except RuntimeError:  # a user without a home folder, as in containers that are run under a number
        folder = Path("~")
    return folder if folder.is_absolute() else Path(os.devnull, "mlpip_bench")


def cached(
    name: str,
    made_from: Mapping[str, object],
    build: Callable[[], ImageDataset],
    *,
    expected: Mapping[str, str] | None = None,
) -> ImageDataset:
    """The data set that ``build`` makes, read from the cache where it is there already.

    Args:
        name: name of the cache file; one that was made from other things is overwritten.
        made_from: all that decides the arrays, as JSON values: versions, options, source files.
        build: makes the data set.
        expected: what is known of the data set beforehand, of its name, source and fingerprint; a file that says
            otherwise is not believed.

    Raises:
        UserError: the file belongs to another user.
    """
    path = cache_folder() / f"{name}.npz"
    key = hashlib.sha256(json.dumps([VERSION, made_from], sort_keys=True).encode()).hexdigest()
    expected = expected or {}
    dataset = _stored(path, key, build, expected)
    if dataset is not None:
        return dataset
    with _locked(path):
        dataset = _stored(path, key, build, expected)  # which another process may have made meanwhile
        if dataset is None:
            dataset = build()
            _write(path, key, dataset)
    return dataset


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """While other processes wait for the file, instead of decoding the same data at the same time."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(UserError):  # where nothing can be written nothing is cached
            stack.enter_context(locked(path.parent / "locks" / f"{path.stem}.lock", wait=True))
            remove_leftovers(path)
        yield


def _stored(
    path: Path, key: str, build: Callable[[], ImageDataset], expected: Mapping[str, str]
) -> ImageDataset | None:
    """What is stored, whose arrays are read and verified when the first of them is asked for."""
    try:
        with open_file(path) as opened:
            _check_owner(path, os.fstat(opened.fileno()))
            with np.load(opened, allow_pickle=False) as file:
                about = json.loads(file["about"].tobytes())
        if about["key"] != key:
            _log.info("cache %s was made from other data or options: making it anew", path)
            return None
        for name, value in expected.items():
            if about[name] != value:
                raise ValueError(f"its {name} is {about[name]!r} and must be {value!r}")
        arrays = _Arrays(path, about, build)
        splits = {
            split: ClassImages(
                functools.partial(arrays.read, split),
                np.array(about["counts"][split], dtype=np.int64),
                tuple(about["class_names"][split]),
                tuple(about["image_shape"]),
            )
            for split in SPLITS
        }
        return ImageDataset(about["name"], about["source"], splits, about["options"], about["fingerprint"])
    except FileNotFoundError:
        return None
    except UserError:
        raise
    except Exception as error:  # whatever a damaged file makes its readers raise, the remedy is the same
        _log.info("cache %s cannot be used: making it anew (%s)", path, error)
        return None


def _check_owner(path: Path, status: os.stat_result) -> None:
    """Refuse a file that somebody else has put there."""
    if not is_own(status):
        raise UserError(
            f"a cache file must be one's own; {path} belongs to user {status.st_uid}. Name another folder for the "
            "cache with MLPIP_BENCH_CACHE."
        )


class _Arrays:
    """The arrays of a cache file, read at once; made anew where the file turns out to be damaged."""

    def __init__(self, path: Path, about: Mapping[str, Any], build: Callable[[], ImageDataset]) -> None:
        self._path, self._about, self._build = path, about, build
        self._arrays: dict[str, NDArray[np.uint8]] = {}

    def read(self, split: str) -> NDArray[np.uint8]:
        """The images of a split."""
        if not self._arrays:
            self._arrays = self._read_file() or self._made_anew()
        return self._arrays.pop(split)  # the caller keeps it

    def _read_file(self) -> dict[str, NDArray[np.uint8]]:
        about = self._about
        try:
            with open_file(self._path) as opened, np.load(opened, allow_pickle=False) as file:
                arrays: dict[str, NDArray[np.uint8]] = {split: file[split] for split in SPLITS}
            splits = {
                split: ClassImages(array, np.array(about["counts"][split]), tuple(about["class_names"][split]))
                for split, array in arrays.items()
            }
            if fingerprint(about["name"], splits, about["options"]) != about["fingerprint"]:
                raise ValueError("the arrays do not have the fingerprint that was stored with them")
        except Exception as error:  # as above
            _log.info("cache %s cannot be used: making it anew (%s)", self._path, error)
            return {}
        return arrays

    def _made_anew(self) -> dict[str, NDArray[np.uint8]]:
        with _locked(self._path):
            dataset = self._build()
            _write(self._path, self._about["key"], dataset)
        if dataset.fingerprint != self._about["fingerprint"]:
            raise UserError(
                f"data must stay as they are in the course of a run; the fingerprint that {self._path} promised is not "
                "that of the data. Run the same command again."
            )
        return {split: data.images for split, data in dataset.splits.items()}


def _write(path: Path, key: str, dataset: ImageDataset) -> None:
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
        # Not results.write_atomically: that wants all bytes in memory, and there may be 1.3 GB of them.
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
    except OSError as error:
        _log.warning("the decoded data cannot be cached in %s: %s", path.parent, error.strerror or error)
    else:
        temporary = None
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
