"""Figures that compare methods: scores by bench, learning curves, and cost against accuracy.

Each takes the records of one bench, or of all benches of a data set, as the table ``FIGURES`` of ``writing`` says.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import seaborn  # type: ignore[import-untyped]
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator
from scipy import special

from mlpip_bench.records.published import Published
from mlpip_bench.records.record import Record, Scores, facts
from mlpip_bench.reporting.figures.style import (
    ALL,
    COLORS,
    GRAY,
    MARKERS,
    PERCENT,
    Run,
    averaged,
    by_number,
    configurations,
    labeled,
    mean_ci95_over_seeds,
    wrapped,
)
from mlpip_bench.utils.provenance import STAND_INS

_FIRST = ("accuracy", "nll")  # the two of the paper's tables, before what else was measured
_NAMES = MappingProxyType(
    {
        "nll": "negative log-likelihood", "ece": "expected calibration error", "brier": "Brier score",
        "mse": "mean squared error", "ssim": "SSIM", "ssim_range_2": "SSIM with data range 2", "kl": "KL divergence",
    }
)  # fmt: skip
_COLUMNS = 2
_LEGEND_COLUMNS = 3
_GROUP = 0.75  # of the distance of two benches, for the configurations on one of them
_MOST_STEP = 0.13
_ASIDE = 0.35  # of the distance of two configurations, so that a published score covers none that was measured
_LOGIT_FROM, _LOG_FROM = 0.9, 5  # the highest share, and the ratio of the highest to the lowest score
_MOST_DECADES = 3  # with ticks at 1, 2 and 5
_MOST_MARKS = 15  # on a learning curve, so that lines with many validations can be distinguished by their markers
_DASHES: tuple[Any, ...] = ("-", "--", "-.", ":")

_TEST_ONLY = ("protocol", "protocol code", "queries", "test_tasks", "compile")
"""Facts that a trained model does not depend on."""


def _looks(index: int) -> dict[str, Any]:
    return {"color": COLORS[index % len(COLORS)], "marker": MARKERS[index % len(MARKERS)]}


def _ordered(metrics: set[str]) -> list[str]:
    return sorted(metrics, key=lambda metric: (metric not in _FIRST, metric))


def _scale(unit: str) -> int:
    return 100 if unit == "fraction" else 1


def _label(metric: str, unit: str) -> str:
    return f"{_NAMES.get(metric, metric)} ({'%' if unit == 'fraction' else unit})"


# --------------------------------------------------------------------------------------------------------- scores


class _Point(NamedTuple):
    """A score with its interval, in the metric's own unit."""

    x: float
    mean: float
    ci95: float


