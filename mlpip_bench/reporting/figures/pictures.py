"""Figures of the paper that show pictures: class weights, reconstructed views."""

from __future__ import annotations

import base64
import io
import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from numpy.typing import NDArray
from PIL import Image

from mlpip_bench.records.record import Record
from mlpip_bench.records.statistics import mean_ci95
from mlpip_bench.reporting.figures.style import (
    COLORS,
    Floats,
    configurations,
    despine,
    first_seeds,
    numbers,
    wrapped,
)

_Pixels: TypeAlias = NDArray[np.uint8]
_AZIMUTHS = range(0, 360, 30)  # degrees, of the views that are kept
_MOST_GIVEN = 5
_GAP = 1  # pixel between images


# -------------------------------------------------------------------------------------------------------- weights


def weights(records: Sequence[Record]) -> Figure | None:
    """Means of the class weights of all tasks: how like they are where they stand for the same class.

    In two dimensions a polygon a task, all of them and those that hold the two classes that are closest; in
    more, a t-SNE map and the weights themselves.

    Args:
        records: of one bench, one method and one data set.

    Returns:
        The figure, a row a configuration; ``None`` where no record has class weights.
    """
    shown = first_seeds(configurations(records, "within_class_share", detail="weights"))
    if not shown:
        return None
    figure = Figure(figsize=(7.0, 3.1 * len(shown) + 0.3), layout="constrained")
    for part, (label, (_, score)) in zip(figure.subfigures(len(shown), squeeze=False).flat, shown.items(), strict=True):
        classes = numbers(score, "classes").astype(int).reshape(-1, score.way)
        means = numbers(score, "weights").reshape(*classes.shape, -1)
        share, ci95 = mean_ci95(score.per_task)
        within = f" ± {100 * ci95:.1f}" if ci95 < math.inf else ""
        part.suptitle(f"{label}: {100 * share:.1f}{within} % of the variance is within classes", fontsize=8)
        if means.shape[-1] == 2:
            _polygons(part, means, classes)
        else:
            _weight_maps(part, means.reshape(-1, means.shape[-1]), classes.ravel())
    figure.suptitle("Class weights")
    return figure


def _digits(axes: Axes, places: Floats, classes: NDArray[np.int_]) -> None:
    """Classes at ``[weight, 2]``, each as its digit."""
    for digit in np.unique(classes):
        x, y = places[classes == digit].T
        color = COLORS[digit % len(COLORS)]
        with matplotlib.rc_context({"text.parse_math": True}):
            axes.plot(x, y, color=color, linestyle="", marker=f"${digit}$", markersize=4, markeredgewidth=0.2, zorder=2)


def _polygons(part: SubFigure, means: Floats, classes: NDArray[np.int_]) -> None:
    """Of ``[task, way, 2]`` and ``[task, way]``."""
    centers = {digit: means[classes == digit].mean(0) for digit in np.unique(classes)}
    together = {tuple(pair) for task in classes for pair in itertools.combinations(sorted(set(task)), 2)}
    closest = min(sorted(together), key=lambda pair: float(np.linalg.norm(centers[pair[0]] - centers[pair[1]])))
    hold = np.array([set(closest) <= set(task) for task in classes])
    low, high = means.min((0, 1)), means.max((0, 1))
    half = 0.53 * (high - low).max()
    xlim, ylim = np.stack([(low + high) / 2 - half, (low + high) / 2 + half]).T  # squares, to tell distances
    grid = part.subplots(1, 2)
    pair = f"{closest[0]} and {closest[1]}"
    held = "the task" if hold.sum() == 1 else f"the {hold.sum()} tasks"
    titles = (f"all {len(classes)} tasks", f"{held} with {pair}, whose means are closest")
    for axes, chosen, title in zip(grid, (np.full(len(classes), True), hold), titles, strict=True):
        for task in means[chosen]:
            around = task - task.mean(0)
            corners = task[np.argsort(np.arctan2(around[:, 1], around[:, 0]))]  # so that no edges cross
            axes.fill(*corners.T, facecolor="none", edgecolor="0.75", linewidth=0.4, zorder=1)
        _digits(axes, means[chosen].reshape(-1, 2), classes[chosen].ravel())
        axes.set(title=title, xlabel="weight 1, mean of q", xlim=xlim, ylim=ylim, box_aspect=1)
        despine(axes)
    grid[0].set_ylabel("weight 2, mean of q")


