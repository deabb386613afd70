"""``figures`` and ``report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlpip_bench.cli.common import Results, folder_name
from mlpip_bench.execution.config import RUNS
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import check_no_link, given_path, write_atomically

FIGURES_EXAMPLES = "Example:\n\npython -m mlpip_bench figures --results runs"


def figures(results_folder: Results = RUNS) -> None:
    """Regenerate the figures from records, and print where they are."""
    from mlpip_bench.records import store
    from mlpip_bench.reporting.figures.writing import write_figures

    check_no_link(results_folder / "figures")
    for path in write_figures(store.load_all(results_folder), results_folder):
        typer.echo(path)


REPORT_EXAMPLES = (
    "Examples:\n\npython -m mlpip_bench report\n\n"
    "python -m mlpip_bench report --results results/omniglot --results results/norm_modes --output report.html"
)


def report(
    results_folders: Annotated[
        list[Path] | None,
        typer.Option("--results", parser=folder_name, metavar="DIR", help="Folder of records; repeatable."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(parser=given_path, metavar="FILE", help="The file; left out, report.html in the first folder."),
    ] = None,
) -> None:
    """Write one HTML page that needs no network: tables, differences, figures, timing, provenance."""
    from mlpip_bench.records import store
    from mlpip_bench.reporting.html import to_html

    folders = results_folders or [RUNS]
    path = output or folders[0] / "report.html"
    if path.exists() and path.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"report writes a page of HTML, over nothing else; {path} is there. Name another file.")
    by_folder = {str(folder): store.load_all(folder) for folder in folders}
    failures = {str(folder): store.load_failures(folder) for folder in folders}
    write_atomically(path, to_html(by_folder, failures).encode(errors="backslashreplace"))
    typer.echo(path)
