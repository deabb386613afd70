"""Records -> figures, as PNG and PDF.

A figure shows one bench on one source of data, and the models that are best on validation. A method that was run in
several configurations appears once for each, labelled with what differs; the seeds of a configuration are averaged.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import seaborn  # type: ignore[import-untyped]
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from mlpip_bench.errors import UserError
from mlpip_bench.paired import mean_over_seeds
from mlpip_bench.results import Record, Scores, facts, mean_ci95, write_atomically

_STYLE = ("default", seaborn.axes_style("ticks"), {"font.size": 8, "axes.titlesize": 8, "pdf.fonttype": 42})
_COLOURS = seaborn.color_palette("colorblind")
_MARKERS = "osD^vP*X<>hpd8"  # beside the colours, which repeat after ten and are not all told apart in grey
_DODGE = 4.0  # points between the lines of a steps figure, so that equal scores can be told apart,
_MOST_DODGE = 20.0  # and between the first and the last, so that they keep beside their number of steps
_GREY = "0.45"
_COLUMNS = 5


def _configurations(
    records: Sequence[Record], metric: str, conditions: Collection[str] = ()
) -> dict[str, list[Scores]]:
    """Scores of a metric by what was run: the method, with all that tells its configurations apart.

    Args:
        records: of one bench and one source of data.
        metric: its name.
        conditions: names of the test conditions that the scores must have, and no others.
    """
    by_method: dict[str, list[tuple[dict[str, object], int, Scores]]] = defaultdict(list)
    for record in sorted(records, key=lambda r: (r.method, r.seed, r.key)):
        for score in record.scores:
            if score.metric == metric and score.model == "best" and set(score.condition) == set(conditions):
                by_method[record.method].append((facts(record, score), record.seed, score))
    labelled: dict[str, list[tuple[int, Scores]]] = defaultdict(list)
    for method, found in by_method.items():
        names = sorted({name for known, *_ in found for name in known} - {"inductive"})  # norm tells it
        differing = [name for name in names if len({str(known.get(name)) for known, *_ in found}) > 1]
        for known, seed, score in found:
            told = (f"{name.rpartition('.')[2].replace('_', ' ')} {known.get(name, 'unset')}" for name in differing)
            labelled[", ".join([method, *told])].append((seed, score))
    configurations = {}
    for label, group in sorted(labelled.items()):
        seeds = len({seed for seed, _ in group})
        shown = label if seeds == 1 else f"{label}, mean of {seeds} seeds"
        configurations[textwrap.fill(shown, 30)] = [score for _, score in group]
    return configurations


def _mean_ci95(seeds: Sequence[Scores]) -> tuple[float, float]:
    """Mean and 95 % half-width over tasks of the mean over seeds, which share their test tasks; as in the tables."""
    return mean_ci95(mean_over_seeds([seed.per_task for seed in seeds]))


def _title(what: str, records: Sequence[Record]) -> str:
    stand_in = records[0].data["source"] == "procedural"
    return f"{what} on {records[0].bench}" + (", stand-in data" if stand_in else "")


# ---------------------------------------------------------------------------------------------------- reliability


def reliability(records: Sequence[Record]) -> Figure | None:
    """Accuracy against confidence in bins of the top predictive probability, a panel a configuration.

    Args:
        records: of one bench and one source of data.

    Returns:
        The figure; ``None`` where no record has an expected calibration error.
    """
    panels = _configurations(records, "ece")
    if not panels:
        return None
    columns = min(len(panels), _COLUMNS)
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(1.9 * max(columns, 1.5) + 0.8, 2.75 * rows + 0.9), layout="compressed")
    grid = figure.subplots(2 * rows, columns, sharex=True, squeeze=False, height_ratios=[4, 1] * rows)
    most = max(max(seed.detail["count"]) for seeds in panels.values() for seed in seeds)
    for i, (label, seeds) in enumerate(panels.items()):
        row, column = divmod(i, columns)
        diagram, counts = grid[2 * row, column], grid[2 * row + 1, column]
        _reliability_panel(diagram, counts, seeds)
        error, ci95 = _mean_ci95(seeds)
        diagram.set_title(f"{label}\nECE {100 * error:.2f} ± {f'{100 * ci95:.2f}' if ci95 < math.inf else 'n/a'} %")
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
    figure.suptitle(_title("Reliability", records))
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, 2), frameon=False)
    return figure


def _reliability_panel(diagram: Axes, counts: Axes, seeds: Sequence[Scores]) -> None:
    per_seed = np.array([seed.detail["count"] for seed in seeds])  # [seed, bin]
    total = per_seed.sum(0)
    shown = total > 0

    def mean(name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Over seeds, by queries; that of half-widths bounds the mean's half-width however the seeds depend."""
        values = np.array([seed.detail[name] for seed in seeds])
        weighted: np.ndarray[Any, np.dtype[np.float64]] = (values * per_seed).sum(0)[shown] / total[shown]
        return weighted

    confidence, accuracy, ci95 = mean("confidence"), mean("accuracy"), mean("accuracy_ci95")
    bars = np.stack([accuracy - (accuracy - ci95).clip(0), (accuracy + ci95).clip(max=1) - accuracy])
    diagram.plot((0, 1), (0, 1), color=_GREY, linestyle="--", linewidth=1, label="perfect calibration")
    diagram.errorbar(
        confidence, accuracy, bars, color=_COLOURS[0], marker="o", markersize=3, linewidth=1, elinewidth=0.8,
        label="accuracy of a bin, bar: 95 % interval over tasks",
    )  # fmt: skip
    edges = np.linspace(0, 1, len(total) + 1)
    counts.bar(
        edges[:-1],
        total / len(seeds),
        width=1 / len(total),
        align="edge",
        color=_GREY,
        edgecolor="white",
        linewidth=0.4,
    )


