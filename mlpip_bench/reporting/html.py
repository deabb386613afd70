"""Records -> one HTML file that needs nothing else: tables, paired differences, figures, timing and provenance."""

from __future__ import annotations

import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote

import jinja2
from matplotlib import style
from matplotlib.figure import Figure

from mlpip_bench.records.published import Published
from mlpip_bench.records.record import TRAINING_SERIES, Record, code_facts
from mlpip_bench.reporting.answer import Answer, answers
from mlpip_bench.reporting.decisions import NO_MARGINS, Margins
from mlpip_bench.reporting.figures.style import STYLE
from mlpip_bench.reporting.figures.writing import draw_figures
from mlpip_bench.reporting.selection import Shown, shown
from mlpip_bench.reporting.table import Cell, Row, WideTable
from mlpip_bench.reporting.tables.against_published import published_tables
from mlpip_bench.reporting.tables.norms import norm_tables
from mlpip_bench.reporting.tables.overall import overall_tables
from mlpip_bench.reporting.tables.paired import method_differences, paired_tables
from mlpip_bench.reporting.tables.scores import wide_tables
from mlpip_bench.reporting.tables.timing import timed, timing_tables
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.provenance import STAND_INS

_URL_SAFE = " /:=;,.'()-_+!?&*@$[]{}|"


@dataclass(frozen=True)
class _Picture:
    title: str
    url: str
    alt: str


@dataclass(frozen=True)
class _TrialProvenance:
    """What made one trial, as shown; ``details`` are headings with the text below them."""

    bench: str
    method: str
    seed: int
    stand_in: bool
    data: str
    software: str
    machine: str
    training: str
    seconds: str
    keys: tuple[tuple[str, str], ...]
    details: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class _Part:
    """A part of a section; ``last`` are tables of the last models of training, ``notes`` those of all its tables."""

    title: str
    tables: tuple[WideTable, ...] = ()
    last: tuple[WideTable, ...] = ()
    notes: tuple[str, ...] = ()
    pictures: tuple[_Picture, ...] = ()
    trials: tuple[_TrialProvenance, ...] = ()


@dataclass(frozen=True)
class _Section:
    """A results folder; ``summary`` is what the records are, by name, ``failed`` are trials with their errors."""

    name: str
    summary: Mapping[str, str]
    stand_in: str
    failed: tuple[tuple[str, str], ...]
    answers: tuple[Answer, ...]
    parts: tuple[_Part, ...] = field(repr=False)


def to_html(
    by_folder: Mapping[str, Sequence[Record]],
    failures: Mapping[str, Sequence[tuple[str, str]]] = MappingProxyType({}),
    names: Mapping[str, str] = MappingProxyType({}),
    margins: Margins = NO_MARGINS,
) -> str:
    """One HTML page of records, the answer and a section a folder; the same records give the same text.

    Args:
        by_folder: records by the name that their folder is shown under.
        failures: trials that failed, each with its error, by folder.
        names: that methods are shown under, where not under the paper's.
        margins: what is practically equal.

    Raises:
        UserError: a folder has no records, or its records contradict each other.
    """
    for folder, records in by_folder.items():
        if not records:
            raise UserError(
                f"a report is made from records; there are none below {Path(folder) / 'records'}. Make some first, "
                "for example with `python -m mlpip_bench run --methods versa,maml --bench mini5w5s`."
            )
    everything = [record for records in by_folder.values() for record in records]
    named = shown(everything, names)  # of all folders, so that a method has one name
    methods = {r.method: n.method for r, n in zip(everything, named.records, strict=True)}
    sections = [
        _section(
            folder,
            records,
            Shown([replace(record, method=methods[record.method]) for record in records], named.quoted),
            failures.get(folder, ()),
            margins,
        )
        for folder, records in by_folder.items()
    ]
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals |= {
        "conditions": _conditions,
        "shared": _shared,
        "is_stand_in": _is_stand_in,
        "columns": _columns,
        "is_number": _is_number,
        "has_numbers": _has_numbers,
    }
    template = resources.files("mlpip_bench.reporting") / "report_template.html"
    return environment.from_string(template.read_text(encoding="utf-8")).render(
        summary={"folders": str(len(by_folder)), **_summary(*by_folder.values())},
        versions=_versions(by_folder),
        stand_in=_stand_in(everything),
        sections=sections,
    )


