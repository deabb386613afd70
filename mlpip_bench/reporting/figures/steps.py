"""Scores as functions of adaptation steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from mlpip_bench.records.record import Record
from mlpip_bench.reporting.figures.style import (
    COLORS,
    MARKERS,
    Run,
    averaged,
    configurations,
    despine,
    mean_ci95_over_seeds,
    wrapped,
)

_DODGE = 4.0  # points between the lines of a steps figure, so that equal scores can be distinguished,
_MOST_DODGE = 20.0  # and between the first and the last, so that they stay near their number of steps


# ---------------------------------------------------------------------------------------------------------- steps


def steps(records: Sequence[Record]) -> Figure | None:
    """Accuracy and negative log-likelihood against the number of adaptation steps, a line a configuration.

    Args:
        records: of one bench and one data set.

    Returns:
        The figure; ``None`` where no record has scores by number of steps.
    """
    panels = {
        label: found
        for metric, label in (("accuracy", "accuracy (%)"), ("nll", "negative log-likelihood (nats per query)"))
        if (found := configurations(records, metric, ("steps",)))
    }
    if not panels:
        return None
    figure = Figure(figsize=(3.3 * len(panels) + 1.8, 3.2), layout="constrained")
    (grid,) = figure.subplots(1, len(panels), squeeze=False)
    names = sorted({name for lines in panels.values() for name in lines})
    for axes, (ylabel, lines) in zip(grid, panels.items(), strict=True):
        for label, runs in lines.items():
            _steps_line(axes, runs, names.index(label), len(names), wrapped(averaged(label, runs)))
        most = max(score.condition["steps"] for runs in lines.values() for _, score in runs)
        ticks = [0] + [m * 10**e for e in range(len(str(most))) for m in (1, 2, 5)]
        axes.set_xscale("symlog", linthresh=1, linscale=0.4)  # which has a place for 0 steps
        axes.set_xticks([t for t in ticks if t <= most], [str(t) for t in ticks if t <= most])
        axes.set(xlabel="adaptation steps", ylabel=ylabel)
        axes.margins(x=0.12)
        axes.minorticks_off()
        despine(axes)
    figure.suptitle("Adaptation steps")
    handles = dict(zip(*reversed(grid[0].get_legend_handles_labels()), strict=True))
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside right center",
        frameon=False,
        title="bar: 95 % interval\nover tasks; points are\nmoved aside to be seen",
    )
    return figure


def _steps_line(axes: Axes, runs: Sequence[Run], index: int, lines: int, label: str) -> None:
    by_steps: dict[float, list[Run]] = defaultdict(list)
    for run in runs:
        by_steps[float(run[1].condition["steps"])].append(run)
    x = sorted(by_steps)
    scale = 100 if runs[0][1].unit == "fraction" else 1
    mean, ci95 = scale * np.array([mean_ci95_over_seeds(by_steps[n]) for n in x]).T
    line, caps, bars = axes.errorbar(
        x, mean, np.where(np.isfinite(ci95), ci95, 0), label=label, color=COLORS[index % len(COLORS)],
        marker=MARKERS[index % len(MARKERS)], linestyle="--" if index // len(COLORS) % 2 else "-",
        markersize=4, markerfacecolor="none", linewidth=1, capsize=1.5,
    )  # fmt: skip
    points = min(_DODGE, _MOST_DODGE / max(lines - 1, 1)) * (index - (lines - 1) / 2)
    aside = axes.transData + ScaledTranslation(points / 72, 0, axes.figure.dpi_scale_trans)
    for artist in (line, *caps, *bars):  # not by errorbar's own argument, which spoils the limits of the axes
        artist.set_transform(aside)
