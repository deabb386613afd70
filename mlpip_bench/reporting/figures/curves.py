"""Figure of regression: predictive bands of a few test tasks."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from mlpip_bench.records.record import Record
from mlpip_bench.reporting.figures.style import COLORS, configurations, despine, first_seeds, numbers, wrapped

_Z = 1.96
"""Standard deviations on each side of the mean of a Gaussian, within which 95 % of it are."""
_LINE = 18
"""Characters of a label that the height of a row has room for."""


def curves(records: Sequence[Record]) -> Figure | None:
    """Predictive mean and 95 % band of the first test tasks, a row a method, with the points that were given.

    Args:
        records: of one bench and one data set.

    Returns:
        The figure; ``None`` where no record has bands.
    """
    shown = first_seeds(configurations(records, "mse", detail="band_mean"))
    if not shown:
        return None
    tasks = max(len(numbers(score, "band_mean")) // len(numbers(score, "band_x")) for _, score in shown.values())
    figure = Figure(figsize=(7.0, 1.25 * len(shown) + 0.5), layout="constrained")
    grid = figure.subplots(len(shown), tasks, sharex=True, sharey="col", squeeze=False)
    for row, (label, (_, score)) in zip(grid, shown.items(), strict=True):
        x = numbers(score, "band_x")
        names = ("mean", "std", "support_x", "support_y", "query_x", "query_y")
        of_tasks = (numbers(score, f"band_{name}").reshape(-1, len(x)) for name in names[:2])
        count = len(numbers(score, "band_mean")) // len(x)
        points = (numbers(score, f"band_{name}").reshape(count, -1) for name in names[2:])
        for axes, mean, std, given_x, given_y, asked_x, asked_y in zip(row, *of_tasks, *points, strict=False):
            axes.fill_between(x, mean - _Z * std, mean + _Z * std, color=COLORS[0], alpha=0.25, linewidth=0)
            axes.plot(x, mean, color=COLORS[0], linewidth=1)
            axes.plot(asked_x, asked_y, color="0.45", linestyle="", marker="x", markersize=3, markeredgewidth=0.7)
            axes.plot(given_x, given_y, color="black", linestyle="", marker="o", markersize=3)
            despine(axes)
        row[0].set_ylabel(wrapped(label, _LINE))
    for axes, name in zip(grid[0], range(1, tasks + 1), strict=True):
        axes.set_title(f"test task {name}")
    for axes in grid[-1]:
        axes.set_xlabel("x")
    for column in grid.T:  # by the points: the band of one method that knows nothing would flatten all others
        lines = [line.get_ydata() for axes in column for line in axes.lines[1:]]
        low, high = min(min(y) for y in lines if len(y)), max(max(y) for y in lines if len(y))
        column[0].set_ylim(low - 0.6 * (high - low), high + 0.6 * (high - low))
    figure.suptitle("Given points (dots), queries (crosses), predictive mean and 95 % band")
    return figure
