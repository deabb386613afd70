"""What all figures share: their looks, which scores they show, and under which names."""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from mlpip_bench.records.left_out import left_out
from mlpip_bench.records.record import Model, Record, Scores, facts
from mlpip_bench.records.statistics import bounds_of, estimate

_INK = ".15"
STYLE = (
    "default",
    {
        "axes.axisbelow": True, "axes.edgecolor": _INK, "axes.labelcolor": _INK, "text.color": _INK,
        "xtick.color": _INK, "ytick.color": _INK, "grid.color": ".8", "lines.solid_capstyle": "round",
        "patch.edgecolor": "w", "patch.force_edgecolor": True,
        "font.sans-serif": ["Arial", "DejaVu Sans", "Liberation Sans", "Bitstream Vera Sans", "sans-serif"],
        "font.size": 8, "axes.titlesize": 8, "pdf.fonttype": 42,
        "text.parse_math": False,  # a dollar in a name is a dollar, and begins no formula
    },
)  # fmt: skip
"""seaborn's ``ticks``, and sizes of a paper; written out, since importing seaborn takes as long as drawing a figure."""

COLORS = [
    "#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc", "#ca9161", "#fbafe4", "#949494", "#ece133", "#56b4e9",
]  # fmt: skip
"""seaborn's ``colorblind``."""

MARKERS = "osD^vP*X<>hpd8"  # with the colors, which repeat after ten and are not all distinct in gray
GRAY = "0.45"
WIDTH = 397 / 72.27
"""Inches of a column of text in a paper of one column."""

PERCENT = (1, 2, 5, 10, 20, 50, 80, 90, 95, 98, 99, 99.5, 99.9)
"""Ticks of accuracy on a logit scale."""

ALL = 0.9999
"""Where an accuracy of 1 is drawn on it: the scale has no end."""

_FIRST = ("accuracy", "nll")  # the two of the paper's tables, before what else was measured
_NAMES = MappingProxyType(
    {
        "nll": "negative log-likelihood", "ece": "expected calibration error", "brier": "Brier score",
        "mse": "mean squared error", "ssim": "SSIM", "ssim_range_2": "SSIM with data range 2", "kl": "KL divergence",
    }
)  # fmt: skip
_NUMBERS = re.compile(r"(\d+(?:\.\d+)?)|(\D+)")
Run: TypeAlias = tuple[Record, Scores]


def configurations(
    records: Sequence[Record],
    metric: str,
    conditions: Collection[str] = (),
    *,
    model: Model = "best",
    detail: str = "",
    ignored: Collection[str] = (),
) -> dict[str, list[Run]]:
    """Scores of a metric by what was run: the method, with all that distinguishes its configurations on a bench.

    Args:
        records: of one source of data.
        metric: its name.
        conditions: names of the test conditions that the scores must have, and no others.
        model: the one that is best on validation, or the last one.
        detail: a detail that the scores must have.
        ignored: facts that distinguish no configurations, since the figure shows them itself.
    """
    return labeled(
        [
            (record, score)
            for record in records
            for score in record.scores
            if (score.metric, score.model) == (metric, model)
            and set(score.condition) == set(conditions)
            and (not detail or detail in score.detail)
        ],
        ignored,
    )


def labeled(runs: Iterable[Run], ignored: Collection[str] = ()) -> dict[str, list[Run]]:
    """Runs by what was run, as :func:`configurations` names it.

    Args:
        runs: of one source of data.
        ignored: facts that distinguish no configurations.
    """
    found: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: (run[0].method, run[0].bench, run[0].seed, run[0].key)):
        found[run[0].method, run[0].bench].append(run)
    named: dict[str, list[Run]] = defaultdict(list)
    for (method, _), own in found.items():
        known = [facts(*run) for run in own]
        defaults = left_out(("", each) for each in known)[""]
        known = [{**defaults, **each} for each in known]
        names = sorted({name for each in known for name in each} - {"inductive", *ignored})  # norm tells it
        differing = _telling(known, [name for name in names if len({str(each.get(name)) for each in known}) > 1])
        for each, run in zip(known, own, strict=True):
            parts = (f"{name.rpartition('.')[2].replace('_', ' ')} {each.get(name, 'unset')}" for name in differing)
            named[", ".join([method, *parts])].append(run)
    return {label: named[label] for label in by_number(named)}


def _telling(known: Sequence[Mapping[str, object]], differing: Sequence[str]) -> Sequence[str]:
    """As many of the facts that differ as tell the configurations, and one more; tables have them all."""

    def distinct(names: Sequence[str]) -> int:
        return len({tuple(str(each.get(name)) for name in names) for each in known})

    enough = next(count for count in range(len(differing) + 1) if distinct(differing[:count]) == distinct(differing))
    return differing[: enough + 1]


def metrics_in_order(metrics: Iterable[str]) -> list[str]:
    """Names of metrics, those of the paper's tables first."""
    return sorted(metrics, key=lambda metric: (metric not in _FIRST, metric))


def scale_of(unit: str) -> int:
    """What a score is multiplied with to be shown: fractions are in per cent."""
    return 100 if unit == "fraction" else 1


def label_of_metric(metric: str, unit: str, between: str = " ") -> str:
    """A metric in words, with its unit."""
    return f"{_NAMES.get(metric, metric)}{between}({'%' if unit == 'fraction' else unit})"


def by_number(labels: Iterable[str]) -> list[str]:
    """Labels in order, their numbers by size."""
    return sorted(labels, key=lambda label: [(float(n or 0), text) for n, text in _NUMBERS.findall(label)])


def averaged(label: str, runs: Sequence[Run]) -> str:
    """The label of a configuration whose seeds are averaged."""
    by_bench = defaultdict(set)
    for record, _ in runs:
        by_bench[record.bench].add(record.seed)
    counts = sorted({len(seeds) for seeds in by_bench.values()})
    return label if counts == [1] else f"{label}, mean of {' or '.join(map(str, counts))} seeds"


def first_seeds(found: Mapping[str, Sequence[Run]]) -> dict[str, Run]:
    """The first seed of each configuration, where a mean over seeds cannot be drawn; the label says which it is."""
    return {
        label if len({record.seed for record, _ in runs}) == 1 else f"{label}, seed {runs[0][0].seed}": runs[0]
        for label, runs in found.items()
    }


def despine(axes: Axes) -> None:
    """Leave the two sides of the frame that have ticks."""
    axes.spines[["top", "right"]].set_visible(False)


def wrapped(label: str, width: int = 30) -> str:
    """A label in lines that legends and panels have room for."""
    return textwrap.fill(label, width)


def mean_ci95_over_seeds(runs: Sequence[Run]) -> tuple[float, float]:
    """Mean over seeds and tasks with its 95 % half-width, as in the tables."""
    found = estimate([score.per_task for _, score in runs], bounds_of(runs[0][1].unit))
    return found.mean, found.ci95


def numbers(score: Scores, name: str) -> NDArray[np.float64]:
    """A detail of numbers."""
    return np.asarray(score.detail[name], dtype=np.float64)


Floats: TypeAlias = NDArray[np.float64]
