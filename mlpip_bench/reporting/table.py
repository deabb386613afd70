"""Wide tables as Markdown and for the terminal."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from mlpip_bench.records.record import Better, Model
from mlpip_bench.utils.encoding import for_markdown

ATTRIBUTES = (
    "bench", "backbone", "norm", "inductive", "queries", "parameters", "pretraining", "budget", "trained", "settings",
    "device", "protocol", "seeds", "tasks", "source",
)  # fmt: skip
"""Columns of a wide table that say how a row was measured; one that all rows leave empty is not shown."""

_ONLY_IF_VARYING = ("backbone", "pretraining", "settings", "device", "protocol")
"""Attributes that go to the caption in every format while all rows agree."""

_PLAIN = ("bench", "budget", "source", "settings")
"""Attributes whose values need no name."""

BOLD_NOTE = (
    "Bold: the best mean of a column, and all that no test shows to be worse (paired differences on the same tasks, "
    "p below 0.05 after Holm's correction for all pairs of the column), among our rows of one source."
)
PUBLISHED_BOLD_NOTE = "Bold among the published rows: the best mean, and all whose intervals overlap with its interval."


@dataclass(frozen=True)
class Cell:
    """One number of a wide table.

    Attributes:
        mean: in the metric's own unit.
        ci95: half-width over tasks; ``None`` where there is none.
        text: mean and half-width as shown.
        spread: spread of the seeds' means as shown; empty for one seed.
        budget: training iterations as shown, where they are not the same for all numbers of the row.
    """

    mean: float
    ci95: float | None
    text: str
    spread: str = ""
    budget: str = ""


@dataclass(frozen=True)
class Row:
    """One row of a wide table.

    Attributes:
        label: method, marked ``(stand-in)`` where the data was.
        attributes: how it was measured, by name of the column.
        cells: numbers by column.
        bold: columns in which this row is among the best.
        mark: number of its note, in brackets; empty where it has none.
    """

    label: str
    attributes: Mapping[str, str]
    cells: Mapping[str, Cell]
    bold: frozenset[str] = frozenset()
    mark: str = ""

    @property
    def marked(self) -> str:
        """The label with its mark."""
        return f"{self.label} {self.mark}".rstrip()


@dataclass(frozen=True)
class WideTable:
    """All results of one metric, or another table of the same form.

    Attributes:
        name: of its file; ``..._by_steps`` for scores under a condition named ``steps``, ``..._last`` for the last
            model of training rather than the best on validation. Nothing reads it back.
        title: metric, unit and direction.
        benches: the columns; under a condition ``<bench>, <name> <value>``, or ``<name> <value>`` where all are of one
            bench. One without a number is not drawn.
        rows: our rows.
        published: the paper's rows for the same benches.
        notes: what the reader must know, one sentence or more each.
        row_notes: what the marks of rows stand for.
        better: which scores are.
        row_name: what a row is.
        heading: the title without what it has in brackets; the title where it has nothing there.
        model: which model of training it is about.
        conditions: names of the conditions that the scores are under.
    """

    name: str
    title: str
    benches: tuple[str, ...]
    rows: tuple[Row, ...]
    published: tuple[Row, ...]
    notes: tuple[str, ...]
    row_name: str = "method"
    heading: str = ""
    model: Model = "best"
    conditions: tuple[str, ...] = ()
    row_notes: tuple[str, ...] = ()
    better: Better = "neither"

    def attributes(self, *, keep: Sequence[str] = ("source",)) -> tuple[list[str], str]:
        """Split the attributes into columns and caption.

        Args:
            keep: attributes that stay columns even when all our rows agree.

        Returns:
            Names of the columns, and the sentence that states the rest.
        """
        columns, constant = [], []
        for name in ATTRIBUTES:
            values = {row.attributes.get(name, "") for row in self.rows}
            if values == {""}:
                continue
            if name in keep or len(values) > 1:
                columns.append(name)
            else:
                constant.append(f"{name} {values.pop()}")
        return columns, f"All our rows: {', '.join(constant)}." if constant else ""


def to_markdown(table: WideTable) -> str:
    """GitHub Markdown; the attributes are columns, so that a row can be read alone."""
    table = without_empty_columns(table)
    names, constant = table.attributes(keep=[name for name in ATTRIBUTES if name not in _ONLY_IF_VARYING])

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(map(for_markdown, cells)) + " |"

    def row_line(row: Row) -> str:
        return line([row.marked, *(row.attributes.get(n, "") for n in names), *cells_of(table, row, "**{}**".format)])

    lines = [
        line([table.row_name, *names, *table.benches]),
        line(["---", *("---" for _ in names), *("---:" for _ in table.benches)]),
        *(row_line(row) for row in table.rows),
    ]
    if table.published:
        lines.append(line(["*published:*", *("" for _ in (*names, *table.benches))]))
        lines += [row_line(row) for row in table.published]
    notes = [f"- {note}" for note in (*table.notes, *table.row_notes)]
    return "\n".join([f"**{table.title}**", "", *([constant, ""] if constant else []), *lines, "", *notes, ""])


def to_rich(*tables: WideTable, width: int = 100, bold: bool = True) -> Group:
    """For the terminal: a note that several tables need stands once, below them all.

    Args:
        tables: what to show.
        width: columns of the terminal.
        bold: whether the terminal can show it.
    """
    parts: list[Text | Table] = []
    needed_by: dict[str, list[WideTable]] = defaultdict(list)
    for table in tables:
        for note in (*table.notes, *table.row_notes):
            if bold or note not in (BOLD_NOTE, PUBLISHED_BOLD_NOTE):
                needed_by[note].append(table)
    for table in tables:
        parts += [Text(table.title, style="bold")]
        if constant := table.attributes(keep=())[1]:
            parts.append(Text(constant, style="dim"))
        parts += _frames(without_empty_columns(table), width)
        parts += [Text(note, style="dim") for note, needing in needed_by.items() if needing == [table]]
        parts.append(Text())
    shared: dict[str, list[str]] = defaultdict(list)
    for note, needing in needed_by.items():
        if len(needing) > 1:
            names = "; ".join((table.heading or table.title) for table in needing)
            shared["all tables above" if len(needing) == len(tables) else names].append(note)
    for names, notes in shared.items():
        parts += [Text(f"Notes to {names}:", style="bold"), *(Text(note, style="dim") for note in notes), Text()]
    return Group(*parts[:-1])


def without_empty_columns(table: WideTable) -> WideTable:
    """The table with the columns that have a number."""
    filled = {bench for row in (*table.rows, *table.published) for bench in row.cells}
    return replace(table, benches=tuple(bench for bench in table.benches if bench in filled))


def _frames(table: WideTable, width: int) -> list[Table]:
    """Benches that do not fit into one frame follow in a further one."""
    names, _ = table.attributes(keep=())
    first, gap = 24, 3  # the first column's width; padding and separator of the others
    for newline in (" ", "\n"):
        cells = [text for row in (*table.rows, *table.published) for text in cells_of(table, row, str, newline, "\n")]
        headers = [bench.replace(" ", newline) for bench in table.benches]
        widest = max(len(line) for text in (*headers, *cells) for line in text.split("\n"))
        fitting = max(1, (width - first - gap - 1) // (widest + gap))
        if len(table.benches) <= fitting:
            break
    each = math.ceil(len(table.benches) / math.ceil(len(table.benches) / fitting))  # so that no frame is left with one
    return [
        _rich_part(replace(table, benches=table.benches[i : i + each]), names, newline, first)
        for i in range(0, len(table.benches), each)
    ]


def _rich_part(table: WideTable, names: Sequence[str], newline: str, first: int) -> Table:
    part = Table(box=box.HORIZONTALS)
    part.add_column(table.row_name, width=first, overflow="fold")
    for bench in table.benches:
        part.add_column(bench.replace(" ", newline), justify="right", overflow="fold")

    def add(row: Row, attributes: Sequence[str]) -> None:
        label = Text(row.marked, style="bold" if attributes else "")
        if attributes:
            label.append("\n" + ", ".join(attributes), style="not bold dim")
        texts = cells_of(table, row, str, newline, "\n")
        styles = ["bold" if bench in row.bold else "" for bench in table.benches]
        part.add_row(label, *(Text(text, style=style) for text, style in zip(texts, styles, strict=True)))

    for row in table.rows:
        if set(row.cells) & set(table.benches):
            values = ((name, row.attributes[name]) for name in names if row.attributes.get(name))
            add(row, [value if name in _PLAIN else f"{name} {value}" for name, value in values])
    if table.published:
        part.add_section()
        part.add_row(Text("published:", style="italic"))
        for row in table.published:
            if set(row.cells) & set(table.benches):
                add(row, [])
    return part


def cells_of(
    table: WideTable,
    row: Row,
    emphasize: Callable[[str], str],
    before_interval: str = " ",
    before_spread: str = " ",
    escape: Callable[[str], str] = str,
    columns: Sequence[str] | None = None,
) -> list[str]:
    """Texts of a row's numbers, empty where it has none; the spread of the seeds is never emphasized."""
    texts = []
    for bench in table.benches if columns is None else columns:
        cell = row.cells.get(bench, _NO_CELL)
        number = escape(_BEFORE_INTERVAL.sub(before_interval, cell.text, count=1))
        spread = f"{before_spread}({escape(cell.spread)})" if cell.spread else ""
        texts.append((emphasize(number) if bench in row.bold else number) + spread)
    return texts


_NO_CELL = Cell(math.nan, None, "")
_BEFORE_INTERVAL = re.compile(r" (?=[±[(])")  # or quartiles, or a remark; never between a number and its unit
