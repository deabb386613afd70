"""Published figures: ours next to the paper's, and what was measured differently."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from mlpip_bench.records.published import Published
from mlpip_bench.records.record import Record, facts
from mlpip_bench.reporting.figures.style import Run, configurations, mean_ci95_over_seeds
from mlpip_bench.reporting.table import Cell, Row, WideTable
from mlpip_bench.reporting.wording import budget_in_words, published_cell, stand_in_mark


def published_tables(records: Sequence[Record], quoted: Sequence[Published]) -> Iterator[WideTable]:
    """One table for each metric, with a row for each published number that was measured here, too.

    Args:
        records: what was run.
        quoted: what the paper reports.
    """
    for metric in dict.fromkeys(q.metric for q in quoted):
        rows = [
            _row(q, label, runs)
            for q in quoted
            if q.metric == metric
            for source in sorted({r.data["source"] for r in records})
            for label, runs in configurations(
                [r for r in records if (r.bench, r.method, r.data["source"]) == (q.bench, q.method, source)], metric
            ).items()
        ]
        if rows:
            unit = "%, the difference in percentage points" if metric == "accuracy" else "nats per query"
            yield WideTable(
                name=f"against_published_{metric}",
                title=f"{metric} ({unit})",
                benches=("ours", "published", "difference", "overlap", "what differs"),
                rows=tuple(rows),
                published=(),
                notes=(
                    "difference: ours less the published one; the two saw different test tasks, so it is not paired, "
                    "and its ± is the root of the sum of the squares of both half-widths.",
                    "overlap: whether the two 95 % intervals do. That is no test of a difference, and where conditions "
                    "differ it says nothing of the method.",
                    "published budget: the training tasks of the published model, as a multiple of ours.",
                ),
            )


def _row(quoted: Published, label: str, runs: Sequence[Run]) -> Row:
    record, score = runs[0]
    known = facts(record, score)
    mean, ci95 = mean_ci95_over_seeds(runs)
    theirs = float(quoted.mean), math.nan if quoted.ci95 is None else float(quoted.ci95)
    difference = mean - theirs[0], math.hypot(ci95, theirs[1])
    overlap = "no interval"
    if math.isfinite(difference[1]):
        overlap = "yes" if abs(difference[0]) <= ci95 + theirs[1] else "no"
    scale, digits = (100, 2) if score.unit == "fraction" else (1, 4)

    def cell(value: tuple[float, float], sign: str = "") -> Cell:
        half_width = f" ± {scale * value[1]:.{digits}f}" if math.isfinite(value[1]) else ""
        return Cell(value[0], None, f"{scale * value[0]:{sign}.{digits}f}{half_width}")

    differs = _differs(quoted, record)
    cells = {
        "ours": cell((mean, ci95)),
        "published": published_cell(quoted),
        "difference": cell(difference, "+"),
        "overlap": Cell(math.nan, None, overlap),
        "what differs": Cell(math.nan, None, "; ".join(differs) or "nothing that is stated"),
    }
    attributes = {
        **{name: str(known.get(name, "")) for name in ("norm", "inductive", "queries", "source")},
        "bench": record.bench,
        "budget": budget_in_words(str(known.get("preset")), str(known.get("iterations"))),
        "seeds": ",".join(str(r.seed) for r, _ in runs),
        "tasks": str(known["test_tasks"]),
    }
    return Row(label + stand_in_mark(record.data["source"]), attributes, cells)


def _differs(quoted: Published, record: Record) -> Iterator[str]:
    """What is known of the published conditions and not so for ours; it stands below the name of the row."""
    if not quoted.note:
        yield "published: normalization and queries not stated"
    elif not (quoted.note.startswith("inductive") and record.inductive):
        yield f"published: {quoted.note}"
    tasks = record.config["iterations"] * record.config["tasks_per_batch"]
    if quoted.training_tasks is not None and quoted.training_tasks != tasks:
        yield f"published budget: {quoted.training_tasks / tasks:.3g} times as many training tasks"
    if stand_in_mark(record.data["source"]):
        yield f"ours on stand-in data ({record.data.get('name', '')})"