def _weight_maps(part: SubFigure, means: Floats, classes: NDArray[np.int_]) -> None:
    """Of ``[weight, dimension]`` and ``[weight]``."""
    import seaborn  # type: ignore[import-untyped]  # here, since they take seconds to import
    from sklearn.manifold import TSNE  # type: ignore[import-untyped]

    map_axes, weight_axes = part.subplots(1, 2, width_ratios=(1, 1.6))
    # Exact, since the approximation's sums depend on the number of threads.
    tsne = TSNE(perplexity=min(30, (len(means) - 1) / 3), init="random", method="exact", random_state=0)
    places = tsne.fit_transform(means)
    _digits(map_axes, places, classes)
    for digit in np.unique(classes):  # a tight group cannot be read
        middle = np.median(places[classes == digit], axis=0)
        map_axes.annotate(
            str(digit), middle, (4, 4), textcoords="offset points", fontsize=11, fontweight="bold",
            color=COLORS[digit % len(COLORS)],
        )  # fmt: skip
    map_axes.margins(0.12)
    map_axes.set(
        title="t-SNE map; large: a class's median",
        xlabel="t-SNE 1",
        ylabel="t-SNE 2",
        xticks=(),
        yticks=(),
        box_aspect=1,
    )
    order = np.argsort(classes, kind="stable")
    most = np.abs(means).max()
    colors = seaborn.color_palette("vlag", as_cmap=True)
    image = weight_axes.imshow(means[order].T, cmap=colors, vmin=-most, vmax=most, aspect="auto", interpolation="none")
    digits, counts = np.unique(classes, return_counts=True)
    ends = counts.cumsum()
    for end in ends[:-1]:
        weight_axes.axvline(end - 0.5, color="black", linewidth=0.5)
    weight_axes.set_xticks(ends - counts / 2 - 0.5, map(str, digits))
    weight_axes.tick_params(bottom=False)
    weight_axes.set(title="a column a weight vector", xlabel="class", ylabel="dimension", yticks=())
    part.colorbar(image, ax=weight_axes, label="mean of q", pad=0.02)


# ------------------------------------------------------------------------------------------------- reconstruction


def reconstruction(records: Sequence[Record]) -> Figure | None:
    """Views of unseen objects as each method reconstructs them from the given ones, above the true views.

    Args:
        records: of one bench and one data set.

    Returns:
        The figure; ``None`` where no record has images.
    """
    shown = first_seeds(configurations(records, "mse", detail="images"))
    if not shown:
        return None
    asked: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)  # separate where the objects or given views differ
    for label, (_, score) in shown.items():
        given, truth, images = (str(score.detail[name]) for name in ("given", "truth", "images"))
        asked[given, truth] |= {wrapped(label): images}
    blocks: list[tuple[_Pixels, dict[str, _Pixels]]] = []  # given views, and rows of views, of an object
    for (given, truth), found in asked.items():
        side = _pixels(truth).shape[1] // len(_AZIMUTHS)
        views = {label: _cells(png, side) for label, png in {**found, "truth": truth}.items()}
        for i, first in enumerate(_cells(given, side)[:, :_MOST_GIVEN]):
            blocks.append((first, {label: cells[i] for label, cells in views.items()}))
    heights = [len(rows) for _, rows in blocks]
    lefts = [_mosaic(_downwards(given, len(rows))) for given, rows in blocks]
    rights = [_mosaic(np.stack(list(rows.values()))) for _, rows in blocks]
    figure = Figure(figsize=(7.0, 0.44 * sum(heights) + 0.3 * len(blocks) + 0.4), layout="compressed")
    widths = [max(mosaic.shape[1] for mosaic in mosaics) for mosaics in (lefts, rights)]
    grid = figure.subplots(len(blocks), 2, width_ratios=widths, height_ratios=heights, squeeze=False)
    for (given_axes, axes), left, right, (given_views, rows) in zip(grid, lefts, rights, blocks, strict=True):
        for which, mosaic in ((given_axes, left), (axes, right)):
            which.imshow(mosaic, cmap="gray", vmin=0, vmax=255, interpolation="none")
            which.spines[:].set_visible(False)
            which.tick_params(length=0, labeltop=True, labelbottom=False, pad=1)
        side = given_views.shape[-1]
        middles = np.arange(len(_AZIMUTHS)) * (side + _GAP) + (side - 1) / 2
        axes.set_xticks(middles, [f"{angle}°" for angle in _AZIMUTHS])
        axes.set_yticks(middles[: len(rows)], list(rows))
        given_axes.set(anchor="N", yticks=())
        given_axes.set_xticks([(left.shape[1] - 1) / 2], ["given"])
    figure.suptitle("Reconstruction")
    return figure


def _pixels(png: str) -> _Pixels:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(png))).convert("L"))


def _cells(png: str, side: int) -> _Pixels:
    """Square images of a grid, ``[row, column, side, side]``."""
    pixels = _pixels(png)
    height, width = pixels.shape
    return pixels.reshape(height // side, side, width // side, side).swapaxes(1, 2)


def _downwards(images: _Pixels, rows: int) -> _Pixels:
    """Images in columns of so many, ``[row, column, side, side]``; what is left over is white."""
    columns = math.ceil(len(images) / rows)
    padded = np.pad(images, ((0, rows * columns - len(images)), (0, 0), (0, 0)), constant_values=255)
    return padded.reshape(columns, rows, *images.shape[1:]).swapaxes(0, 1)


def _mosaic(cells: _Pixels) -> _Pixels:
    """``[row, column, side, side]`` as one image, with white gaps."""
    padded = np.pad(cells, ((0, 0), (0, 0), (0, _GAP), (0, _GAP)), constant_values=255)
    rows, columns, height, width = padded.shape
    return padded.swapaxes(1, 2).reshape(rows * height, columns * width)
