"""Records -> one long form for machines: a row a value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import pandas as pd

from mlpip_bench.records.published import Published
from mlpip_bench.records.record import Record
from mlpip_bench.records.statistics import mean_ci95
from mlpip_bench.reporting.entries import (
    as_text,
    record_order,
)
from mlpip_bench.reporting.tables.scores import metric_name
from mlpip_bench.reporting.wording import (
    PUBLISHED_UNITS,
    finite,
)
from mlpip_bench.utils.encoding import for_csv

LONG_COLUMNS = (
    "bench", "method", "protocol", "metric", "way", "shot", "queries", "norm", "preset", "iterations", "source",
    "seed", "device", "tasks", "mean", "ci95", "unit",
)  # fmt: skip

_INTEGERS = ("way", "shot", "queries", "iterations", "seed", "tasks")
_FLOATS = ("mean", "ci95")


def long_form(records: Iterable[Record], published: Iterable[Published]) -> pd.DataFrame:
    """One row a value: ours by bench, method, protocol and seed, then the paper's in its order.

    Args:
        records: what was run; seeds are not averaged.
        published: what the paper reports.

    Returns:
        A frame with the columns ``LONG_COLUMNS``; an interval that does not exist is missing.
    """
    rows: list[dict[str, object]] = []
    for record in sorted(records, key=record_order):
        for score in record.scores:
            if score.over != "tasks":  # timings, whose tables are their own
                continue
            mean, ci95 = mean_ci95(score.per_task)
            rows.append(
                {
                    "bench": record.bench,
                    "method": record.method,
                    "protocol": record.protocol,
                    "metric": metric_name(score) + _bracketed(score.condition),
                    "way": score.way,
                    "shot": score.shot,
                    "queries": score.queries,
                    "norm": record.config["norm"],
                    "preset": record.config["preset"],
                    "iterations": record.config["iterations"],
                    "source": record.data["source"],
                    "seed": record.seed,
                    "device": record.device,
                    "tasks": len(score.per_task),
                    "mean": mean,
                    "ci95": finite(ci95),
                    "unit": score.unit,
                }
            )
    for quoted in published:
        way, shot = _way_shot(quoted.bench)
        rows.append(
            {
                "bench": quoted.bench,
                "method": quoted.method,
                "protocol": quoted.metric,
                "metric": quoted.metric,
                "way": way,
                "shot": shot,
                "source": "published",
                "mean": float(quoted.mean),
                "ci95": None if quoted.ci95 is None else float(quoted.ci95),
                "unit": PUBLISHED_UNITS[quoted.metric],
            }
        )
    frame = pd.DataFrame(rows, columns=list(LONG_COLUMNS), dtype=object)
    return frame.astype(dict.fromkeys(_INTEGERS, "Int64") | dict.fromkeys(_FLOATS, "float64"))


def long_csv(records: Iterable[Record], published: Iterable[Published]) -> str:
    """The long form as CSV; floats in full."""
    frame = long_form(records, published)
    texts = frame.columns.difference([*_INTEGERS, *_FLOATS])
    frame[texts] = frame[texts].map(for_csv, na_action="ignore")
    text: str = frame.to_csv(index=False, lineterminator="\n")
    return text


def _bracketed(condition: Mapping[str, object]) -> str:
    inside = ",".join(f"{name}={as_text(value)}" for name, value in sorted(condition.items()))
    return f"[{inside}]" if inside else ""


def _way_shot(bench: str) -> tuple[int, int] | tuple[None, None]:
    """Way and shot of a published bench such as ``omni5w1s``."""
    match = re.search(r"(\d+)w(\d+)s$", bench)
    return (int(match[1]), int(match[2])) if match else (None, None)
