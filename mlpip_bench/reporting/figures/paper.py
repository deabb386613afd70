"""Figures of the paper: posteriors, samples, versatility."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy import special

from mlpip_bench.records.record import Record, Scores
from mlpip_bench.records.statistics import mean_ci95
from mlpip_bench.reporting.figures.style import (
    ALL,
    COLORS,
    GRAY,
    MARKERS,
    PERCENT,
    Floats,
    Run,
    averaged,
    by_number,
    configurations,
    despine,
    first_seeds,
    mean_ci95_over_seeds,
    numbers,
    wrapped,
)

_TASKS = 4  # the first unseen ones
_LEGEND_COLUMNS = 3
_CLIP = 2.0  # densities are shown up to so many times the highest true one: those near a point mass have no end
_DASHES: tuple[Any, ...] = ("--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)))

_OPTIMA: Mapping[int, Mapping[int, float]] = MappingProxyType(
    {
        5: {1: 0, 5: 0, 10: 0.25, 20: 0.65, 50: 0.85, 100: 0.95, 500: 1.00},
        10: {1: 0, 5: 0, 10: 0.00, 20: 0.40, 50: 0.80, 100: 0.90},
    }
)
"""Variance ratio that minimizes the expected Eq. 4 of the toy experiment, by observations and L.

