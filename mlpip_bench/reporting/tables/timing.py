"""Records of timing -> tables: medians and quartiles over repeats, and ratios within one run.

Seconds of a machine say little of another, and of a noisy one little of itself an hour later. So each row is also given
as a ratio to one method, repeat by repeat, where both were timed by turns in one session; never across sessions.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from mlpip_bench.records.left_out import DEFAULTS, left_out
from mlpip_bench.records.record import Record, Scores
from mlpip_bench.reporting.table import Cell, Row, WideTable
from mlpip_bench.utils.encoding import csv_text
from mlpip_bench.utils.errors import UserError, unknown_name
from mlpip_bench.utils.provenance import STAND_INS

_MILLI, _MEGA = 1e-3, 1e6

_MEASURED = {
    "latency": ("one task at a time, on the device", {
        "adapt ms": ("adapt_seconds", "", _MILLI),
        "predict ms": ("predict_seconds", "", _MILLI),
        "tasks/s": ("tasks_per_second", "", 1.0),
        "peak MB": ("peak_memory_bytes", "", _MEGA),
    }),
    "throughput": ("as many tasks at once as it is fastest with", {
        "tasks/s": ("tasks_per_second", "", 1.0),
        "tasks/s, drawn too": ("tasks_per_second", "drawn too", 1.0),
        "peak MB": ("peak_memory_bytes", "", _MEGA),
    }),
    "training": ("training steps, with the drawing of their tasks", {
        "s per 1000 tasks": ("train_seconds", "", 1.0),
        "peak MB": ("peak_memory_bytes", "", _MEGA),
    }),
}  # fmt: skip
"""By regime what it is, and its columns: metric, where the tasks were if not on the device, and unit shown."""

_RATIO_OF = {"latency": "tasks_per_second", "throughput": "tasks_per_second", "training": "train_seconds"}


@dataclass(frozen=True)
class _Entry:
    """One row: a method, or a variant of its settings, in one regime of one record.

    Attributes:
        varied: the settings that were varied, by the last part of their name.
        scores: by metric and by where the tasks were.
    """

    record: Record
    regime: str
    varied: Mapping[str, object]
    scores: Mapping[tuple[str, str], Scores]

    @property
    def session(self) -> str:
        """When the measurement was finished that its repeats are of."""
        return str(self.record.environment.get("session", ""))

    @property
    def pace(self) -> tuple[float, ...]:
        """Of each repeat, how fast it was."""
        values = self.scores[_RATIO_OF[self.regime], ""].per_task
        return tuple(1 / v if self.regime == "training" else v for v in values)

    @property
    def device(self) -> str:
        """The very device, with what its speed depends on; never only its kind."""
        environment = self.record.environment
        name = environment.get("gpu") or f"{environment.get('processor')}, threads {environment.get('threads')}"
        return f"{self.record.device}: {name}"

    def detail(self, name: str) -> float:
        """A number that all its scores share."""
        value = next(iter(self.scores.values())).detail[name]
        assert not isinstance(value, str)  # numbers are tuples
        return value[0]

    def settings(self, defaults: Mapping[str, object]) -> str:
        """What its speed depends on in addition to the device; what is varied, its label says.

        Args:
            defaults: of what its record may leave out, and another of the table names.
        """
        own = self.record.config.get("settings", {})
        shown = {name: own[name] for name in ("test_steps", "eval_samples") if name in own and not self.varied}
        numerics = ("precision",) if self.regime == "training" else ("precision", "compile")
        known = {**defaults, **self.record.config}
        shown |= {name: known[name] for name in numerics if name in known}
        return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items())


def timed(records: Iterable[Record]) -> bool:
    """Whether any of the records holds timings."""
    return bool(_entries(records))


def _entries(records: Iterable[Record]) -> list[_Entry]:
    entries = []
    for record in sorted(records, key=lambda r: (r.bench, r.method, r.seed, r.config["norm"], r.key)):
        found: dict[tuple[str, tuple[tuple[str, object], ...]], dict[tuple[str, str], Scores]] = {}
        for score in record.scores:
            if score.over != "repeats" or "regime" not in score.condition:
                continue
            rest = dict(score.condition)
            regime, tasks = str(rest.pop("regime")), str(rest.pop("tasks", ""))
            found.setdefault((regime, tuple(sorted(rest.items()))), {})[score.metric, tasks] = score
        entries += [_Entry(record, regime, dict(varied), scores) for (regime, varied), scores in found.items()]
    for entry in entries:
        _check(entry)
    return entries


def _check(entry: _Entry) -> None:
    """Whether it is what the protocol writes."""
    pace = entry.scores.get((_RATIO_OF.get(entry.regime, ""), ""))
    numbers = [v for score in entry.scores.values() for v in score.per_task]
    whole = all({"tasks", "tasks_at_once"} <= set(score.detail) for score in entry.scores.values())
    if pace is None or min(numbers) < 0 or min(pace.per_task) == 0 or not whole or not entry.session:
        raise UserError(
            f"a record of timings must be whole; {entry.record.filename} is not, in its regime {entry.regime!r}. "
            "Restore it, or move it away and run its command again."
        )


def _timings(records: Iterable[Record]) -> list[_Entry]:
    if entries := _entries(records):
        return entries
    raise UserError(
        "timing tables are made from records of the protocol timing; there are none. Make some, for example with "
        "`python -m mlpip_bench run --methods versa,maml --bench mini5w5s --protocols timing`."
    )


def timing_tables(records: Iterable[Record], against: str | None = None) -> list[WideTable]:
    """One table for each bench, session and regime.

    Args:
        records: what was run; those without timings are passed over.
        against: the method that ratios are to, where it is one of the session; left out, the slowest.

    Raises:
        UserError: no record has timings, or none is of the method ``against``.
    """
    entries = _timings(records)
    if against is not None and against not in (methods := {e.record.method for e in entries}):
        raise unknown_name("timed method for --against", against, methods)
    tables = []
    for session in sorted({(entry.record.bench, entry.session) for entry in entries}):
        together = [entry for entry in entries if (entry.record.bench, entry.session) == session]
        own = [entry for entry in together if not entry.varied]
        slowest = min(own, key=lambda e: (e.regime != "latency", statistics.median(e.pace)))
        reference = against or slowest.record.method
        for regime in _MEASURED:
            for varied in (False, True):
                rows = [e for e in together if e.regime == regime and bool(e.varied) is varied]
                if rows:
                    tables.append(_table(regime, rows, own, reference))
    return tables


def _table(regime: str, entries: Sequence[_Entry], own: Sequence[_Entry], reference: str) -> WideTable:
    bench, session = entries[0].record.bench, entries[0].session
    what, columns = _MEASURED[regime]
    varied = ", other steps and samples" if entries[0].varied else ""
    ratio = f"× {reference}"  # noqa: RUF001  # a multiplication sign
    defaults = left_out((bench, entry.record.config) for entry in entries)[bench]
    rows = []
    for entry in entries:
        cells = {
            name: _cell([v / unit for v in score.per_task])
            for name, (metric, tasks, unit) in columns.items()
            if (score := entry.scores.get((metric, tasks))) is not None
        }
        if regime == "throughput":
            at_once = entry.detail("tasks_at_once")
            cells["at once"] = Cell(at_once, None, f"{at_once:.0f}")
        if (other := _reference(entry, own, reference)) is not None:
            cells[ratio] = _cell([a / b for a, b in zip(entry.pace, other.pace, strict=False)])
        rows.append(Row(_label(entry), _attributes(entry, defaults), cells))
    repeats = sorted({len(entry.pace) for entry in entries})
    tasks = sorted({int(entry.detail("tasks")) for entry in entries})
    turns = "; all took turns, in an order drawn anew for each repeat" if len(own) > 1 else ""
    notes = [
        f"Median over {_span(repeats)} repeats of {_span(tasks)} task{'' if tasks == [1] else 's'} [lower and upper "
        f"quartile]{turns}.",
        "peak: most bytes of tensors alive at once beyond the model and the tasks, as torch's allocator counts them.",
    ]
    if any(ratio in row.cells for row in rows):
        notes.append(
            f"{ratio}: how many times as fast as {reference} with its own settings, norm and seed being equal."
        )
    if any(entry.record.data["source"] in STAND_INS for entry in entries):
        notes.append("stand-in: tasks of data that stand in for the real data set, of the same shape.")
    data = ", ".join(sorted({f"{e.record.data.get('name', '')} ({e.record.data['source']})" for e in entries}))
    software = "; ".join(sorted({_software(entry) for entry in entries}))
    notes.append(f"Data: {data}. Software: {software}. What was timed in other sessions has tables of its own.")
    return WideTable(
        name=f"timing_{regime}_{bench}",
        title=f"timing on {bench}, {regime}{varied} ({what}; until {session[:19]} UTC)",
        benches=(*columns, *(["at once"] if regime == "throughput" else []), ratio),
        rows=tuple(rows),
        published=(),
        notes=tuple(notes),
    )


def _span(numbers: Sequence[int]) -> str:
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _reference(entry: _Entry, own: Sequence[_Entry], method: str) -> _Entry | None:
    """The reference's row among those of the session."""

    def conditions(e: _Entry) -> tuple[object, ...]:
        return e.regime, e.record.config["norm"], e.record.seed

    return next(
        (other for other in own if other.record.method == method and conditions(other) == conditions(entry)), None
    )


