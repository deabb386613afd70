"""``rescore``: scores made again from kept predictions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlpip_bench.cli.common import err, folder_name, print_wide
from mlpip_bench.execution import options
from mlpip_bench.execution.config import RUNS
from mlpip_bench.utils.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

    from mlpip_bench.reporting.table import Cell, WideTable

RESCORE_EXAMPLES = (
    "Examples:\n\npython -m mlpip_bench rescore --results runs --bins 30\n\n"
    "python -m mlpip_bench rescore --temperature --ensemble --output scores.csv"
)


def rescore(
    results_folders: Annotated[
        list[Path] | None,
        typer.Option("--results", parser=folder_name, metavar="DIR", help="Folder of records; repeatable."),
    ] = None,
    bench: Annotated[str | None, typer.Option(help="Only these benches, with commas.")] = None,
    methods: Annotated[str | None, typer.Option(help="Only these methods, with commas.")] = None,
    bins: Annotated[int, typer.Option(help="Of the expected calibration error.")] = 15,
    temperature: Annotated[
        bool, typer.Option("--temperature", help="Recalibrate by a temperature fitted on validation predictions.")
    ] = False,
    ensemble: Annotated[
        bool, typer.Option("--ensemble", help="Also the mean predictions of the seeds of each configuration.")
    ] = False,
    model: Annotated[str, typer.Option(help="best (on validation), or last (of training).")] = "best",
    over: Annotated[str, typer.Option(help="What intervals are over: tasks, or classes.")] = "tasks",
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write them, as .csv or .json.")] = None,
) -> None:
    """Make scores again from kept predictions: other bins, recalibrated, by coverage, of ensembles over seeds."""
    from mlpip_bench.records import rescoring
    from mlpip_bench.utils.encoding import csv_text
    from mlpip_bench.utils.files import write_atomically

    if output is not None and output.suffix not in (".csv", ".json"):
        raise UserError(f"--output takes a file that ends with .csv or .json; got {output}.")
    found, without = rescoring.sources(results_folders or [RUNS])
    chosen = [
        source
        for source in found
        if source.record.bench in (options.names(bench) or (source.record.bench,))
        and source.record.method in (options.names(methods) or (source.record.method,))
    ]
    if without:
        err.print(f"{without} records name no predictions, and are left out", highlight=False)
    asked: Any = model
    units: Any = over
    frame = rescoring.rescore(chosen, bins=bins, temperatures=temperature, ensembles=ensemble, model=asked, over=units)
    columns = [name for name in rescoring.SCORES if name in frame]
    print_wide([_table(frame, ["temperature", *columns] if temperature else columns)])
    if output is not None:
        text = csv_text(frame) if output.suffix == ".csv" else frame.to_json(orient="records", indent=1)
        write_atomically(output.expanduser(), text.encode())


def _table(frame: pd.DataFrame, columns: Sequence[str]) -> WideTable:
    from mlpip_bench.reporting.table import Row, WideTable

    rows = []
    for row in frame.to_dict("records"):
        attributes = {"bench": row["bench"], "settings": row["settings"], "seeds": row["seeds"]}
        if row["members"] > 1:
            attributes["seeds"] += " (ensemble)"
        rows.append(Row(row["method"], attributes, {name: _cell(row, name) for name in columns}))
    return WideTable("rescored", "scores of kept predictions", tuple(columns), tuple(rows), (), ())


def _cell(row: dict[Any, Any], name: str) -> Cell:
    from mlpip_bench.reporting.table import Cell

    mean, half_width = row[name], row.get(f"{name}_ci95")
    if mean != mean:  # missing: predictions of numbers have no accuracy
        return Cell(mean, None, "")
    return Cell(mean, half_width, f"{mean:.4f}" if half_width is None else f"{mean:.4f} ± {half_width:.4f}")
