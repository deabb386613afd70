"""Blobs: small images of three soft spots, drawn by a program.

A class is the places of its three spots; in each image they are moved a little. No class is in two splits.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mlpip_bench.benches.budgets import SHORT
from mlpip_bench.benches.family import DataRequest
from mlpip_bench.benches.images import ImageClassification
from mlpip_bench.datasets.base import ClassImages, ImageDataset

VERSION = 1
"""Raised with any change of what is drawn."""

_CLASSES = {"train": 64, "validation": 16, "test": 20}
_IMAGES, _SIDE, _SPOTS = 20, 16, 3


class Blobs(ImageClassification):
    """100 classes of 20 images each, 16x16."""

    title = "Blobs, drawn by a program"
    needs = "nothing: the images are drawn"
    examples = ("blobs5w1s", "blobs5w5s")
    budgets: ClassVar = {"quick": SHORT, "paper": SHORT}
    default_methods = ("protonets",)

    def load(self, request: DataRequest) -> ImageDataset:  # noqa: ARG002  # nothing is looked for
        """The same images at each call."""
        rng = np.random.default_rng(VERSION)
        splits = {
            split: ClassImages(
                _draw(rng, classes).reshape(-1, 1, _SIDE, _SIDE),
                np.full(classes, _IMAGES),
                tuple(f"{split}{i}" for i in range(classes)),
            )
            for split, classes in _CLASSES.items()
        }
        return ImageDataset("blobs", "synthetic", splits, {"version": VERSION})


def _draw(rng: np.random.Generator, classes: int) -> NDArray[np.uint8]:
    """``[class, image, height, width]``."""
    places = rng.uniform(3, _SIDE - 3, (classes, 1, _SPOTS, 2)) + rng.normal(0, 0.7, (classes, _IMAGES, _SPOTS, 2))
    bumps = np.exp(-np.square(np.arange(_SIDE) - places[..., None]) / 4)  # class image spot axis pixel
    images = np.einsum("nish,nisw->nihw", bumps[..., 0, :], bumps[..., 1, :])
    return np.rint(255 * images.clip(max=1)).astype(np.uint8)
