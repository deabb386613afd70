"""Performance profiles over several benches (Agarwal et al., NeurIPS 2021): the share of tasks that reach a score."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from mlpip_bench.records.record import Record
from mlpip_bench.records.statistics import Estimate, combined, estimate
from mlpip_bench.reporting.figures.style import COLORS, despine, wrapped
from mlpip_bench.reporting.tables.overall import By, benches_together

_POINTS = 41


def reached(benches: Sequence[By], name: str, level: float) -> Estimate:
    """Mean over benches of the share of test tasks, and of trainings, whose score is ``level`` or more."""
    parts = [estimate([(np.asarray(e.score.per_task) >= level).tolist() for e in by[name]], (0, 1)) for by in benches]
    return combined(parts, [1 / len(parts)] * len(parts))


def profile(records: Sequence[Record]) -> Figure | None:
    """Share of test tasks that reach an accuracy, over all benches of a data set, a line and its band a configuration.

    Args:
        records: of the benches of one data set.

    Returns:
        The figure; ``None`` where not two benches have the accuracy of the same two configurations.
    """
    found = list(benches_together(records, "accuracy").values())
    if not found:
        return None
    (benches,) = found
    figure = Figure(figsize=(5.4, 3.2), layout="constrained")
    axes = figure.subplots()
    levels = np.linspace(0, 1, _POINTS)
    for color, name in zip(COLORS * len(benches[0]), benches[0], strict=False):
        shares = [reached(benches, name, level) for level in levels]
        mean, half = np.array([share.mean for share in shares]), np.array([share.ci95 for share in shares])
        axes.plot(100 * levels, 100 * mean, color=color, linewidth=1.2, label=wrapped(name))
        low, high = (mean - half).clip(0), (mean + half).clip(max=1)
        axes.fill_between(100 * levels, 100 * low, 100 * high, color=color, alpha=0.2, linewidth=0)
    listed = ", ".join(next(iter(by.values()))[0].bench for by in benches)
    axes.set(xlabel=f"accuracy (%), mean over {listed}", ylabel="tasks that reach it (%)")
    axes.legend(frameon=False, title="band: 95 %")
    despine(axes)
    figure.suptitle("Performance profile")
    return figure
