"""MNIST's 10,000 test digits (LeCun et al. 1998), and scikit-learn's digits, which stand in for them.

A digit is 28x28, its strokes at 255. The three splits have the same ten classes and no image in common: 60, 10 and 30 %
of each digit's images, drawn once and for all.

Layouts: ``t10k-images-idx3-ubyte`` and ``t10k-labels-idx1-ubyte``, each with ``.gz`` or without, in the folder or in
its ``raw``, where torchvision puts them.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mlpip_bench.datasets.archives import broken
from mlpip_bench.datasets.base import SPLITS, ClassImages, ImageDataset
from mlpip_bench.datasets.reading import Found
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import open_regular
from mlpip_bench.utils.provenance import Source

VERSION = 1
"""Version of this reader and of its stand-in: change it whenever the arrays that they make change."""

FOLDERS = ("mnist",)
LAYOUTS = ("t10k-images-idx3-ubyte.gz + t10k-labels-idx1-ubyte.gz, or without .gz, or both in raw/",)
SIDE = 28

_DIGITS = 10
_IMAGES = 10_000
_LEAST = 10  # images of a digit, so that each split has one
_SHARES = (0.6, 0.7)  # of a digit's images: where validation begins, and where test does
_SPLIT_SEED = 1
_HEADERS = {"t10k-images-idx3-ubyte": (0x803, _IMAGES, SIDE, SIDE), "t10k-labels-idx1-ubyte": (0x801, _IMAGES)}


def find(folder: Path) -> Found | None:
    """MNIST's test digits in a folder.

    Raises:
        UserError: one of the two files is missing.
    """
    for top in (folder, folder / "raw"):
        by_name = {n: path for n in _HEADERS for path in (top / n, top / f"{n}.gz") if path.is_file()}
        missing = [name for name in _HEADERS if name not in by_name]
        if len(missing) == 1:
            raise UserError(f"{top} must hold {' and '.join(_HEADERS)}; {missing[0]}(.gz) is missing. Fetch it.")
        if not missing:
            paths = tuple(by_name[name] for name in _HEADERS)
            # No sizes: its reader takes nothing but the complete set.
            return Found("idx files", folder, paths, {}, {}, partial(_read, *paths))
    return None


def _read(images: Path, labels: Path) -> ImageDataset:
    digits = _read_idx(labels)
    counts = np.bincount(digits, minlength=_DIGITS)
    if len(counts) > _DIGITS or counts.min() < _LEAST:
        reason = f"it has {counts[:_DIGITS].tolist()} images of 0 to 9, and {counts[_DIGITS:].sum()} others"
        raise broken(labels, f"labels 0 to 9, at least {_LEAST} of each", reason)
    pictures = _read_idx(images)
    if (share := (pictures >= 128).mean()) > 0.5:
        raise UserError(
            f"digits must be light strokes on black; {share:.0%} of {images} is light, so ink and paper are exchanged. "
            "Fetch it again."
        )
    return _split("mnist", "real", pictures, digits, {"size": SIDE})


def _read_idx(path: Path) -> NDArray[np.uint8]:
    """The array of an idx file, which must be the one that the file's name promises."""
    _magic, *shape = header = _HEADERS[path.name.removesuffix(".gz")]
    expected = struct.pack(f">{len(header)}I", *header)
    sizes = "x".join(map(str, shape))
    what = f"an idx file{' in gzip' if path.suffix == '.gz' else ''} with {sizes} values of a byte each"
    try:
        with open_regular(path) as opened, gzip.open(opened) if path.suffix == ".gz" else opened as file:
            begin = file.read(len(expected))
            values = file.read(math.prod(shape) + 1)  # one more, to see that the file ends there
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise broken(path, what, error) from error
    if begin != expected:
        raise broken(path, what, f"it begins with {begin.hex(' ', 4)}, not with {expected.hex(' ', 4)}")
    if len(values) != math.prod(shape):
        raise broken(path, what, "it goes on after them" if len(values) > math.prod(shape) else f"it has {len(values)}")
    return np.frombuffer(values, dtype=np.uint8).reshape(shape)


def build_digits() -> ImageDataset:
    """The stand-in: the 1,797 digits of 8x8 that scikit-learn ships, enlarged (bilinear).

    They are real, from the test set of UCI's "Optical Recognition of Handwritten Digits" (Alpaydin, Kaynak 1998), but
    smaller and fewer than MNIST's: a result on them says ``bundled`` and never passes for one on MNIST.
    """
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    digits = load_digits()
    small = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    large = np.stack([np.asarray(Image.fromarray(x).resize((SIDE, SIDE), Image.Resampling.BILINEAR)) for x in small])
    return _split("digits", "bundled", large, digits.target, {"version": VERSION})


def _split(
    name: str, source: Source, images: NDArray[np.uint8], labels: NDArray[np.uint8], options: Mapping[str, str | int]
) -> ImageDataset:
    """Splits of images ``[image, SIDE, SIDE]`` with labels 0 to 9, in each split all ten digits."""
    rows_of: dict[str, list[NDArray[np.intp]]] = {split: [] for split in SPLITS}
    for digit in range(_DIGITS):
        rows = np.random.default_rng([_SPLIT_SEED, digit]).permutation(np.flatnonzero(labels == digit))
        parts = np.split(rows, [round(share * len(rows)) for share in _SHARES])
        for split, part in zip(SPLITS, parts, strict=True):
            rows_of[split].append(part)
    splits = {
        split: ClassImages(
            images=images[np.concatenate(rows)][:, None],
            counts=np.array([len(part) for part in rows], dtype=np.int64),
            class_names=tuple(map(str, range(_DIGITS))),
        )
        for split, rows in rows_of.items()
    }
    return ImageDataset(name, source, splits, {"split": "images", **options})