def _section(
    folder: str,
    measured: Sequence[Record],
    named: Shown,
    failed: Sequence[tuple[str, str]],
    margins: Margins,
) -> _Section:
    """Of the records as they are, and of what is shown of them under the names that are shown."""
    records, quoted = named.records, named.quoted
    numbers: dict[str, int] = {}
    compared = wide_tables(records, quoted, numbers)
    conditioned = [table for table in compared if table.conditions]
    parts = [
        _tables_part("Comparison", [table for table in compared if table not in conditioned]),
        _tables_part("Paired differences", paired_tables(method_differences(records, margins=margins))),
        _tables_part("Over several benches", overall_tables(records)),
        _tables_part("Under other conditions", [*norm_tables(records, numbers), *conditioned]),
        _Part("Figures", pictures=tuple(_pictures(folder, records, quoted))),
        _tables_part("Timing", timing_tables(records) if timed(records) else []),
        _tables_part("Published figures", list(published_tables(records, quoted))),
        _Part("Provenance", trials=tuple(_provenance(measured))),
    ]
    filled = [part for part in parts if part.tables or part.last or part.pictures or part.trials]
    said = tuple(answers(records, quoted, margins))
    return _Section(folder, _summary(measured), _stand_in(measured), tuple(failed), said, tuple(filled))


def _tables_part(title: str, tables: Sequence[WideTable]) -> _Part:
    """Notes that all its tables have stand once."""
    shared = [n for n in tables[0].notes if all(n in t.notes for t in tables)] if len(tables) > 1 else []
    own = [replace(t, notes=(*(n for n in t.notes if n not in shared), *t.row_notes)) for t in tables]
    return _Part(
        title,
        tables=tuple(t for t in own if t.model == "best"),
        last=tuple(t for t in own if t.model == "last"),
        notes=tuple(shared),
    )


# --------------------------------------------------------------------------------------------------------- summary


def _is_stand_in(source: str) -> bool:
    return source in STAND_INS


def _versions(by_folder: Mapping[str, Sequence[Record]]) -> str:
    """A warning where folders were made by code whose numbers differ; empty where one may be compared with another."""
    numbers = {folder: _listed(str(code_facts(r)["numbers"]) for r in records) for folder, records in by_folder.items()}
    if len(set(numbers.values())) == 1:
        return ""
    each = ", ".join(f"{folder} {version}" for folder, version in numbers.items())
    return (
        f"The folders have different numbers versions ({each}): between them, scores of one method differ by changes "
        "of the suite, too. Compare methods within a folder."
    )


def _summary(*folders: Sequence[Record]) -> dict[str, str]:
    """What the records of some folders are, by name."""
    trials = [
        len({(r.bench, r.method, r.seed, json.dumps(r.config, sort_keys=True)) for r in records}) for records in folders
    ]
    records = [record for own in folders for record in own]
    session = max(str(r.environment.get("session", "")) for r in records)[:19]
    summary = {
        "trials": f"{sum(trials)}, with {len(records)} records",
        "methods": _listed(r.method for r in records),
        "benches": _listed(r.bench for r in records),
        "data": _listed(f"{r.data.get('name', '')} ({r.data['source']})" for r in records),
        "budget": _listed(str(r.config.get("preset", "")) for r in records),
        "version": _listed(str(r.environment.get("mlpip_bench", "")) for r in records),
        "machines": _listed((_machine(r) for r in records), "; "),
        "newest session": f"{session} UTC" if session else "",
    }
    return {name: text for name, text in summary.items() if text}


def _listed(values: Iterable[str], between: str = ", ") -> str:
    return between.join(sorted(set(values) - {""}))


def _stand_in(records: Sequence[Record]) -> str:
    """How many of the records are on stand-in data, and on which; empty where none is."""
    counts = Counter(r.data.get("name", "") for r in records if _is_stand_in(r.data["source"]))
    if not counts:
        return ""
    names = ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()))
    return f"{counts.total()} of {len(records)} records ({names})"


def _machine(record: Record) -> str:
    environment = record.environment
    threads = f"threads {environment['threads']}" if "threads" in environment else ""
    return ", ".join(filter(None, (environment.get("gpu") or environment.get("processor"), threads)))


# ---------------------------------------------------------------------------------------------------------- tables


def _columns(table: WideTable) -> tuple[str, ...]:
    """Columns that have a number."""
    filled = {name for row in (*table.rows, *table.published) for name in row.cells}
    return tuple(name for name in table.benches if name in filled)


def _is_number(cell: Cell | None) -> bool:
    return cell is not None and not math.isnan(cell.mean)


def _has_numbers(table: WideTable, name: str) -> bool:
    return any(_is_number(row.cells.get(name)) for row in (*table.rows, *table.published))


def _shared(table: WideTable) -> str:
    """What all our rows share, which stands above the table."""
    return table.attributes(keep=())[1]