def scores(records: Sequence[Record], quoted: Sequence[Published] = ()) -> Figure | None:
    """Mean and 95 % Student-t interval of each metric by bench, a panel a metric and a marker a configuration.

    Next to them, in gray, what the paper reports of the same methods; never next to stand-in data.

    Args:
        records: of the benches of one data set.
        quoted: what the paper reports, under the names that methods have here.

    Returns:
        The figure; ``None`` where no record has a score of the bench's own condition that is better high or low.
    """
    known = {
        score.metric: score
        for record in records
        for score in record.scores
        if not score.condition and score.model == "best" and score.better != "neither"
    }
    panels = {metric: configurations(records, metric) for metric in _ordered(set(known))}
    if not panels:
        return None
    every: dict[str, list[Run]] = defaultdict(list)
    for found in panels.values():
        for label, runs in found.items():
            every[label] += runs
    names = by_number(every)
    benches = by_number({record.bench for runs in every.values() for record, _ in runs})
    looks = {name: _looks(i) for i, name in enumerate(names)} | {_PUBLISHED: _PUBLISHED_LOOKS}
    labels = {name: wrapped(averaged(name, every[name])) for name in names}
    quoted = [] if records[0].data["source"] in STAND_INS else quoted
    columns = min(len(panels), _COLUMNS)
    rows = math.ceil(len(panels) / columns)
    legend = sum(0.2 + 0.13 * label.count("\n") for label in labels.values()) / _LEGEND_COLUMNS + 0.4  # inches
    width = columns * max(3.6, 0.6 + 0.95 * len(benches))
    figure = Figure(figsize=(max(width, 5.4), 2.4 * rows + 0.3 + legend), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, (metric, found) in zip(grid.flat, panels.items(), strict=False):
        points = {label: _points(runs, names.index(label), len(names), benches) for label, runs in found.items()}
        if theirs := _published([row for row in quoted if row.metric == metric], found, names, benches):
            points[_PUBLISHED] = theirs
            labels[_PUBLISHED] = _PUBLISHED
        _scores_panel(axes, points, looks, known[metric])
        axes.set_title(f"{_label(metric, known[metric].unit)}, {known[metric].better} is better")
        axes.set_xticks(range(len(benches)), [f"{bench}\n{_budget(every, bench)}" for bench in benches])
        axes.set_xlim(-0.5, len(benches) - 0.5)
        axes.tick_params(axis="x", length=0)
        for edge in np.arange(len(benches) - 1) + 0.5:
            axes.axvline(edge, color="0.85", linewidth=0.8, zorder=0)
        seaborn.despine(ax=axes)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    figure.legend(
        [Line2D([], [], linestyle="", markersize=5, **looks[name]) for name in labels], labels.values(),
        loc="outside lower center", ncols=_LEGEND_COLUMNS, frameon=False,
        title=f"bar: 95 % Student-t interval over test tasks{_shared_conditions(every)}",
    )  # fmt: skip
    figure.suptitle("Scores")
    return figure


_PUBLISHED = "published (conditions differ)"
_PUBLISHED_LOOKS: dict[str, Any] = {"color": GRAY, "marker": "H", "markerfacecolor": "white"}


def _shared_conditions(every: Mapping[str, Sequence[Run]]) -> str:
    """Norm and queries, where all were measured with the same; else they are in the labels."""
    conditions = {(record.config["norm"], score.queries) for runs in every.values() for record, score in runs}
    return "; norm {}, queries {}".format(*conditions.pop()) if len(conditions) == 1 else ""


def _budget(every: Mapping[str, Sequence[Run]], bench: str) -> str:
    configs = [record.config for runs in every.values() for record, _ in runs if record.bench == bench]
    return ",\n".join(sorted({f"{config['preset']},\n{config['iterations']:,} it" for config in configs}))


def _position(index: int, count: int) -> float:
    """Of a configuration, relative to its bench."""
    return _step(count) * (index - (count - 1) / 2)


def _step(count: int) -> float:
    return min(_GROUP / count, _MOST_STEP)


def _points(runs: Sequence[Run], index: int, count: int, benches: Sequence[str]) -> list[_Point]:
    by_bench: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_bench[run[0].bench].append(run)
    return [
        _Point(benches.index(bench) + _position(index, count), *mean_ci95_over_seeds(own))
        for bench, own in by_bench.items()
    ]


def _published(
    quoted: Sequence[Published], found: Mapping[str, Sequence[Run]], names: Sequence[str], benches: Sequence[str]
) -> list[_Point]:
    """A little to the side of the middle of the method's own configurations, on the benches that it was run on."""
    places: dict[tuple[str, str], set[float]] = defaultdict(set)
    for label, runs in found.items():
        for record, _ in runs:
            places[record.bench, record.method].add(_position(names.index(label), len(names)))
    return [
        _Point(
            benches.index(row.bench) + statistics.fmean(places[row.bench, row.method]) + _ASIDE * _step(len(names)),
            float(row.mean),
            float(row.ci95 or 0),
        )
        for row in quoted
        if (row.bench, row.method) in places
    ]


def _scores_panel(
    axes: Axes, points: Mapping[str, Sequence[_Point]], looks: Mapping[str, dict[str, Any]], score: Scores
) -> None:
    """On a scale on which intervals near 100 %, or near zero, can be seen."""
    means = [point.mean for series in points.values() for point in series]
    low, high, scale = -math.inf, math.inf, _scale(score.unit)
    if (score.unit, score.better) == ("fraction", "higher") and max(means) > _LOGIT_FROM:
        low, high, scale = 1 - ALL, ALL, 1
        axes.set_yscale("logit")
        axes.set_yticks([percent / 100 for percent in PERCENT], map(str, PERCENT))
    elif min(means) > 0 and max(means) > _LOG_FROM * min(means):
        low = scale * min(means) / 2  # where bars end that reach zero
        axes.set_yscale("log")
        if max(means) < 10**_MOST_DECADES * min(means):
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
    ends = []
    for name, series in points.items():
        x, mean, ci95 = np.array(series).T
        ci95 = scale * np.where(np.isfinite(ci95), ci95, 0)
        bottom, mean, top = ((scale * mean + way * ci95).clip(low, high) for way in (-1, 0, 1))
        bars = np.stack([mean - bottom, top - mean])
        axes.errorbar(x, mean, bars, label=name, linestyle="", markersize=4.5, elinewidth=1, capsize=2, **looks[name])
        ends += [*(mean - bars[0]), *(mean + bars[1])]
    if axes.get_yscale() == "logit":
        axes.set_ylim(special.expit(special.logit(min(ends)) - 0.3), special.expit(special.logit(max(ends)) + 0.3))
    if axes.get_yscale() != "linear":
        axes.set_ylabel(f"{axes.get_yscale()} scale")
    axes.minorticks_off()


# ------------------------------------------------------------------------------------------------------- learning


def learning(records: Sequence[Record]) -> Figure | None:
    """Validation scores against the training tasks seen, a panel a metric and a line a configuration.

    Several seeds are a line of their means in a band from the lowest to the highest. A method without parameters
    is a level line.

    Args:
        records: of one bench and one data set.

    Returns:
        The figure; ``None`` where no record has a history of validations.
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
    metrics = _ordered({name for entry in validations for name in entry} - {"iteration", "loss"})
    figure = Figure(figsize=(3.3 * len(metrics) + 1.8, 3.2), layout="constrained")
    (grid,) = figure.subplots(1, len(metrics), squeeze=False)
    for axes, metric in zip(grid, metrics, strict=True):
        unit = units.get(metric, "")
        for index, (label, own) in enumerate(trained.items()):
            _learning_line(axes, own, metric, _scale(unit), index, wrapped(averaged(label, lines[label])))
        name = _label(metric, unit).replace(" (", "\n(") if unit else metric
        axes.set(xlabel="training tasks seen", ylabel=f"validation {name}")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        seen = {round(x) for line in axes.lines for x in line.get_xdata() if x > 1}
        if len(seen) == 1:  # whose surroundings are fractions of a task
            axes.set_xticks(sorted(seen))
        else:
            axes.locator_params(axis="x", nbins=5, integer=True)
        axes.ticklabel_format(axis="y", useOffset=False)
        seaborn.despine(ax=axes)
    handles = dict(zip(*reversed(grid[0].get_legend_handles_labels()), strict=True))
    band = "band: range of the seeds" if any(len(own) > 1 for own in trained.values()) else None
    figure.legend(handles.values(), handles.keys(), loc="outside right center", frameon=False, title=band)
    figure.suptitle("Learning curves")
    return figure


def _learning_line(axes: Axes, own: Sequence[Record], metric: str, scale: int, index: int, label: str) -> None:
    """One configuration, ``own`` having a record a seed."""
    histories = [record.training["history"] for record in own]
    seen = [entry["iteration"] * own[0].config["tasks_per_batch"] for entry in histories[0]]
    values = scale * np.array(
        [[entry.get(metric, math.nan) for entry in history] for history in histories]
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
    since times of two sessions are not to be compared. Only configurations whose very model was timed are shown.

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
    figure = Figure(figsize=(3.3 * len(panels) + 1.8, 3.2), layout="constrained")
    (grid,) = figure.subplots(1, len(panels), sharey=True, squeeze=False)
    for axes, (session, found) in zip(grid, panels.items(), strict=True):
        for label, runs in found.items():
            _cost_point(axes, runs, [timed[_model(run)][1] for run in runs], names.index(label))
        environment = timed[_model(runs[0])][0].environment
        machine = environment.get("gpu") or f"{environment.get('processor')}, threads {environment.get('threads')}"
        axes.set(xscale="log", xlabel="time to adapt and predict (ms per task)")
        axes.set_title(f"timed until {session[:19]} UTC\n{machine}")
        _plain_ticks(axes)
        seaborn.despine(ax=axes)
    grid[0].set_ylabel(_label("accuracy", "fraction"))
    figure.legend(
        [Line2D([], [], linestyle="", markersize=5, **_looks(i)) for i, _ in enumerate(names)],
        [wrapped(averaged(name, [run for found in panels.values() for run in found.get(name, [])])) for name in names],
        loc="outside right center", frameon=False,
        title="bars: 95 % interval over tasks;\nquartiles over repeats",
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