def _label(entry: _Entry) -> str:
    varied = "".join(f", {name} {value}" for name, value in entry.varied.items())
    return f"{entry.record.method}{varied}{' (stand-in)' if entry.record.data['source'] in STAND_INS else ''}"


def _attributes(entry: _Entry, defaults: Mapping[str, object]) -> dict[str, str]:
    return {
        "norm": entry.record.config["norm"],
        "queries": str(next(iter(entry.scores.values())).queries),
        "settings": entry.settings(defaults),
        "device": entry.device,
        "seeds": str(entry.record.seed),
        "source": entry.record.data["source"],
    }


def _software(entry: _Entry) -> str:
    environment = entry.record.environment
    names = ("torch", "numba", "cuda", "cudnn", "driver", "tf32")
    return ", ".join(f"{name} {environment[name]}" for name in names if environment.get(name) is not None)


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    return lower, median, upper


def _cell(values: Sequence[float]) -> Cell:
    lower, median, upper = _quartiles(values)
    text = f"{median:.3g}" if median < 1000 else f"{median:.0f}"
    if len(values) > 1:
        digits = max(0, 2 - _magnitude(median))
        text = f"{median:.{digits}f} [{lower:.{digits}f}, {upper:.{digits}f}]"
    return Cell(median, None, text)