def _conditions(table: WideTable, row: Row) -> str:
    """What stands below the name of a row: what all rows do not share, or what the paper says of it."""
    if row in table.published:
        return row.attributes["note"]
    names = table.attributes(keep=())[0]
    values = ((name, row.attributes.get(name, "")) for name in names if name != "bench")
    return "\N{NO-BREAK SPACE}· ".join(_condition(name, value) for name, value in values if value)


def _condition(name: str, value: str) -> str:
    if name == "inductive":
        return "/".join({"yes": "inductive", "no": "transductive"}.get(word, word) for word in value.split("/"))
    if name == "seeds":
        seeds = value.split(",")
        return f"1 seed ({value})" if len(seeds) == 1 else f"{len(seeds)} seeds ({', '.join(seeds)})"
    endings = {"queries": "queries a class", "tasks": "test tasks", "source": "data"}
    if name in endings:
        return f"{value} {endings[name]}"
    return value if name in ("budget", "settings", "device") else f"{name} {value}"


# --------------------------------------------------------------------------------------------------------- figures


def _pictures(folder: str, records: Sequence[Record], quoted: Sequence[Published]) -> Iterator[_Picture]:
    # A salt, so that the same records give the same ids; text as text, which halves the size, and whose nearest fonts
    # are no wider than matplotlib's own.
    with style.context([*STYLE, {"svg.hashsalt": "mlpip_bench", "svg.fonttype": "none"}]):
        for stem, figure in draw_figures(records, quoted):
            title = figure.get_suptitle()
            figure.suptitle("")
            yield _Picture(title, _svg_url(figure), f"{title}: {_axes(figure)}, from the records in {folder} ({stem})")


def _svg_url(figure: Figure) -> str:
    """The figure as a data URL; as an image of its own it shares no ids with the page's other figures."""
    content = io.BytesIO()
    figure.savefig(content, format="svg", metadata={"Date": None})
    svg = re.sub(r"\s+", " ", content.getvalue().decode())
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)  # hundredths of a point
    return f"data:image/svg+xml,{quote(svg, safe=_URL_SAFE)}"


def _axes(figure: Figure) -> str:
    labels = dict.fromkeys((axes.get_ylabel(), axes.get_xlabel()) for axes in figure.axes)
    return "; ".join(f"{y} against {x}" for y, x in labels if x and y) or f"{len(figure.axes)} panels"


# ------------------------------------------------------------------------------------------------------ provenance


def _provenance(records: Sequence[Record]) -> Iterator[_TrialProvenance]:
    """Records of one trained model and one configuration are one trial."""
    by_trial: dict[str, list[Record]] = {}
    for r in records:
        trial = (r.bench, r.method, r.seed, r.device, r.config, r.data, r.training)
        by_trial.setdefault(json.dumps(trial, sort_keys=True, default=dict), []).append(r)
    for own in by_trial.values():
        first = own[0]
        environments: dict[str, list[str]] = {}
        for r in own:
            environments.setdefault(_lines(r.environment), []).append(r.protocol)
        training = {name: value for name, value in first.training.items() if name not in TRAINING_SERIES}
        yield _TrialProvenance(
            bench=first.bench,
            method=first.method,
            seed=first.seed,
            stand_in=_is_stand_in(first.data["source"]),
            data=f"{first.data.get('name', '')} ({first.data['source']}), {first.data['fingerprint'][:12]}",
            software=_software(first),
            machine=_machine(first),
            training=_training(first),
            seconds=str(first.training.get("seconds", "")),
            keys=tuple((r.protocol, r.key[:12]) for r in own),
            details=(
                ("configuration", _lines(first.config)),
                ("data", _lines(first.data)),
                ("training", _lines({**training, "parameters": first.parameters})),
                *((f"environment of {', '.join(names)}", text) for text, names in environments.items()),
                ("keys", "\n".join(f"{r.protocol}: {r.key}; evaluated in {r.seconds:.0f} s" for r in own)),
            ),
        )


def _software(record: Record) -> str:
    """Versions, and the fingerprint of the method's code where the record has it."""
    versions = {name: record.environment.get(name) for name in ("mlpip_bench", "torch", "python")}
    versions[f"code of {record.method}"] = record.environment.get("code", {}).get("method")
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)


def _training(record: Record) -> str:
    training = record.training
    if "iterations" not in training:
        return ""
    best = f", best at {training['best_iteration']:,}" if training.get("best_iteration") else ""
    return f"{training.get('seconds', math.nan):,.0f} s, {training['iterations']:,} it{best}"


def _lines(values: Mapping[str, object]) -> str:
    shown = {k: v if isinstance(v, str) else json.dumps(v, sort_keys=True, default=dict) for k, v in values.items()}
    return "\n".join(f"{name}: {text}" for name, text in sorted(shown.items()) if text != "null")
