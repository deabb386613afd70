"""What commands share: consoles, options, and how tables are shown."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from mlpip_bench.utils.console import PlainConsole
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import given_path

if TYPE_CHECKING:  # what reads and draws records is imported where it is needed: --help answers at once
    from mlpip_bench.records.record import Record
    from mlpip_bench.reporting.selection import Shown
    from mlpip_bench.reporting.table import WideTable

out = PlainConsole()
err = PlainConsole(stderr=True)


class TableFormat(StrEnum):
    """How ``table`` prints."""

    text = "text"
    markdown = "markdown"
    latex = "latex"
    csv = "csv"


def folder_name(text: str) -> Path:
    """A folder as it was typed."""
    if not str(text).strip():
        raise UserError("--results needs the name of a folder; got an empty one. Use . for the current folder.")
    return given_path(text)


def given_path_or_none(text: str) -> Path | None:
    """A path as it was typed; None for an empty environment variable."""
    return given_path(text) if str(text) else None


Results = Annotated[
    Path,
    typer.Option("--results", parser=folder_name, metavar="DIR", help="Folder of records, tables and checkpoints."),
]

ResultsFolders = Annotated[
    list[Path] | None,
    typer.Option("--results", parser=folder_name, metavar="DIR", help="Folder of records; repeatable: their union."),
]
Benches = Annotated[str | None, typer.Option("--benches", "--bench", help="Only these benches, with commas.")]
Methods = Annotated[str | None, typer.Option(help="Only these methods, with commas.")]
Metrics = Annotated[str | None, typer.Option("--metric", "--metrics", help="Only these metrics, with commas.")]
Names = Annotated[str | None, typer.Option(metavar="METHOD=NAME,...", help="Names that methods are shown under.")]
WithPublished = Annotated[
    bool, typer.Option("--published/--no-published", help="Whether the paper's numbers are shown, too.")
]
Margin = Annotated[
    str | None,
    typer.Option(
        metavar="METRIC=NUMBER,...",
        help="What is practically equal, as in accuracy=0.5,nll=0.01 (percentage points; nats).",
    ),
]

TrustCode = Annotated[
    bool,
    typer.Option("--trust-code", help="Run code of your own, a network or a method, that a record or model names."),
]
DataRoot = Annotated[
    Path | None,
    typer.Option(
        parser=given_path_or_none,
        metavar="DIR",
        envvar="MLPIP_BENCH_DATA",
        help="Folder of real data sets (see: list data).",
    ),
]


def folded_table(*columns: str) -> Table:
    """A table whose cells are folded, never cut."""
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def rewrite_tables(folder: Path) -> list[Record]:
    """Write the tables of a folder's records, and return the records."""
    from mlpip_bench.records import store
    from mlpip_bench.reporting.tables.writing import write_tables
    from mlpip_bench.utils.files import check_no_link
    from mlpip_bench.utils.locks import locked

    check_no_link(folder / "tables")
    if folder.is_dir() and not os.access(folder, os.W_OK):
        err.print(f"{folder} cannot be written, so its tables are not saved there", markup=False, highlight=False)
        return store.load_all(folder)
    with locked(folder / "locks" / "tables.lock", wait=True):  # or those of a run that read less might be the last
        records = store.load_all(folder)
        write_tables(records, folder)
    return records


def print_answer(shown: Shown, margins: Mapping[str, float] | None = None) -> None:
    """Say who leads on each bench, by how much, and whether that is decided."""
    from mlpip_bench.reporting.answer import answers

    for answer in answers(shown.records, shown.quoted, margins or {}):
        out.print(answer.sentence, markup=False, highlight=False, soft_wrap=True)


def print_tables(shown: Shown) -> None:
    """Print the tables of records, those of timing first."""
    from mlpip_bench.reporting.tables.norms import norm_tables
    from mlpip_bench.reporting.tables.overall import overall_tables
    from mlpip_bench.reporting.tables.scores import wide_tables
    from mlpip_bench.reporting.tables.timing import timed, timing_tables

    records = shown.records
    if timed(records):
        print_wide(timing_tables(records))
    numbers: dict[str, int] = {}
    by_norm = norm_tables(records, numbers)
    print_wide([*wide_tables(records, shown.quoted, numbers), *by_norm, *overall_tables(records)])
    norms = {(r.bench, r.method, r.config["norm"]) for r in records if any(score.way > 1 for score in r.scores)}
    if not by_norm and len(norms) > len({(bench, method) for bench, method, _ in norms}):
        err.print(
            "what a norm owes to the other queries is shown with `--protocols accuracy,nll,one_at_a_time`",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip


def print_wide(shown: list[WideTable]) -> None:
    """Print tables that fit the terminal."""
    from mlpip_bench.reporting.table import to_rich

    if shown:
        out.print(to_rich(*shown, width=out.width, bold=out.color_system is not None))
        out.print()


def show_tables(shown: list[WideTable], format_: TableFormat) -> None:
    """Print tables in a format."""
    from mlpip_bench.reporting.latex import to_latex
    from mlpip_bench.reporting.table import to_markdown

    if format_ is TableFormat.csv:
        raise UserError("pytest-benchmark's file is JSON already; --format csv is for records. Leave --format out.")
    if format_ is TableFormat.text:
        print_wide(shown)
        return
    render = to_markdown if format_ is TableFormat.markdown else to_latex
    typer.echo("\n".join(map(render, shown)))
