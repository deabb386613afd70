"""Decoded data sets, kept in a folder so that a second run need not decode them again.

A cache file is trusted only where it was made from the same things and its arrays still have the
fingerprint that was stored with them; otherwise it is made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import platformdirs

from mlpip_bench.datasets import array_file
from mlpip_bench.datasets.base import ImageDataset
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import given_path, is_own, open_file, remove_leftovers
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
            about = array_file.read_about(opened)
        if about["key"] != key:
            _log.info("cache %s was made from other data or options: making it anew", path)
            return None
        for name, value in expected.items():
            if about[name] != value:
                raise ValueError(f"its {name} is {about[name]!r} and must be {value!r}")
        return array_file.as_dataset(path, about, lambda error: _made_anew(path, about, build, error))
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


def _made_anew(
    path: Path, about: array_file.About, build: Callable[[], ImageDataset], error: Exception
) -> array_file.Arrays:
    """The arrays of a file that turned out to be damaged."""
    _log.info("cache %s cannot be used: making it anew (%s)", path, error)
    with _locked(path):
        dataset = build()
        _write(path, about["key"], dataset)
    if dataset.fingerprint != about["fingerprint"]:
        raise UserError(
            f"data must stay as they are in the course of a run; the fingerprint that {path} promised is not "
            "that of the data. Run the same command again."
        )
    return {split: data.images for split, data in dataset.splits.items()}


def _write(path: Path, key: str, dataset: ImageDataset) -> None:
    try:
        array_file.write(path, key, dataset)
    except OSError as error:
        _log.warning("the decoded data cannot be cached in %s: %s", path.parent, error.strerror or error)
