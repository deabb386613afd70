"""Records -> figures, as PNG and PDF.

A figure shows what it is grouped by, most often one bench, on one source of data, and the models that are best on
validation. A method that was run in several configurations appears once for each, labelled with what differs; the
seeds of a configuration are averaged, or the first of them is shown and named.
"""

from __future__ import annotations

import io
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import seaborn  # type: ignore[import-untyped]
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from mlpip_bench.comparison_figures import cost, learning, scores
from mlpip_bench.datasets.base import STAND_INS
from mlpip_bench.paper_figures import posterior, reconstruction, samples, versatility, weights
from mlpip_bench.plotting import (
    COLOURS,
    GREY,
    MARKERS,
    STYLE,
    Run,
    averaged,
    configurations,
    mean_ci95_over_seeds,
    numbers,
    wrapped,
)
from mlpip_bench.records.record import Record
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import write_atomically

_DODGE = 4.0  # points between the lines of a steps figure, so that equal scores can be told apart,
_MOST_DODGE = 20.0  # and between the first and the last, so that they keep beside their number of steps
_COLUMNS = 5


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
    figure = Figure(figsize=(1.9 * max(columns, 1.5) + 0.8, 2.75 * rows + 0.9), layout="compressed")
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
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, 2), frameon=False)
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
    diagram.plot((0, 1), (0, 1), color=GREY, linestyle="--", linewidth=1, label="perfect calibration")
    diagram.errorbar(
        confidence, accuracy, bars, color=COLOURS[0], marker="o", markersize=3, linewidth=1, elinewidth=0.8,
        label="accuracy of a bin, bar: 95 % interval over tasks",
    )  # fmt: skip
    edges = np.linspace(0, 1, len(total) + 1)
    counts.bar(
        edges[:-1],
        total / len(runs),
        width=1 / len(total),
        align="edge",
        color=GREY,
        edgecolor="white",
        linewidth=0.4,
    )


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
        seaborn.despine(ax=axes)
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
        x, mean, np.where(np.isfinite(ci95), ci95, 0), label=label, color=COLOURS[index % len(COLOURS)],
        marker=MARKERS[index % len(MARKERS)], linestyle="--" if index // len(COLOURS) % 2 else "-",
        markersize=4, markerfacecolor="none", linewidth=1, capsize=1.5,
    )  # fmt: skip
    points = min(_DODGE, _MOST_DODGE / max(lines - 1, 1)) * (index - (lines - 1) / 2)
    aside = axes.transData + ScaledTranslation(points / 72, 0, axes.figure.dpi_scale_trans)
    for artist in (line, *caps, *bars):  # not by errorbar's own argument, which spoils the limits of the axes
        artist.set_transform(aside)


# -------------------------------------------------------------------------------------------------------- writing


class FigureKind(NamedTuple):
    """A kind of figure.

    Attributes:
        draw: takes the records of one group and one data set, and gives ``None`` where they have nothing to show.
        by: the group of a record, as parts of the file's name; the first is what the title names.
    """

    draw: Callable[[Sequence[Record]], Figure | None]
    by: Callable[[Record], tuple[str, ...]]


def _bench(record: Record) -> tuple[str, ...]:
    return (record.bench,)


def _bench_and_method(record: Record) -> tuple[str, ...]:
    return record.bench, record.method


def _benches(record: Record) -> tuple[str, ...]:
    """All benches of a data set, whose names begin with it."""
    return (re.split(r"\d", record.bench)[0],)


FIGURES: Mapping[str, FigureKind] = MappingProxyType(
    {
        "scores": FigureKind(scores, _benches),
        "learning": FigureKind(learning, _bench),
        "cost": FigureKind(cost, _bench),
        "reliability": FigureKind(reliability, _bench),
        "steps": FigureKind(steps, _bench),
        "posterior": FigureKind(posterior, _bench),
        "samples": FigureKind(samples, _benches),
        "versatility": FigureKind(versatility, _benches),
        "weights": FigureKind(weights, _bench_and_method),
        "reconstruction": FigureKind(reconstruction, _bench),
    }
)

_SEVERAL_SOURCES = ("views",)  # their files name the data set whatever other records there are


def draw_figures(records: Sequence[Record]) -> Iterator[tuple[str, Figure]]:
    """Name and figure of all that the records can show.

    Data sets are apart, and named where a bench has records of several or may have.
    """
    names: dict[tuple[str, bool], set[str]] = defaultdict(set)
    for record in records:
        names[_benches(record)[0], record.data["source"] in STAND_INS].add(record.data.get("name", ""))
    for name, (draw, by) in FIGURES.items():
        groups: dict[tuple[tuple[str, ...], bool, str], list[Record]] = defaultdict(list)
        for record in records:
            groups[by(record), record.data["source"] in STAND_INS, record.data.get("name", "")].append(record)
        for (parts, stand_in, data), group in sorted(groups.items()):
            figure = draw(group)
            if figure is None:
                continue
            family = _benches(group[0])[0]
            named = len(names[family, stand_in]) > 1 or family in _SEVERAL_SOURCES
            shown_on = parts[0] + (f" ({data})" if named else "") + (", stand-in data" if stand_in else "")
            figure.suptitle(f"{figure.get_suptitle()} on {shown_on}")
            yield "-".join([name, *parts, *([data] if named else []), *(["stand-in"] if stand_in else [])]), figure


def write_figures(records: Sequence[Record], results: Path) -> list[Path]:
    """Write ``<figure>-<bench>.png`` and ``.pdf`` below ``results/figures``, for all that the records can show.

    Figures on stand-in data are apart, with ``-stand-in`` in their names. The same records give the same bytes.

    Returns:
        The files written.

    Raises:
        UserError: no record has anything to show, or a file cannot be written.
    """
    written = []
    with style.context(STYLE):
        for stem, figure in draw_figures(records):
            for suffix, options in (("png", {"dpi": 200}), ("pdf", {"metadata": {"CreationDate": None}})):
                content = io.BytesIO()
                figure.savefig(content, format=suffix, **options)
                path = results / "figures" / f"{stem}.{suffix}"
                write_atomically(path, content.getvalue())
                written.append(path)
    if not written:
        raise UserError(
            f"figures are made from records; there are none below {results / 'records'} that one can be drawn from. "
            "Make some first, for example with "
            "`python -m mlpip_bench run --methods versa,maml --bench mini5w5s --protocols calibration`."
        )
    return written