# ---------------------------------------------------------------------------------------------------------- steps


def steps(records: Sequence[Record]) -> Figure | None:
    """Accuracy and negative log-likelihood against the number of adaptation steps, a line a configuration.

    Args:
        records: of one bench and one source of data.

    Returns:
        The figure; ``None`` where no record has scores by number of steps.
    """
    panels = {
        label: found
        for metric, label in (("accuracy", "accuracy (%)"), ("nll", "negative log-likelihood (nats per query)"))
        if (found := _configurations(records, metric, ("steps",)))
    }
    if not panels:
        return None
    figure = Figure(figsize=(3.3 * len(panels) + 1.8, 3.2), layout="constrained")
    (grid,) = figure.subplots(1, len(panels), squeeze=False)
    names = sorted({name for lines in panels.values() for name in lines})
    for axes, (ylabel, lines) in zip(grid, panels.items(), strict=True):
        for label, scores in lines.items():
            _steps_line(axes, scores, names.index(label), len(names), label)
        most = max(s.condition["steps"] for scores in lines.values() for s in scores)
        ticks = [0] + [m * 10**e for e in range(len(str(most))) for m in (1, 2, 5)]
        axes.set_xscale("symlog", linthresh=1, linscale=0.4)  # which has a place for 0 steps
        axes.set_xticks([t for t in ticks if t <= most], [str(t) for t in ticks if t <= most])
        axes.set(xlabel="adaptation steps", ylabel=ylabel)
        axes.margins(x=0.12)
        axes.minorticks_off()
        seaborn.despine(ax=axes)
    figure.suptitle(_title("Adaptation steps", records))
    handles = dict(zip(*reversed(grid[0].get_legend_handles_labels()), strict=True))
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside right center",
        frameon=False,
        title="bar: 95 % interval\nover tasks; points are\nmoved aside to be seen",
    )
    return figure


def _steps_line(axes: Axes, scores: Sequence[Scores], index: int, lines: int, label: str) -> None:
    by_steps: dict[float, list[Scores]] = defaultdict(list)
    for score in scores:
        by_steps[float(score.condition["steps"])].append(score)
    x = sorted(by_steps)
    scale = 100 if scores[0].unit == "fraction" else 1
    mean, ci95 = scale * np.array([_mean_ci95(by_steps[n]) for n in x]).T
    line, caps, bars = axes.errorbar(
        x, mean, np.where(np.isfinite(ci95), ci95, 0), label=label, color=_COLOURS[index % len(_COLOURS)],
        marker=_MARKERS[index % len(_MARKERS)], linestyle="--" if index // len(_COLOURS) % 2 else "-",
        markersize=4, markerfacecolor="none", linewidth=1, capsize=1.5,
    )  # fmt: skip
    points = min(_DODGE, _MOST_DODGE / max(lines - 1, 1)) * (index - (lines - 1) / 2)
    aside = axes.transData + ScaledTranslation(points / 72, 0, axes.figure.dpi_scale_trans)
    for artist in (line, *caps, *bars):  # not by errorbar's own argument, which spoils the limits of the axes
        artist.set_transform(aside)


# -------------------------------------------------------------------------------------------------------- writing

FIGURES: Mapping[str, Callable[[Sequence[Record]], Figure | None]] = MappingProxyType(
    {"reliability": reliability, "steps": steps}
)
"""Each takes the records of one bench and source, and gives ``None`` where they have nothing to show."""


def write_figures(records: Sequence[Record], results: Path) -> list[Path]:
    """Write ``<figure>-<bench>.png`` and ``.pdf`` below ``results/figures``, for all that the records can show.

    Figures on stand-in data are apart, with ``-stand-in`` in their names. The same records give the same bytes.

    Returns:
        The files written.

    Raises:
        UserError: no record has anything to show, or a file cannot be written.
    """
    groups: dict[tuple[str, bool], list[Record]] = defaultdict(list)
    for record in records:
        groups[record.bench, record.data["source"] == "procedural"].append(record)
    written = []
    with style.context(_STYLE):
        for name, draw in FIGURES.items():
            for (bench, stand_in), group in sorted(groups.items()):
                figure = draw(group)
                if figure is None:
                    continue
                stem = f"{name}-{bench}" + ("-stand-in" if stand_in else "")
                for suffix, options in (("png", {"dpi": 200}), ("pdf", {"metadata": {"CreationDate": None}})):
                    content = io.BytesIO()
                    figure.savefig(content, format=suffix, **options)
                    path = results / "figures" / f"{stem}.{suffix}"
                    write_atomically(path, content.getvalue())
                    written.append(path)
    if not written:
        raise UserError(
            f"figures are made from records of calibration or of adaptation steps; there are none below "
            f"{results / 'records'}. Make some first, for example with "
            "`python -m mlpip_bench run --methods versa,maml --bench mini5w5s --protocols calibration`."
        )
    return written
