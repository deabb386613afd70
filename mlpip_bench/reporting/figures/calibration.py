"""Reliability diagrams."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mlpip_bench.records.record import Record
from mlpip_bench.reporting.figures.style import (
    COLORS,
    GRAY,
    WIDTH,
    Run,
    averaged,
    configurations,
    mean_ci95_over_seeds,
    numbers,
    wrapped,
)

_COLUMNS = 3
_WIDEST = 0.35  # half-width of an interval that says anything


# ---------------------------------------------------------------------------------------------------- reliability


def reliability(records: Sequence[Record]) -> Figure | None:
    """Accuracy against confidence in bins of the top predictive probability, a panel a configuration.

    Args:
        records: of one bench and one data set.

    Returns:
        The figure; ``None`` where no record has an expected calibration error.
    """
    panels = configurations(records, "ece", detail="count")
    if not panels:
        return None
    columns = min(len(panels), _COLUMNS)
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(WIDTH, WIDTH / _COLUMNS * 1.5 * rows + 0.9), layout="compressed")
    grid = figure.subplots(2 * rows, columns, sharex=True, squeeze=False, height_ratios=[4, 1] * rows)
    most = max(numbers(score, "count").max() for runs in panels.values() for _, score in runs)
    for i, (label, runs) in enumerate(panels.items()):
        row, column = divmod(i, columns)
        diagram, counts = grid[2 * row, column], grid[2 * row + 1, column]
        _reliability_panel(diagram, counts, runs)
        error, ci95 = mean_ci95_over_seeds(runs)
        within = f"{100 * ci95:.2f}" if ci95 < math.inf else "n/a"
        diagram.set_title(f"{wrapped(averaged(label, runs))}\nECE {100 * error:.2f} ± {within} %")
        diagram.set(xlim=(0, 1), ylim=(-0.03, 1.03), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1), box_aspect=1)
        counts.set(yscale="log", ylim=(0.5, 2 * most), box_aspect=0.25)
        counts.yaxis.set_major_formatter("{x:,.0f}")
        counts.minorticks_off()
        counts.tick_params(labelbottom=True)
        counts.set_xlabel("confidence")
        for axes in (diagram, counts):
            axes.tick_params(labelleft=column == 0)
        if column == 0:
            diagram.set_ylabel("accuracy")
            counts.set_ylabel("queries")
    for i in range(len(panels), rows * columns):
        row, column = divmod(i, columns)
        grid[2 * row, column].remove()
        grid[2 * row + 1, column].remove()
    figure.suptitle("Reliability")
    handles: dict[str, Any] = {}
    for axes in grid.flat:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", frameon=False)
    return figure


def _reliability_panel(diagram: Axes, counts: Axes, runs: Sequence[Run]) -> None:
    per_seed = np.array([numbers(score, "count") for _, score in runs])  # [seed, bin]
    total = per_seed.sum(0)
    shown = total > 0

    def mean(name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Over seeds, by queries; that of half-widths bounds the mean's half-width however the seeds depend."""
        values = np.array([numbers(score, name) for _, score in runs])
        weighted: np.ndarray[Any, np.dtype[np.float64]] = (values * per_seed).sum(0)[shown] / total[shown]
        return weighted

    confidence, accuracy, ci95 = mean("confidence"), mean("accuracy"), mean("accuracy_ci95")
    bars = np.stack([accuracy - (accuracy - ci95).clip(0), (accuracy + ci95).clip(max=1) - accuracy])
    few = ~(ci95 < _WIDEST)
    diagram.plot((0, 1), (0, 1), color=GRAY, linestyle="--", linewidth=1, label="perfect calibration")
    diagram.errorbar(
        confidence[~few], accuracy[~few], bars[:, ~few].tolist(), color=COLORS[0], marker="o", markersize=3,
        linewidth=1, elinewidth=0.8, label="accuracy of a bin, bar: 95 % interval over tasks",
    )  # fmt: skip
    if few.any():
        diagram.plot(
            confidence[few], accuracy[few], color=COLORS[0], marker="o", markersize=3, linestyle="",
            markerfacecolor="white", label="bin with too few queries for an interval",
        )  # fmt: skip
    edges = np.linspace(0, 1, len(total) + 1)
    counts.bar(
        edges[:-1],
        total / len(runs),
        width=1 / len(total),
        align="edge",
        color=GRAY,
        edgecolor="white",
        linewidth=0.4,
    )
