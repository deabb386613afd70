"""Objects seen from all around: what view reconstruction needs of every data set of views.

An object is a class of :class:`~mlpip_bench.datasets.base.ClassImages` and has ``VIEWS`` images; view ``i`` is seen
from an azimuth of ``360 i / VIEWS`` degrees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mlpip_bench.datasets.base import SPLITS, ClassImages, ImageDataset
from mlpip_bench.utils.provenance import Source

VIEWS = 36
"""Views of an object, one every 10 degrees (paper, appendix E)."""

SIDE = 32
"""Height and width of a view, in pixels."""

_SHARES = (0.7, 0.1, 0.2)  # of the objects, by split (paper, appendix E)
_SPLIT_SEED = 42  # as the reference code's


def view_dataset(
    name: str,
    source: Source,
    images: NDArray[np.uint8],
    objects: Sequence[str],
    options: Mapping[str, str | int],
) -> ImageDataset:
    """A data set of views, its objects shuffled and split 70 / 10 / 20 (paper, appendix E).

    Args:
        name: of the data set.
        source: where it comes from.
        images: ``[object, VIEWS, SIDE, SIDE]``, gray.
        objects: one name an object, in an order that does not depend on the file system.
        options: settings that made the arrays.

    Raises:
        ValueError: other shapes, or too few objects for three splits.
    """
    count = len(objects)
    if images.shape != (count, VIEWS, SIDE, SIDE):
        raise ValueError(f"views must be [object, {VIEWS}, {SIDE}, {SIDE}] for {count} objects; got {images.shape}")
    if count < 3:
        raise ValueError(f"views need at least 3 objects, one for each split; got {count}")
    shuffled = np.random.default_rng(_SPLIT_SEED).permutation(count)
    train, validation = (max(1, round(share * count)) for share in _SHARES[:2])
    train = min(train, count - 2)
    parts = np.split(shuffled, [train, train + validation])
    splits = {
        split: ClassImages(
            images=images[part].reshape(-1, 1, SIDE, SIDE),
            counts=np.full(len(part), VIEWS, dtype=np.int64),
            class_names=tuple(objects[i] for i in part),
        )
        for split, part in zip(SPLITS, parts, strict=True)
    }
    return ImageDataset(name=name, source=source, splits=splits, options=options)
