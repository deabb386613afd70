"""The figure of scores: mean and interval of each configuration, by bench and metric."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator
from scipy import special

from mlpip_bench.records.published import Published
from mlpip_bench.records.record import Record, Scores
from mlpip_bench.reporting.figures.style import (
    ALL,
    COLORS,
    GRAY,
    PERCENT,
    WIDTH,
    Run,
    averaged,
    by_number,
    configurations,
    despine,
    label_of_metric,
    mean_ci95_over_seeds,
    metrics_in_order,
    scale_of,
    wrapped,
)
from mlpip_bench.reporting.wording import budget_in_words
from mlpip_bench.utils.provenance import STAND_INS

_COLUMNS = 2
_LINE = 0.15  # inches of a line of text
_LABEL = 40  # characters of a line of a label
_MOST_TICKS = 5
_BELOW = 0.3  # of the distance of two configurations, so that a published score covers none that was measured
_LOGIT_FROM, _LOG_FROM = 0.9, 5  # the highest share, and the ratio of the highest to the lowest score
_MOST_DECADES = 2  # with ticks at 1, 2 and 5
_PUBLISHED = "published (conditions differ)"
_PUBLISHED_LOOKS: Mapping[str, Any] = {"color": GRAY, "marker": "D", "markerfacecolor": "white"}


class _Point(NamedTuple):
    """A score with its interval, in the metric's own unit, and where it stands in its panel, from the top."""

    place: float
    mean: float
    ci95: float


def scores(records: Sequence[Record], quoted: Sequence[Published] = ()) -> Figure | None:
    """Mean and 95 % Student-t interval of each metric, a panel a bench and metric and a line a configuration.

    Below it, in gray, what the paper reports of the same method; never next to stand-in data.

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
    by_metric = {metric: configurations(records, metric) for metric in metrics_in_order(known)}
    if not by_metric:
        return None
    on_bench: dict[str, dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))  # by label
    for found in by_metric.values():
        for label, runs in found.items():
            for run in runs:
                on_bench[run[0].bench][label].append(run)
    quoted = [] if records[0].data["source"] in STAND_INS else quoted
    metrics = list(by_metric)
    chunks = [metrics[i : i + _COLUMNS] for i in range(0, len(metrics), _COLUMNS)]
    rows = [(bench, chunk) for bench in by_number(on_bench) for chunk in chunks]
    labels = {
        bench: {name: wrapped(averaged(name, by_label[name]), _LABEL) for name in by_number(by_label)}
        for bench, by_label in on_bench.items()
    }
    colors = {method: COLORS[i % len(COLORS)] for i, method in enumerate(sorted({r.method for r in records}))}
    lines = [len(own) * max(1 + label.count("\n") for label in own.values()) for own in (labels[b] for b, _ in rows)]
    columns = max(map(len, chunks))
    figure = Figure(
        figsize=(WIDTH if columns > 1 else 0.7 * WIDTH, sum(_LINE * count + 0.85 for count in lines) + 0.7),
        layout="constrained",
    )
    grid = figure.subplots(len(rows), columns, squeeze=False, height_ratios=lines)
    published = False
    for (bench, chunk), panels in zip(rows, grid, strict=True):
        for axes, metric in zip(panels, chunk, strict=False):
            places = {name: place for place, name in enumerate(labels[bench])}
            found = {name: [run for run in runs if run[0].bench == bench] for name, runs in by_metric[metric].items()}
            points = {name: _Point(places[name], *mean_ci95_over_seeds(runs)) for name, runs in found.items() if runs}
            theirs = _published([row for row in quoted if (row.bench, row.metric) == (bench, metric)], found, places)
            published = published or bool(theirs)
            looks = {name: colors[runs[0][0].method] for name, runs in found.items() if runs}
            if points:
                _panel(axes, points, theirs, looks, known[metric])
            else:
                axes.set_xticks([])
            axes.set_xlabel(_label(known[metric], axes.get_xscale()))
            axes.set_ylim(len(places) - 0.4, -0.6)
            axes.set_yticks(range(len(places)), labels[bench].values() if axes is panels[0] else [])
            despine(axes)
        panels[0].set_title(f"{bench}, {_budget(on_bench[bench])}", loc="left")
        for axes in panels[len(chunk) :]:
            axes.remove()
    bar = f"bar: 95 % Student-t interval over test tasks{_shared_conditions(on_bench)}"
    handles = [Line2D([], [], linestyle="", markersize=4, label=_PUBLISHED, **_PUBLISHED_LOOKS)] if published else []
    figure.legend(handles=handles, loc="outside lower center", frameon=False, title=bar)
    figure.suptitle("Scores")
    return figure


def _label(score: Scores, kind: str) -> str:
    """In three lines, for which a panel has room: the metric, its unit, and its direction and scale."""
    more = f", {kind} scale" if kind.startswith("log") else ""
    return label_of_metric(score.metric, score.unit, "\n") + f"\n{score.better} is better{more}"


def _shared_conditions(on_bench: Mapping[str, Mapping[str, Sequence[Run]]]) -> str:
    """Norm and queries, where all were measured with the same; else they are in the labels."""
    every = (run for by_label in on_bench.values() for runs in by_label.values() for run in runs)
    conditions = {(record.config["norm"], score.queries) for record, score in every}
    return "; norm {}, queries {}".format(*conditions.pop()) if len(conditions) == 1 else ""


def _budget(by_label: Mapping[str, Sequence[Run]]) -> str:
    configs = [record.config for runs in by_label.values() for record, _ in runs]
    return " or ".join(sorted({budget_in_words(config["preset"], f"{config['iterations']:,}") for config in configs}))


def _published(
    quoted: Sequence[Published], found: Mapping[str, Sequence[Run]], places: Mapping[str, int]
) -> list[_Point]:
    """A little below the last of the method's own configurations."""
    last = {record.method: places[name] for name, runs in found.items() for record, _ in runs}
    return [
        _Point(last[row.method] + _BELOW, float(row.mean), float(row.ci95 or 0)) for row in quoted if row.method in last
    ]


