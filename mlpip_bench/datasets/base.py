"""What every data source yields: images grouped by class, and where they came from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlpip_bench.utils.provenance import Source

SPLITS = ("train", "validation", "test")


class ClassImages:
    """Images of one split, or feature vectors, grouped by class; classes may differ in their number of images.

    Args:
        images: uint8 ``[image, channel, height, width]``, or float32 ``[vector, dimension, 1, 1]``; those of a class
            stand together. Or what reads them, when they are first asked for.
        counts: int64 ``[class]``, how many consecutive images each class has.
        class_names: one name a class, unique within the split.
        image_shape: ``(channel, height, width)``; needed where the images are read later.
    """

    def __init__(
        self,
        images: NDArray[Any] | Callable[[], NDArray[Any]],
        counts: NDArray[np.int64],
        class_names: tuple[str, ...],
        image_shape: tuple[int, int, int] | None = None,
    ) -> None:
        self.counts, self.class_names = counts, class_names
        if len(counts) != len(class_names):
            raise ValueError(
                f"counts must have one entry a class name; got {len(counts)} counts for {len(class_names)} names"
            )
        if callable(images):
            if image_shape is None:
                raise ValueError("images that are read later need their shape")
            self._images, self._read = None, images
            self.image_shape = image_shape
        else:
            self._images = self._checked(images)
            channels, height, width = images.shape[1:]
            self.image_shape = channels, height, width

    @property
    def images(self) -> NDArray[Any]:
        """uint8 images, which a network sees divided by 255; or float32 vectors, which it sees as they are."""
        if self._images is None:
            self._images = self._checked(self._read())
        return self._images

    def _checked(self, images: NDArray[Any]) -> NDArray[Any]:
        is_vectors = images.dtype == np.float32 and images.shape[2:] == (1, 1)
        if images.ndim != 4 or not (images.dtype == np.uint8 or is_vectors):
            raise ValueError(
                "images must be uint8 [image, channel, height, width], or float32 vectors [vector, dimension, 1, 1]; "
                f"got {images.dtype} {images.shape}"
            )
        if int(self.counts.sum()) != len(images):
            raise ValueError(f"counts must add up to the images; got {int(self.counts.sum())} for {len(images)} images")
        return images

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    @property
    def num_images(self) -> int:
        """How many images there are."""
        return int(self.counts.sum())


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """A data set with disjoint images in its three splits: of other classes, unless the same few are all there is.

    Attributes:
        name: what it is, for example ``omniglot`` or ``glyphs``.
        source: ``real``, or what kind of stand-in it is.
        splits: ``train``, ``validation`` and ``test``.
        options: the settings that made the arrays (split rule, resizing), as plain JSON values.
        fingerprint: SHA-256 over arrays, class names and options: equal data, equal fingerprint.
    """

    name: str
    source: Source
    splits: Mapping[str, ClassImages]
    options: Mapping[str, str | int] = field(default_factory=dict)
    fingerprint: str = ""

    def __post_init__(self) -> None:
        if tuple(self.splits) != SPLITS:
            raise ValueError(f"splits must be {SPLITS}, in this order; got {tuple(self.splits)}")
        if not self.fingerprint:
            object.__setattr__(self, "fingerprint", fingerprint(self.name, self.splits, self.options))

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """``(channel, height, width)``, the same for all splits."""
        return self.splits["train"].image_shape


def fingerprint(name: str, splits: Mapping[str, ClassImages], options: Mapping[str, str | int]) -> str:
    """SHA-256 of everything that a network could see of a data set."""
    digest = hashlib.sha256(json.dumps([name, dict(sorted(options.items()))]).encode())
    for split, data in splits.items():
        digest.update(json.dumps([split, data.images.shape, data.counts.tolist(), data.class_names]).encode())
        digest.update(np.ascontiguousarray(data.images).data)
    return digest.hexdigest()
