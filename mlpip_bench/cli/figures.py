"""``figures`` and ``report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlpip_bench.cli.common import (
    Benches,
    Margin,
    Methods,
    Metrics,
    Names,
    ResultsFolders,
    WithPublished,
)
from mlpip_bench.execution import options
from mlpip_bench.execution.config import RUNS
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import check_no_link, given_path, write_atomically

FIGURES_EXAMPLES = (
    "Examples:\n\npython -m mlpip_bench figures --results runs\n\n"
    "python -m mlpip_bench figures --metric accuracy --methods versa,maml --names versa=Versa --output figures"
)


def figures(
    results_folders: ResultsFolders = None,
    bench: Benches = None,
    methods: Methods = None,
    metric: Metrics = None,
    names: Names = None,
    published: WithPublished = True,
    output: Annotated[
        Path | None,
        typer.Option(
            parser=given_path, metavar="DIR", help="Their folder; left out, figures in the first results folder."
        ),
    ] = None,
) -> None:
    """Regenerate the figures from records, and print where they are."""
    from mlpip_bench.reporting.figures.writing import write_figures
    from mlpip_bench.reporting.selection import load_union, parse_names, selected, shown

    folders = results_folders or [RUNS]
    chosen = selected(
        load_union(folders),
        benches=options.names(bench),
        methods=options.names(methods),
        metrics=options.names(metric),
    )
    check_no_link(output or folders[0] / "figures")
    named = shown(chosen, parse_names(names), None if published else [])
    for path in write_figures(named.records, folders[0], named.quoted, output):
        typer.echo(path)


REPORT_EXAMPLES = (
    "Examples:\n\npython -m mlpip_bench report\n\n"
    "python -m mlpip_bench report --results results/omniglot --results results/norm_modes --output report.html"
)


def report(
    results_folders: ResultsFolders = None,
    output: Annotated[
        Path | None,
        typer.Option(parser=given_path, metavar="FILE", help="The file; left out, report.html in the first folder."),
    ] = None,
    names: Names = None,
    margin: Margin = None,
) -> None:
    """Write one HTML page that needs no network: the answer, tables, differences, figures, timing, provenance."""
    from mlpip_bench.records import store
    from mlpip_bench.reporting.decisions import check_margins, parse_margins
    from mlpip_bench.reporting.html import to_html
    from mlpip_bench.reporting.selection import parse_names

    folders = results_folders or [RUNS]
    path = output or folders[0] / "report.html"
    if path.exists() and path.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"report writes a page of HTML, over nothing else; {path} is there. Name another file.")
    margins, given = parse_margins(margin), parse_names(names)
    by_folder = {str(folder): store.load_all(folder) for folder in folders}
    check_margins(margins, {s.metric for records in by_folder.values() for r in records for s in r.scores})
    failures = {str(folder): store.load_failures(folder) for folder in folders}
    page = to_html(by_folder, failures, given, margins)
    write_atomically(path, page.encode(errors="backslashreplace"))
    typer.echo(path)