def _panel(
    axes: Axes, ours: Mapping[str, _Point], theirs: Sequence[_Point], colors: Mapping[str, Any], score: Scores
) -> None:
    """On a scale on which intervals near 100 %, or near zero, can be seen."""
    means = [point.mean for point in (*ours.values(), *theirs)]
    low, high, scale = -math.inf, math.inf, scale_of(score.unit)
    if (score.unit, score.better) == ("fraction", "higher") and max(means) > _LOGIT_FROM:
        low, high, scale = 1 - ALL, ALL, 1
        axes.set_xscale("logit")
    elif min(means) > 0 and max(means) > _LOG_FROM * min(means):
        low = scale * min(means) / 2  # where bars end that reach zero
        axes.set_xscale("log")
    ends = []

    def draw(points: Sequence[_Point], **looks: Any) -> None:
        place, mean, ci95 = np.array(points).T
        ci95 = scale * np.where(np.isfinite(ci95), ci95, 0)
        start, mean, stop = ((scale * mean + way * ci95).clip(low, high) for way in (-1, 0, 1))
        axes.errorbar(
            mean, place, xerr=[list(mean - start), list(stop - mean)], linestyle="", elinewidth=1, capsize=2, **looks
        )  # fmt: skip
        ends.extend([*start, *stop])

    for name, point in ours.items():
        draw([point], label=name, color=colors[name], marker="o", markersize=4)
    if theirs:
        draw(theirs, label=_PUBLISHED, markersize=3.5, **_PUBLISHED_LOOKS)
    axes.grid(axis="x", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    _ticks(axes, min(ends), max(ends))


def _ticks(axes: Axes, low: float, high: float) -> None:
    """Few enough for their labels to have room."""
    kind = axes.get_xscale()
    if kind == "logit":
        left, right = special.expit(special.logit(low) - 0.3), special.expit(special.logit(high) + 0.3)
        within = [percent for percent in PERCENT if left <= percent / 100 <= right]
        shown = within[:: math.ceil(len(within) / _MOST_TICKS) or 1]
        axes.set_xticks([percent / 100 for percent in shown], map(str, shown))
        axes.set_xlim(left, right)
    elif kind == "log":
        if high < 10**_MOST_DECADES * low:
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(_MOST_TICKS))
    axes.minorticks_off()
