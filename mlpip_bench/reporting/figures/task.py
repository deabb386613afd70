"""A figure of one task, to look at what methods are given before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mlpip_bench.reporting.figures.style import Floats

_INCHES = 0.55  # of an image
_MOST_WIDTH = 12.0
_GAP = 0.04  # of an image's side, between images


def task(title: str, parts: Mapping[str, tuple[Floats, NDArray[np.int_]]]) -> Figure:
    """Images of a task, a row a class, and its parts next to each other.

    Args:
        title: of the figure.
        parts: by name, for example ``support``: images ``[point, channel, height, width]`` in [0, 1] of one or three
            channels, and the class of each, ``0 .. way-1``.
    """
    way = 1 + max(int(labels.max()) for _, labels in parts.values())
    mosaics = {name: mosaic(images, labels, way) for name, (images, labels) in parts.items()}
    widths = [pictures.shape[1] for pictures in mosaics.values()]
    height = next(iter(mosaics.values())).shape[0]
    inches = min(_INCHES * way, _MOST_WIDTH * height / sum(widths))
    figure = Figure(figsize=(max(inches * sum(widths) / height + 0.6, 2.5), inches + 0.7), layout="compressed")
    grid = figure.subplots(1, len(mosaics), width_ratios=widths, squeeze=False)[0]
    for axes, (name, pictures) in zip(grid, mosaics.items(), strict=True):
        axes.imshow(pictures, interpolation="none")
        axes.set(title=name, xticks=(), yticks=())
        axes.spines[:].set_visible(False)
    figure.suptitle(title)
    return figure


def mosaic(images: Floats, labels: NDArray[np.int_], way: int) -> NDArray[np.float64]:
    """Images as one, ``[height, width, 3]``, a row a class; where a class has fewer than another it is white."""
    height, width = images.shape[2:]
    most = int(np.bincount(labels, minlength=way).max())
    gap = max(1, round(_GAP * max(height, width)))
    found = np.ones((way, most, height + gap, width + gap, 3))
    for label in range(way):
        for column, image in enumerate(images[labels == label]):
            found[label, column, :height, :width] = np.broadcast_to(image.transpose(1, 2, 0), (height, width, 3))
    rows = found.swapaxes(1, 2).reshape(way * (height + gap), most * (width + gap), 3)
    return rows[:-gap, :-gap]
