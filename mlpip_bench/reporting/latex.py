"""Wide tables as LaTeX that fits a text column: no wider than ``TEXT_WIDTH``, no longer than a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mlpip_bench.reporting.table import ATTRIBUTES, Row, WideTable, cells_of, without_empty_columns

TEXT_WIDTH = 397.0
"""Points; that of ICLR's style, the narrowest of the usual ones with one column."""

_GAP = 8.0  # points between two columns, which is twice \tabcolsep
_LABEL, _TEXT = 150.0, 130.0  # points; wider labels and cells are broken into lines
_HEAD = 75.0
_MOST_LINES = 42  # of the numbers of one float
_PACKAGES = r"% \usepackage{array,booktabs}"


@dataclass(frozen=True)
class _Column:
    head: str
    cells: tuple[str, ...]
    width: float
    spec: str


def to_latex(table: WideTable) -> str:
    r"""Booktabs tables that compile as they are, in ``\small``; what all rows share is in the caption.

    Settings of single rows are left out: they are in the Markdown form. Columns that do not fit follow in a further
    part of the same float, rows that do not fit in a further float.
    """
    table = without_empty_columns(table)
    names = [name for name in table.attributes(keep=())[0] if name in ATTRIBUTES]
    constant = table.attributes(keep=())[1]
    floats = list(_floats(table, names))
    parts = []
    for number, body in enumerate(floats):
        first = number == 0
        caption = f"{table.title}. {constant}".strip() if first else f"{table.heading or table.name}, continued."
        label = table.name if first else f"{table.name}_{number + 1}"
        notes = [rf"{escaped(note)}\par" for note in table.notes] if number == len(floats) - 1 else []
        parts += [
            *([_PACKAGES] if first else []),
            r"\begin{table}",
            rf"\caption{{{escaped(caption)}}}",
            rf"\label{{tab:{escaped_label(label)}}}",
            rf"\centering\small\setlength{{\tabcolsep}}{{{_GAP / 2:g}pt}}",
            *body,
            *([r"\par\raggedright\footnotesize", *notes] if notes else []),
            r"\end{table}",
        ]
    return "\n".join([*parts, ""])


def _floats(table: WideTable, names: Sequence[str]) -> Iterator[list[str]]:
    """The tabulars of each float."""
    body: list[str] = []
    lines = 0
    for rows, published in _by_lines(table):
        for tabular in _tabulars(table, rows, published, names):
            more = len(rows) + len(published) + 2
            if body and lines + more > _MOST_LINES:
                yield body
                body, lines = [], 0
            body += [*([r"\par\medskip"] if body else []), *tabular]
            lines += more
    yield body


def _by_lines(table: WideTable) -> Iterator[tuple[Sequence[Row], Sequence[Row]]]:
    if len(table.rows) + len(table.published) + 2 <= _MOST_LINES:
        yield table.rows, table.published
        return
    for start in range(0, len(table.rows), _MOST_LINES - 2):
        yield table.rows[start : start + _MOST_LINES - 2], ()
    if table.published:
        yield (), table.published


def _tabulars(
    table: WideTable, rows: Sequence[Row], published: Sequence[Row], names: Sequence[str]
) -> Iterator[list[str]]:
    labels = [", ".join([row.label, *_attributes(row, names)]) for row in (*rows, *published)]
    width = min(max(map(points, (table.row_name, *labels))), _LABEL)
    columns = [_column(table, bench, (*rows, *published)) for bench in table.benches]
    chunk: list[_Column] = []
    for column in columns:
        if chunk and width + sum(_GAP + c.width for c in (*chunk, column)) > TEXT_WIDTH:
            yield _tabular(table.row_name, labels, width, chunk, len(rows))
            chunk = []
        chunk.append(column)
    yield _tabular(table.row_name, labels, width, chunk, len(rows))


def _attributes(row: Row, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        if value := row.attributes.get(name, ""):
            yield value if name in ("settings", "budget", "bench") else f"{name} {value}"


def _column(table: WideTable, bench: str, rows: Sequence[Row]) -> _Column:
    plain = [" ".join(cells_of(table, row, str, columns=(bench,))) for row in rows]
    cells = [cells_of(table, row, r"\textbf{{{}}}".format, escape=escaped, columns=(bench,))[0] for row in rows]
    widest = max(points(text, bold=bench in row.bold) for text, row in zip(plain, rows, strict=True))
    if widest > _TEXT:
        return _Column(escaped(bench), tuple(cells), _TEXT, rf">{{\raggedright\arraybackslash}}p{{{_TEXT:g}pt}}")
    head, width = escaped(bench), max(widest, points(bench))
    if width > max(widest, _HEAD):
        width = max(widest, _HEAD)
        head = rf"\parbox[b]{{{width:.0f}pt}}{{\raggedleft {head}}}"
    return _Column(head, tuple(cells), width, "r")


def _tabular(row_name: str, labels: Sequence[str], width: float, columns: Sequence[_Column], ours: int) -> list[str]:
    spec = "l" if width < _LABEL else rf">{{\raggedright\arraybackslash}}p{{{_LABEL:g}pt}}"
    lines = [
        " & ".join([escaped(label), *(column.cells[i] for column in columns)]) + r" \\"
        for i, label in enumerate(labels)
        if any(column.cells[i] for column in columns)
    ]
    shown = sum(any(column.cells[i] for column in columns) for i in range(ours))
    return [
        rf"\begin{{tabular}}{{@{{}}{spec}{''.join(column.spec for column in columns)}@{{}}}}",
        r"\toprule",
        " & ".join([escaped(row_name), *(column.head for column in columns)]) + r" \\",
        r"\midrule",
        *lines[:shown],
        *([r"\midrule"] if 0 < shown < len(lines) else []),
        *lines[shown:],
        r"\bottomrule",
        r"\end{tabular}",
    ]


def points(text: str, *, bold: bool = False) -> float:
    r"""Width of a text in Computer Modern at 9 points, ``\small`` of 10; a little too wide rather than too narrow."""
    return sum(_width(character) for character in text) * (1.16 if bold else 1.0)


def _width(character: str) -> float:
    if character in "ijl.,:;'|!()[] ":
        return 3.7 if character in "()[] " else 2.7
    if character in "mwMW%±@&×" or character.isupper():  # noqa: RUF001  # a multiplication sign
        return 9.4 if character in "MW" else 7.8
    return 4.75 if character.isdigit() else 5.1


_ESCAPES = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "$": r"\$",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$", "±": r"$\pm$", "–": "--",  # noqa: RUF001
    "×": r"$\times$",  # noqa: RUF001
}  # fmt: skip


def escaped(text: str) -> str:
    """A text that LaTeX shows as it is."""
    return "".join(_ESCAPES.get(character, character) for character in text)


def escaped_label(text: str) -> str:
    """A name for a label, of which some characters would end it."""
    return "".join(character for character in text if character not in "\\{}%#~^$&")
