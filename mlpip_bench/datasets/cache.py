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
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import platformdirs

from mlpip_bench.datasets.base import SPLITS, ClassImages, ImageDataset
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import remove_leftovers
from mlpip_bench.utils.locks import locked

VERSION = 1
"""Version of the cache files' format."""

_log = logging.getLogger("mlpip_bench")


def cache_folder() -> Path:
    """``MLPIP_BENCH_CACHE``, else the system's folder for caches."""
    chosen = os.environ.get("MLPIP_BENCH_CACHE")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("mlpip_bench"))


def cached(name: str, made_from: Mapping[str, object], build: Callable[[], ImageDataset]) -> ImageDataset:
    """The data set that ``build`` makes, read from the cache where it is there already.

    Args:
        name: name of the cache file; one that was made from other things is overwritten.
        made_from: all that decides the arrays, as JSON values: versions, options, source files.
        build: makes the data set.
    """
    path = cache_folder() / f"{name}.npz"
    key = hashlib.sha256(json.dumps([VERSION, made_from], sort_keys=True).encode()).hexdigest()
    dataset = _read(path, key)
    if dataset is not None:
        return dataset
    with _alone(path):
        dataset = _read(path, key)  # which another process may have made meanwhile
        if dataset is None:
            dataset = build()
            _write(path, key, dataset)
    return dataset


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """While other processes wait for the file, instead of decoding the same data beside each other."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(UserError):  # where nothing can be written nothing is cached
            stack.enter_context(locked(path.parent / "locks" / f"{path.stem}.lock", wait=True))
            remove_leftovers(path)
        yield


def _read(path: Path, key: str) -> ImageDataset | None:
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            about = json.loads(file["about"].tobytes())
            if about["key"] != key:
                _log.info("cache %s was made from other data or options: making it anew", path)
                return None
            splits = {
                split: ClassImages(
                    images=file[split],
                    counts=np.array(about["counts"][split], dtype=np.int64),
                    class_names=tuple(about["class_names"][split]),
                )
                for split in SPLITS
            }
        dataset = ImageDataset(about["name"], about["source"], splits, about["options"])
        if dataset.fingerprint != about["fingerprint"]:
            raise ValueError("the arrays do not have the fingerprint that was stored with them")
    except FileNotFoundError:
        return None
    except Exception as error:  # whatever a damaged file makes its readers raise, the remedy is the same
        _log.info("cache %s cannot be used: making it anew (%s)", path, error)
        return None
    return dataset


def _write(path: Path, key: str, dataset: ImageDataset) -> None:
    about = {
        "key": key,
        "name": dataset.name,
        "source": dataset.source,
        "options": dict(dataset.options),
        "fingerprint": dataset.fingerprint,
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
        Path(temporary).replace(path)
    except OSError as error:
        _log.warning("the decoded data cannot be cached in %s: %s", path.parent, error.strerror or error)
    else:
        temporary = None
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
