"""A contact sheet: the pictures that a model was given, and below them those that it classified."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mlpip_bench.reporting.figures.style import Floats
from mlpip_bench.reporting.figures.task import mosaic

_COLUMNS = 8
_INCHES = 1.0  # of a query
_ROW = 0.5  # inches of a class of the support set
_LONGEST = 18  # characters of a class's name
MOST = 80
"""Queries that are shown."""


def contact_sheet(
    title: str, support: Floats, labels: NDArray[np.int_], classes: Sequence[str], queries: Floats, predicted: Floats
) -> Figure:
    """The support set, a row a class; and the first queries, each with its predicted class and that one's probability.

    Args:
        title: of the figure.
        support: images ``[point, channel, height, width]`` in [0, 1], of one or three channels.
        labels: class of each, as a number.
        classes: their names.
        queries: images like those of the support set.
        predicted: probabilities ``[point, way]``.
    """
    shown = queries[:MOST]
    rows = math.ceil(len(shown) / _COLUMNS)
    heights = (_ROW * len(classes) + 0.4, (_INCHES + 0.3) * rows)
    figure = Figure(figsize=(_COLUMNS * _INCHES + 0.6, sum(heights) + 0.4), layout="constrained")
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=heights).flat
    given = mosaic(support, labels, len(classes))
    axes = above.subplots()
    axes.imshow(given, interpolation="none")
    middles = (np.arange(len(classes)) + 0.5) * (given.shape[0] / len(classes))
    axes.set_yticks(middles, [_cut(name) for name in classes])
    axes.set(title="support set", xticks=(), anchor="W")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    grid = below.subplots(rows, _COLUMNS, squeeze=False)
    for cell in grid.flat:
        cell.set_axis_off()
    for cell, image, row in zip(grid.flat, shown, predicted, strict=False):
        best = int(row.argmax())
        channels, height, width = image.shape
        cell.imshow(np.broadcast_to(image.transpose(1, 2, 0), (height, width, max(channels, 3))), interpolation="none")
        cell.set_title(f"{_cut(classes[best])}\n{row[best]:.2f}")
    more = f", the first {len(shown)} of {len(queries):,}" if len(queries) > len(shown) else ""
    below.suptitle(f"queries{more}: predicted class and its probability", fontsize=8)
    figure.suptitle(title)
    return figure


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
