"""Figures that compare methods on one bench: learning curves, and cost against accuracy."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator
from numpy.typing import NDArray

from mlpip_bench.records.record import Record, Scores, facts
from mlpip_bench.reporting.figures.style import (
    COLORS,
    MARKERS,
    WIDTH,
    Run,
    averaged,
    by_number,
    configurations,
    despine,
    label_of_metric,
    labeled,
    mean_ci95_over_seeds,
    metrics_in_order,
    scale_of,
    wrapped,
)

_COLUMNS = 2
_LEGEND_COLUMNS = 3
_LINE = 0.28  # inches of a label of two lines
_MOST_MARKS = 15  # on a learning curve, so that lines with many validations can be distinguished by their markers
_DASHES: tuple[Any, ...] = ("-", "--", "-.", ":")

_TEST_ONLY = ("protocol", "protocol code", "queries", "test_tasks", "compile")
"""Facts that a trained model does not depend on."""


def _looks(index: int) -> dict[str, Any]:
    return {"color": COLORS[index % len(COLORS)], "marker": MARKERS[index % len(MARKERS)]}


def _panels(
    count: int, height: float, *, labels: int, space: float, sharey: bool = False
) -> tuple[Figure, NDArray[Any]]:
    """A figure as wide as a column of text, with so many panels and room below them for a legend.

    Args:
        count: of panels.
        height: of a row of panels, in inches, as ``space`` is.
        labels: of the legend.
        space: for titles.
        sharey: whether panels have one y axis.
    """
    columns = min(count, _COLUMNS)
    rows = math.ceil(count / columns)
    legend = _LINE * math.ceil(labels / _LEGEND_COLUMNS) + space
    figure = Figure(figsize=(WIDTH, height * rows + legend), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharey=sharey).ravel()
    for axes in panels[count:]:
        axes.remove()
    return figure, panels[:count]


# ------------------------------------------------------------------------------------------------------- learning


def learning(records: Sequence[Record]) -> Figure | None:
    """Validation scores against the training tasks seen, a panel a metric and a line a configuration.

    Several seeds are a line of their means in a band from the lowest to the highest. A method without parameters
    is a level line.

    Args:
        records: of one bench and one data set.

    Returns:
        The figure; ``None`` where no record has a history with scores on validation tasks.
    """
    lines = labeled(
        [(record, record.scores[0]) for record in records if record.training.get("history")], ignored=_TEST_ONLY
    )
    if not lines:
        return None
    # The records of all protocols of a trial have the same training.
    trained = {label: list({run[0].seed: run[0] for run in runs}.values()) for label, runs in lines.items()}
    units = {score.metric: score.unit for record in records for score in record.scores}
    validations = [entry for own in trained.values() for record in own for entry in record.training["history"]]
    metrics = metrics_in_order({name for entry in validations for name in entry} - {"iteration", "loss"})
    if not metrics:
        return None
    figure, grid = _panels(len(metrics), 2.1, labels=len(lines), space=0.5)
    for axes, metric in zip(grid, metrics, strict=True):
        unit = units.get(metric, "")
        for index, (label, own) in enumerate(trained.items()):
            _learning_line(axes, own, metric, scale_of(unit), index, wrapped(averaged(label, lines[label])))
        name = label_of_metric(metric, unit, "\n") if unit else metric
        axes.set(xlabel="training tasks seen", ylabel=f"validation {name}")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        seen = {round(x) for line in axes.lines for x in line.get_xdata() if x > 1}
        if len(seen) == 1:  # whose surroundings are fractions of a task
            axes.set_xticks(sorted(seen))
        else:
            axes.locator_params(axis="x", nbins=5, integer=True)
        axes.ticklabel_format(axis="y", useOffset=False)
        despine(axes)
    handles = dict(zip(*reversed(grid[0].get_legend_handles_labels()), strict=True))
    band = "band: range of the seeds" if any(len(own) > 1 for own in trained.values()) else None
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=_LEGEND_COLUMNS, frameon=False, title=band
    )
    figure.suptitle("Learning curves")
    return figure


def _learning_line(axes: Axes, own: Sequence[Record], metric: str, scale: int, index: int, label: str) -> None:
    """One configuration, ``own`` having a record a seed."""
    histories = [{entry["iteration"]: entry for entry in record.training["history"]} for record in own]
    iterations = sorted(set.intersection(*map(set, histories)))  # a seed may have been trained with fewer validations
    if not iterations:
        return
    seen = [iteration * own[0].config["tasks_per_batch"] for iteration in iterations]
    values = scale * np.array(
        [[history[iteration].get(metric, math.nan) for iteration in iterations] for history in histories]
    )  # [seed, validation]
    dash = _DASHES[index % len(_DASHES)]
    if own[0].parameters == 0:
        axes.axhline(values[:, -1].mean(), color=COLORS[index % len(COLORS)], linestyle=dash, linewidth=1, label=label)
        return
    axes.plot(
        seen, values.mean(0), label=label, linestyle=dash, linewidth=1.2, markersize=4,
        markevery=math.ceil(len(seen) / _MOST_MARKS), **_looks(index),
    )  # fmt: skip
    if len(own) > 1:
        axes.fill_between(seen, values.min(0), values.max(0), color=COLORS[index % len(COLORS)], alpha=0.2, linewidth=0)


# ----------------------------------------------------------------------------------------------------------- cost


def cost(records: Sequence[Record]) -> Figure | None:
    """Accuracy against the time to adapt to a task and to predict its queries, a marker a configuration.

    The time is that of one task at a time, the median over repeats with its quartiles. A panel a session of timing,
    from the first on, since times of two sessions are not to be compared; their records say when and where. Only
    configurations whose very model was timed are shown.

    Args:
        records: of one bench and one data set.

    Returns:
        The figure; ``None`` where no record of accuracy has one of timing to go with it.
    """
    timed = {
        _model(run): run
        for runs in configurations(records, "tasks_per_second", ("regime",)).values()
        for run in runs
        if run[1].condition == {"regime": "latency"}
    }
    by_session: dict[str, list[Record]] = defaultdict(list)
    for runs in configurations(records, "accuracy").values():
        for run in runs:
            if _model(run) in timed:
                by_session[str(timed[_model(run)][0].environment["session"])].append(run[0])
    if not by_session:
        return None
    panels = {session: configurations(own, "accuracy") for session, own in sorted(by_session.items())}
    names = by_number({label for found in panels.values() for label in found})
    figure, grid = _panels(len(panels), 2.3, labels=len(names), space=0.6, sharey=True)
    for number, (axes, found) in enumerate(zip(grid, panels.values(), strict=True), 1):
        for label, runs in found.items():
            _cost_point(axes, runs, [timed[_model(run)][1] for run in runs], names.index(label))
        axes.set(xscale="log", xlabel="time to adapt and predict (ms per task)")
        if len(panels) > 1:
            axes.set_title(f"session {number}")
        _plain_ticks(axes)
        despine(axes)
    grid[0].set_ylabel(label_of_metric("accuracy", "fraction"))
    figure.legend(
        [Line2D([], [], linestyle="", markersize=5, **_looks(i)) for i, _ in enumerate(names)],
        [wrapped(averaged(name, [run for found in panels.values() for run in found.get(name, [])])) for name in names],
        loc="outside lower center", ncols=_LEGEND_COLUMNS, frameon=False,
        title="bars: 95 % interval over tasks; quartiles over repeats",
    )  # fmt: skip
    figure.suptitle("Cost against accuracy")
    return figure


def _model(run: Run) -> str:
    """What the accuracy and the time of one trained model, tested in one way, have in common."""
    of_scores = ("protocol", "protocol code", "test_tasks")
    shared = {name: value for name, value in facts(*run).items() if name not in of_scores}
    return f"{run[0].seed} {sorted(shared.items())}"


def _cost_point(axes: Axes, runs: Sequence[Run], timed: Sequence[Scores], index: int) -> None:
    milliseconds = [1000 / rate for score in timed for rate in score.per_task]
    lower, median, upper = np.quantile(milliseconds, [0.25, 0.5, 0.75])
    mean, ci95 = mean_ci95_over_seeds(runs)
    axes.errorbar(
        [median], [100 * mean], [100 * ci95 if math.isfinite(ci95) else 0], [[median - lower], [upper - median]],
        linestyle="", markersize=5, elinewidth=1, capsize=2, **_looks(index),
    )  # fmt: skip


def _plain_ticks(axes: Axes) -> None:
    """1, 2, 5, 10, ... on a logarithmic axis, which may span less than a decade."""
    low, high = axes.get_xlim()
    axes.set_xlim(low / 1.2, high * 1.2)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