def _magnitude(value: float) -> int:
    return int(f"{value:e}".partition("e")[2])


def timing_csv(records: Iterable[Record]) -> str:
    """Every timing as a row, with median and quartiles over repeats in full and in the metric's own unit.

    Raises:
        UserError: no record has timings.
    """
    rows = []
    for entry in _timings(records):
        record = entry.record
        for (metric, tasks), score in entry.scores.items():
            lower, median, upper = _quartiles(score.per_task)
            rows.append(
                {
                    "bench": record.bench,
                    "method": record.method,
                    "regime": entry.regime,
                    "varied": ",".join(f"{k}={v}" for k, v in entry.varied.items()),
                    "tasks": tasks or ("drawn too" if entry.regime == "training" else "on the device"),
                    "metric": metric,
                    "tasks_at_once": int(entry.detail("tasks_at_once")),
                    "tasks_a_repeat": int(entry.detail("tasks")),
                    "repeats": len(score.per_task),
                    "median": median,
                    "lower_quartile": lower,
                    "upper_quartile": upper,
                    "unit": score.unit,
                    "queries": score.queries,
                    "norm": record.config["norm"],
                    "precision": record.config.get("precision", DEFAULTS["precision"]),
                    "compile": record.config.get("compile", DEFAULTS["compile"]),
                    "seed": record.seed,
                    "source": record.data["source"],
                    "device": entry.device,
                    "torch": record.environment.get("torch"),
                    "session": entry.session,
                }
            )
    return csv_text(pd.DataFrame(rows))


