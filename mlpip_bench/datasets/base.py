"""What every data source yields: images grouped by class, and where they came from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Source = Literal["real", "procedural", "bundled", "synthetic"]
"""Where data comes from.

``real``: the data set that the bench names. ``procedural``: drawn by a program in its place. ``bundled``: a small
real data set that ships with a dependency, in its place. ``synthetic``: drawn from a known model, in no other's place.
"""

STAND_INS: frozenset[Source] = frozenset({"procedural", "bundled"})
"""The sources whose results are not results on the data set that the bench names."""

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class ClassImages:
    """Images of one split, grouped by class; classes may differ in their number of images.

    Attributes:
        images: uint8 ``[image, channel, height, width]``; the images of a class stand together.
            A network sees them divided by 255.
        counts: int64 ``[class]``, how many consecutive images each class has.
        class_names: one name a class, unique within the split.
    """

    images: NDArray[np.uint8]
    counts: NDArray[np.int64]
    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 4:
            raise ValueError(
                f"images must be uint8 [image, channel, height, width]; got {self.images.dtype} {self.images.shape}"
            )
        if int(self.counts.sum()) != len(self.images) or len(self.counts) != len(self.class_names):
            raise ValueError(
                f"counts must add up to the images and have one entry a class name; got {int(self.counts.sum())} "
                f"for {len(self.images)} images, {len(self.counts)} counts for {len(self.class_names)} names"
            )

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """``(channel, height, width)``."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width


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
