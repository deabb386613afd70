"""``data``: data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlpip_bench import registry
from mlpip_bench.cli.common import DataRoot, err, folded_table, out
from mlpip_bench.execution import options
from mlpip_bench.utils.errors import UserError, unknown_name
from mlpip_bench.utils.files import ROOT_VARIABLE, data_root_of, given_path
from mlpip_bench.utils.progress import ConsoleReporter

data_app = typer.Typer(no_args_is_help=True, help="Look after data sets.")


@data_app.command("verify", epilog="Example:\n\npython -m mlpip_bench data verify --data-root ~/data")
def verify(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these data sets (see: list data).")
    ] = None,
    data_root: DataRoot = None,
    datasets: Annotated[str | None, typer.Option("--data", help="The same, with commas.")] = None,
) -> None:
    """Read data sets from their files, past the cache, and check that they are whole."""
    from mlpip_bench.datasets import sources

    known, data_root = registry.data_sources(), data_root_of(data_root)
    table = folded_table("data set", "what", "status", "detail")
    wanted = list(options.names([*(names or ()), *options.names(datasets)]))
    if unknown := [name for name in wanted if name not in known]:
        raise unknown_name("data set", unknown[0], known)
    if not wanted:
        for name, source in known.items():
            found = sources.status(source, data_root)
            if found.status == "not found":
                table.add_row(name, "files", found.status, found.detail)
            else:
                wanted.append(name)
    if not wanted:
        where = "no folder is set" if data_root is None else f"{data_root} has none"
        raise UserError(f"no data set is found: {where}. Pass --data-root or set {ROOT_VARIABLE} (see: list data).")
    failed = False
    for name in wanted:
        for check in sources.verify(known[name], data_root):
            table.add_row(name, check.what, check.status, check.detail)
            failed |= check.status == "failed"
    out.print(table)
    if failed:
        raise typer.Exit(2)


@data_app.command(
    "prepare", epilog="Example:\n\npython -m mlpip_bench data prepare icons --from node_modules/@iconify/json"
)
def prepare(
    dataset: Annotated[str | None, typer.Argument(help="What to prepare; left out, what can be prepared.")] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", parser=given_path, metavar="DIR", help="Folder of what it is made of."),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option("--to", parser=given_path, metavar="DIR", help="Its folder; left out, one below DATA-ROOT."),
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Meshes rendered at once; left out, one a core.")] = None,
    data_root: DataRoot = None,
) -> None:
    """Make a data set of what a public package holds; the same command goes on where it was stopped."""
    known = registry.preparers()
    if dataset is None:
        table = folded_table("name", "what it makes", "of what", "below the data folder")
        for name, preparer in known.items():
            default = f"; by default {preparer.default_source}" if preparer.default_source else ""
            table.add_row(name, preparer.what, preparer.source + default, f"{preparer.folder}/")
        out.print(table)
        return
    if dataset not in known:
        raise unknown_name("data set to prepare", dataset, known)
    preparer = known[dataset]
    source = source or preparer.default_source
    if source is None:
        raise UserError(f"{dataset} is made of {preparer.source}; pass it as --from DIR.")
    target = target or (data_root and data_root / preparer.folder)
    if target is None:
        where = f"pass --to, or --data-root (or {ROOT_VARIABLE}) for its {preparer.folder}/"
        raise UserError(f"what is prepared needs a folder; {where}.")
    if preparer.prepare(source, target, ConsoleReporter(err), jobs):
        raise typer.Exit(1)