def _cell_of(value: float, text: str) -> Cell:
    if not math.isfinite(value):
        raise ValueError(f"{value} is no measurement")
    return Cell(value, None, text)


def bar_in_words(facts: Mapping[str, Any]) -> str:
    """A benchmark's bar in words, with whether its ratio misses it."""
    return _bar_in_words(facts["ratio"], facts["bar"], facts.get("bar_is", "at least"))


def tuned_bar_in_words(facts: Mapping[str, Any]) -> str:
    """The same of the ratio to the tuned peer."""
    return _bar_in_words(facts["tuned"], facts["tuned_bar"])


def _bar_in_words(ratio: float, bar: float, bar_is: str = "at least") -> str:
    missed = ratio > bar if bar_is == "at most" else ratio < bar
    return f"{bar_is} {bar:g}{', missed' if missed else ''}"


def benchmark_tables(path: Path) -> list[WideTable]:
    """What pytest-benchmark wrote with ``--benchmark-json``: the ratios to peers, and all medians and ratios.

    Raises:
        UserError: no such file, or another kind of file.
    """
    try:
        content = json.loads(path.read_text())
        machine = content["machine_info"]["cpu"].get("brand_raw", "an unknown processor")
        of = f"benchmarks of {content.get('datetime', 'an unknown day')[:16]} on {machine}"
        measured = sorted(content["benchmarks"], key=lambda b: (b["group"] or "", b["name"]))
        rows = [_benchmark_row(benchmark) for benchmark in measured]
        peers = [_peer_row(benchmark["extra_info"]) for benchmark in measured if "tuned" in benchmark["extra_info"]]
    except OSError as error:
        raise UserError(f"--benchmark-json names a file; {path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"--benchmark-json takes a file that pytest-benchmark wrote; {path} is none. Write one with "
            "`tox -e benchmarks`, which says where it is."
        ) from error
    every = WideTable(
        name="benchmarks",
        title=of,
        benches=("ms", "ratio", "bar", "tuned", "bar of tuned"),
        rows=tuple(rows),
        published=(),
        notes=(
            "ms: median over rounds [lower and upper quartile] of the second of the two, or of the one that is named.",
            "ratio: of the first to the second, taken by turns in one run: of their times, or of what the name says. "
            "bar: what it should be. tuned: the same ratio of a peer with the suite's layout and allocator.",
        ),
        row_name="benchmark",
    )
    against_peers = WideTable(
        name="peers",
        title=f"times as fast as peers, {of}",
        benches=(_AS_WRITTEN, _TUNED),
        rows=tuple(peers),
        published=(),
        notes=(f"{_TUNED}: with the channels innermost, and freed memory kept. All sides took turns in one run.",),
        row_name="work: peer / suite",
    )
    return [against_peers, every] if peers else [every]


_AS_WRITTEN, _TUNED = "as its users write it", "tuned as the suite is"


def _benchmark_row(benchmark: Mapping[str, Any]) -> Row:
    stats, facts = benchmark["stats"], benchmark["extra_info"]
    quartiles = [1000 * stats[name] for name in ("q1", "median", "q3")]
    cells = {"ms": _cell_of(quartiles[1], "{1:.0f} [{0:.0f}, {2:.0f}]".format(*quartiles))}
    if "ratio" in facts:
        cells["ratio"] = _cell_of(facts["ratio"], f"{facts['ratio']:.3g}")
        cells["bar"] = _cell_of(facts["bar"], bar_in_words(facts))
    if "tuned" in facts:
        cells["tuned"] = _cell_of(facts["tuned"], f"{facts['tuned']:.3g}")
        cells["bar of tuned"] = _cell_of(facts["tuned_bar"], tuned_bar_in_words(facts))
    return Row(facts.get("of", benchmark["name"]), {}, cells)


def _peer_row(facts: Mapping[str, Any]) -> Row:
    ratios = {_AS_WRITTEN: facts.get("ratio"), _TUNED: facts["tuned"]}
    return Row(facts["of"], {}, {name: _cell_of(r, f"{r:.2f}") for name, r in ratios.items() if r is not None})
