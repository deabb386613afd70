"""An npz file with ``images`` or ``features``, with ``labels``, and with ``split`` if it says the splits.

Where ``data features`` has made it, it says by what and of what, too.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mlpip_bench.datasets.adding.material import FEATURE_OPTIONS, PICTURE_SIZE, UNSPLIT, Item, Material, split_named
from mlpip_bench.datasets.arrays import names_in, read_npz
from mlpip_bench.datasets.reading import listed
from mlpip_bench.utils.errors import UserError, cut
from mlpip_bench.utils.provenance import Source

FACTS = ("pretrained_on", "source", *FEATURE_OPTIONS)
"""Texts that a file of features may have: what its network was trained on, whether the images were real, and so on."""

_MOST = 2**35  # bytes of an array
_LONGEST = 4 * 1000  # bytes of a text


def find(path: Path) -> Material | None:
    """The images or vectors of an npz file.

    Raises:
        UserError: it has not the arrays, or they are not of the form.
    """
    if path.suffix.lower() != ".npz" or path.is_dir():
        return None
    there = names_in(path)
    kinds = [name for name in ("images", "features") if name in there]
    if len(kinds) != 1:
        raise UserError(
            f"{path} must have one of the arrays images and features, and labels; it has {listed(there) or 'none'}. "
            "Name them so."
        )
    wanted = [*kinds, "labels", *(["split"] if "split" in there else [])]
    arrays = read_npz(path, wanted, _MOST)
    values, labels = arrays[kinds[0]], _names(path, arrays["labels"])
    for name, array in arrays.items():
        if len(array) != len(values) or (name not in kinds and array.ndim != 1):
            raise UserError(
                f"{path} must have a label, and a split if any, for each of its {len(values)} {kinds[0]}; {name} is "
                f"{array.shape}."
            )
    words = [str(word) for word in arrays["split"].tolist()] if "split" in arrays else [UNSPLIT] * len(labels)
    item = _feature_items(path, values) if kinds == ["features"] else _image_items(path, values)
    splits: dict[str, dict[str, list[Item]]] = defaultdict(lambda: defaultdict(list))
    for row, (label, word) in enumerate(zip(labels, words, strict=True)):
        split = split_named(word) if word else UNSPLIT
        if split is None:
            raise UserError(f"the splits in {path} must be train, val or test; row {row} has {word!r}.")
        splits[split][label].append(item(row))
    if kinds == ["features"]:
        facts = _facts(path, [name for name in FACTS if name in there])
        return Material("features in an npz file", splits, is_features=True, facts=facts)
    sides = values.shape[1:3] if values.shape[-1] in (1, 3) or values.ndim == 3 else values.shape[2:]
    return Material("images in an npz file", splits, size=sides[0] if sides[0] == sides[1] else PICTURE_SIZE)


def _facts(path: Path, names: list[str]) -> dict[str, str]:
    facts = {}
    for name, array in read_npz(path, names, _LONGEST).items():
        if array.shape or array.dtype.kind != "U" or not str(array).isprintable():
            raise UserError(f"{name} of {path} must be a text without line breaks; it is {array.dtype} {array.shape}.")
        facts[name] = str(array)
    if (source := facts.get("source", "real")) not in get_args(Source):
        raise UserError(f"source of {path} must be one of {', '.join(get_args(Source))}; it is {cut(source)!r}.")
    return facts


def _names(path: Path, labels: NDArray[Any]) -> list[str]:
    """The name of each label; numbers with leading zeros, so that they are in the order of their values."""
    if labels.dtype.kind not in "iuUS":
        raise UserError(f"labels must be names or whole numbers; in {path} they are {labels.dtype}. Name the classes.")
    if labels.dtype.kind in "US":
        return [each.decode("utf-8", "replace") if isinstance(each, bytes) else each for each in labels.tolist()]
    digits = len(str(labels.max(initial=0)))
    return [f"{label:0{digits}d}" for label in labels.tolist()]


def _feature_items(path: Path, values: NDArray[Any]) -> Any:
    if values.ndim != 2 or values.dtype.kind not in "fiu" or not values.size:
        raise UserError(
            f"features must be numbers [vector, dimension]; in {path} they are {values.dtype} {values.shape}."
        )
    with np.errstate(over="ignore"):
        vectors = values.astype(np.float32)
    if len(bad := np.flatnonzero(~np.isfinite(vectors).all(1))):
        raise UserError(
            f"features must be finite numbers of 32 bits; in {path} {len(bad)} of {len(vectors)} vectors have others: "
            f"rows {listed(bad)}. Leave them out, or compute them again."
        )
    return lambda row: Item(f"row {row} of {path}", partial(vectors.__getitem__, row))


def _image_items(path: Path, values: NDArray[Any]) -> Any:
    channels_first = values.ndim == 4 and values.shape[1] in (1, 3) and values.shape[-1] not in (1, 3)
    last = values.transpose(0, 2, 3, 1) if channels_first else values
    last = last[..., 0] if last.ndim == 4 and last.shape[-1] == 1 else last
    if values.dtype != np.uint8 or not values.size or last.ndim not in (3, 4) or last.shape[3:] not in ((), (3,)):
        raise UserError(
            "images must be uint8, from 0 to 255, [image, height, width], [image, height, width, channel] or "
            f"[image, channel, height, width] with 1 or 3 channels; in {path} they are {values.dtype} {values.shape}."
        )
    return lambda row: Item(f"row {row} of {path}", lambda: Image.fromarray(last[row]).convert("RGB"))