Where q has the true mean; by simulation with exact second moments.
"""

_CLOSED_FORM = 0  # as the setting ``samples``
_LEAST_SWEEP = 3


# ------------------------------------------------------------------------------------------------------ posterior


def posterior(records: Sequence[Record]) -> Figure | None:
    """True and approximate posteriors of the first unseen tasks, with their observations (the paper's toy figure).

    Of the last models, which training has brought nearest to convergence.

    Args:
        records: of one bench and one data set.

    Returns:
        The figure; ``None`` where no record has posteriors of a scalar psi.
    """
    shown = first_seeds(
        configurations(records, "kl", model="last", detail="q_mean", ignored=("settings.eval_samples",))
    )
    if not shown:
        return None
    scores = {f"{wrapped(label)}\n{_kl(score)}": score for label, (_, score) in shown.items()}
    known = next(iter(scores.values()))  # of tasks that all share
    observations = numbers(known, "observations").reshape(len(numbers(known, "q_mean")), -1)
    tasks = min(_TASKS, *(len(numbers(score, "q_mean")) for score in scores.values()))
    highest = 1 / numbers(known, "true_std")[:tasks].min() / math.sqrt(2 * math.pi)
    legend = sum(0.2 + 0.13 * label.count("\n") for label in scores) / _LEGEND_COLUMNS  # inches
    figure = Figure(figsize=(7.0, 2.4 + legend), layout="constrained")
    (grid,) = figure.subplots(1, tasks, sharey=True, squeeze=False)
    for task, axes in enumerate(grid):
        _posterior_panel(axes, scores, task)
        below = np.full(observations.shape[1], -0.09 * highest)
        axes.plot(observations[task], below, "*", color=GRAY, markersize=5, markeredgewidth=0, label="observations")
        axes.set_title(f"unseen task {task + 1}")
        axes.set_xlabel(r"$\psi$", parse_math=True)
        despine(axes)
    drawn = max(line.get_ydata().max() for axes in grid for line in axes.lines[:-1])
    grid[0].set(ylabel="density", ylim=(-0.18 * highest, 1.05 * min(drawn, _CLIP * highest)))
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=_LEGEND_COLUMNS, frameon=False)
    figure.suptitle(f"Posteriors given {known.shot} observations")
    return figure


def _posterior_panel(axes: Axes, scores: Mapping[str, Scores], task: int) -> None:
    known = next(iter(scores.values()))
    mean, std = (numbers(known, name)[task] for name in ("true_mean", "true_std"))
    every = mean + std * np.linspace(-4, 4, 161)

    def line(mean: float, std: float, **looks: Any) -> tuple[Floats, Floats]:
        psi = np.sort(np.concatenate([every, mean + std * np.linspace(-4, 4, 81)]))  # fine where the density is high
        density: Floats = np.exp(-(((psi - mean) / std) ** 2) / 2) / (std * math.sqrt(2 * math.pi))
        axes.plot(psi, density, **looks)
        return psi, density

    axes.fill_between(*line(mean, std, color="black", linewidth=2, label="true posterior"), color="0.88", linewidth=0)
    for i, (label, score) in enumerate(scores.items()):
        line(
            *(numbers(score, name)[task] for name in ("q_mean", "q_std")),
            color=COLORS[i % len(COLORS)],
            linestyle=_DASHES[i % len(_DASHES)],
            linewidth=1.2,
            label=label,
        )


def _kl(score: Scores) -> str:
    mean, ci95 = mean_ci95(score.per_task)
    decimals = 4 if mean < 10 else 0
    within = f" ± {ci95:.{decimals}f}" if ci95 < math.inf else ""
    return f"KL {mean:.{decimals}f}{within} nats"


# -------------------------------------------------------------------------------------------------------- samples


def samples(records: Sequence[Record]) -> Figure | None:
    """Ratio of q's variance to the true one against L, the samples of the training objective, a line a bench.

    Of the last models: those that are best on validation stopped where q is still wider than the objective's optimum.

    Args:
        records: of the benches of one data set.

    Returns:
        The figure; ``None`` where no method has variance ratios at three or more values of its setting ``samples``.
    """
    sampled = [record for record in records if "samples" in record.config.get("settings", {})]
    panels = {
        label: runs
        for label, runs in configurations(
            sampled, "variance_ratio", model="last", ignored=("settings.samples", "settings.eval_samples")
        ).items()
        if len({_samples(record) for record, _ in runs}) >= _LEAST_SWEEP
    }
    if not panels:
        return None
    benches = by_number({record.bench for runs in panels.values() for record, _ in runs})
    figure = Figure(figsize=(3.4 * len(panels) + 0.2, 3.3), layout="constrained")
    (grid,) = figure.subplots(1, len(panels), sharey=True, squeeze=False)
    values = {_samples(record) for runs in panels.values() for record, _ in runs} | {
        n for runs in panels.values() for run in runs for n in _optima(run)
    }
    closed = 3 * max(values)
    ticks = sorted(values - {_CLOSED_FORM})
    for axes, (label, runs) in zip(grid, panels.items(), strict=True):
        axes.set(xscale="log", xlabel="L, samples of the training objective", title=wrapped(averaged(label, runs)))
        axes.axhline(1, color=GRAY, linestyle="--", linewidth=1, label="true variance")
        for i, bench in enumerate(benches):
            _samples_line(axes, [run for run in runs if run[0].bench == bench], bench, i, closed)
        axes.set_xticks([*ticks, closed], [*map(str, ticks), "closed\nform"])
        axes.minorticks_off()
        despine(axes)
    grid[0].set(ylabel="variance of q / true variance")
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=1 + len(panels), frameon=False,
        title="bar: 95 % interval over seeds",
    )  # fmt: skip
    figure.suptitle("Posterior variance")
    return figure


def _samples(record: Record) -> int:
    return int(record.config["settings"]["samples"])


def _optima(run: Run) -> Mapping[int, float]:
    record, score = run
    return _OPTIMA.get(score.shot, {}) if record.bench.startswith("toy") else {}


def _samples_line(axes: Axes, runs: Sequence[Run], bench: str, index: int, closed: float) -> None:
    by_samples: dict[int, list[float]] = defaultdict(list)
    for record, score in runs:
        by_samples[_samples(record)].append(mean_ci95(score.per_task)[0])
    looks: dict[str, Any] = {"color": COLORS[index], "marker": MARKERS[index], "linewidth": 1}
    parts = (sorted(by_samples.keys() - {_CLOSED_FORM}), sorted(by_samples.keys() & {_CLOSED_FORM}))
    for part, label in zip(parts, (bench, None), strict=True):
        if part:
            mean, ci95 = np.array([mean_ci95(by_samples[n]) for n in part]).T
            axes.errorbar(
                [n or closed for n in part], mean, np.where(np.isfinite(ci95), ci95, 0), markersize=3.5, capsize=2,
                label=label, **looks,
            )  # fmt: skip
    if runs and (optima := _optima(runs[0])):
        axes.plot(
            list(optima), list(optima.values()), linestyle="", markersize=8, markerfacecolor="none",
            label=f"{bench}, optimum of Eq. 4", **looks,
        )  # fmt: skip


# ---------------------------------------------------------------------------------------------------- versatility


def versatility(records: Sequence[Record]) -> Figure | None:
    """Accuracy on tasks of other ways and other shots than in training, a line a bench trained on, a row a method.

    Args:
        records: of the benches of one data set.

    Returns:
        The figure; ``None`` where no record has accuracies of varied way or shot.
    """
    columns = {varied: configurations(records, "accuracy", names) for varied, names in _VARIED.items()}
    rows = by_number({label for found in columns.values() for label in found})
    if not rows:
        return None
    every = [run for found in columns.values() for runs in found.values() for run in runs]
    benches = by_number({record.bench for record, _ in every})
    figure = Figure(figsize=(7.0, 2.5 * len(rows) + 0.8), layout="constrained")
    grid = figure.subplots(len(rows), 2, sharex="col", sharey=True, squeeze=False)
    for axes_row, label in zip(grid, rows, strict=True):
        for axes, (varied, found) in zip(axes_row, columns.items(), strict=True):
            of_panel = found.get(label, [])
            _chance(axes, of_panel, varied)
            for i, bench in enumerate(benches):
                _versatility_line(axes, [run for run in of_panel if run[0].bench == bench], varied, i)
            axes.set_title(wrapped(averaged(label, of_panel) if of_panel else label))
            despine(axes)
        axes_row[0].set_ylabel("accuracy (%, logit scale)")
    grid[0, 0].set_yscale("logit")  # which has room for chance, and for what differs near 100 %
    grid[0, 0].set_yticks([percent / 100 for percent in PERCENT], map(str, PERCENT))
    grid[0, 0].minorticks_off()
    low, high = min(axes.dataLim.y0 for axes in grid.flat), max(axes.dataLim.y1 for axes in grid.flat)
    grid[0, 0].set_ylim(special.expit(special.logit(low) - 0.3), special.expit(special.logit(high) + 0.3))
    for axes, (varied, found) in zip(grid[-1], columns.items(), strict=True):
        scores = [score for runs in found.values() for _, score in runs]
        ticks = sorted({getattr(score, varied) for score in scores})
        ways = "-, ".join(map(str, sorted({score.way for score in scores})))
        axes.set_xticks(ticks, map(str, ticks))
        axes.set_xlabel("test way, shot as in training" if varied == "way" else f"test shot, {ways}-way")
    handles = [
        Line2D([], [], color=COLORS[i % len(COLORS)], marker=MARKERS[i % len(MARKERS)], markersize=4, linewidth=1)
        for i, _ in enumerate(benches)
    ]
    figure.legend(
        [*handles, Line2D([], [], color=GRAY, linestyle=":", linewidth=1)], [*benches, "chance"],
        loc="outside lower center", ncols=len(benches) + 1, frameon=False,
        title="trained on; filled: way and shot of training; bar: 95 % interval over tasks",
    )  # fmt: skip
    figure.suptitle("Versatility")
    return figure


_VARIED = MappingProxyType({"way": ("way",), "shot": ("shot", "way")})
"""What each panel varies, and the condition that its scores have."""


def _chance(axes: Axes, runs: Sequence[Run], varied: str) -> None:
    """Of one class in ``way``, lightly."""
    points = sorted({(getattr(score, varied), 1 / score.way) for _, score in runs})
    if points:
        axes.plot(*zip(*points, strict=True), color=GRAY, linestyle=":", linewidth=1)


def _versatility_line(axes: Axes, runs: Sequence[Run], varied: str, index: int) -> None:
    at: dict[int, list[Run]] = defaultdict(list)
    for run in runs:
        at[getattr(run[1], varied)].append(run)
    if not at:
        return
    x = sorted(at)
    mean, ci95 = np.array([mean_ci95_over_seeds(at[n]) for n in x]).T
    looks: dict[str, Any] = {
        "color": COLORS[index % len(COLORS)],
        "marker": MARKERS[index % len(MARKERS)],
        "markersize": 4,
    }
    mean, low, high = (values.clip(1 - ALL, ALL) for values in (mean, mean - ci95, mean + ci95))
    bars = np.where(np.isfinite(ci95), [mean - low, high - mean], 0)
    axes.errorbar(x, mean, bars, linewidth=1, capsize=1.5, markerfacecolor="white", **looks)
    config = runs[0][0].config
    for n, value in zip(x, mean, strict=True):
        score = at[n][0][1]
        if (score.way, score.shot) == (config.get("way"), config.get("shot")):
            axes.plot([n], [value], linestyle="", zorder=3, **looks)
