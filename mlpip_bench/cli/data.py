"""``data``: data sets."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.text import Text

from mlpip_bench import registry
from mlpip_bench.cli.common import DataRoot, err, folded_table, out
from mlpip_bench.execution import options
from mlpip_bench.utils.errors import UserError, unknown_name
from mlpip_bench.utils.files import ROOT_VARIABLE, data_root_of, given_path, write_atomically
from mlpip_bench.utils.progress import ConsoleReporter

if TYPE_CHECKING:
    from mlpip_bench.utils.choices import SourceChoice

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

    data_root = data_root_of(data_root)
    known, damaged = registry.data_sources(data_root), registry.damaged_families(data_root)
    table = folded_table("data set", "what", "status", "detail")
    wanted = list(options.names([*(names or ()), *options.names(datasets)]))
    if unknown := [name for name in wanted if name not in {**known, **damaged}]:
        raise unknown_name("data set", unknown[0], {**known, **damaged})
    if not wanted:
        wanted = list(damaged)
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
        if name in damaged:
            table.add_row(name, "description", "failed", damaged[name])
            failed = True
            continue
        for check in sources.verify(known[name], data_root):
            table.add_row(name, check.what, check.status, check.detail)
            failed |= check.status == "failed"
    out.print(table)
    if failed:
        raise typer.Exit(2)


@data_app.command(
    "add", epilog="Example:\n\npython -m mlpip_bench data add birds --from ~/pictures/birds --data-root ~/data"
)
def add(
    name: Annotated[str, typer.Argument(help="Of the data set, and in front of its benches: birds for birds5w1s.")],
    source: Annotated[
        Path,
        typer.Option(
            "--from",
            parser=given_path,
            metavar="PATH",
            help="Folder of class folders, csv list (file,label[,split]) or npz file (images or features, labels).",
        ),
    ],
    data_root: DataRoot = None,
    image_size: Annotated[
        int | None,
        typer.Option(help="Height and width of the images; left out, 84, or that of the square arrays of an npz file."),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="A/B/C|FILE",
            help="Percents of the classes for training, validation and test, or a csv list (class,split); left out, "
            "the folders train, val and test or the column split, else 60/20/20.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the random split; left out, 0.")] = None,
    license_name: Annotated[str, typer.Option("--license", help="Of the data; kept with them.")] = "",
    citation: Annotated[str, typer.Option(help="How to cite the data; kept with them.")] = "",
    pretrained_on: Annotated[
        str, typer.Option(help="What the network was trained on that made feature vectors; it is in every record.")
    ] = "",
    domains: Annotated[
        bool | None,
        typer.Option(
            help="Whether the upper of two levels of folders are domains of the same classes (art/dog, photo/dog), or "
            "equal names below them are different classes; left out, as the names say.",
        ),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the data set that was added as NAME before.")] = (
        False
    ),
) -> None:
    """Make a data set of pictures or feature vectors of your own, and benches of it."""
    if data_root is None:
        raise UserError(f"data add needs a folder for its data sets; pass --data-root or set {ROOT_VARIABLE}.")
    from mlpip_bench.benches.added import first_run
    from mlpip_bench.datasets.adding import add as adding

    choices = adding.Choices(image_size, split, seed, license_name, citation, pretrained_on, replace, domains)
    registry.check_new_family(name)
    description = adding.add(name, source, data_root, choices, ConsoleReporter(err))
    table = folded_table("split", "classes", description.kind, "smallest class")
    for of_split, classes in description.splits.items():
        poorest = min(classes, key=lambda each: classes[each])
        counts = len(classes), sum(classes.values())
        table.add_row(of_split, *map(str, counts), Text(f"{poorest}: {classes[poorest]}"))
    out.print(table)
    left_out = ", ".join(f"{count} {what}" for what, count in description.left_out.items())
    for line in (
        *([f"left out: {left_out}"] if left_out else []),
        f"{data_root / name} has what benches read; now for example",
        f"  {first_run(registry.added_family(data_root / name), data_root)}",
    ):
        out.print(line, markup=False, highlight=False, soft_wrap=True)


@data_app.command(
    "show",
    epilog="Examples:\n\npython -m mlpip_bench data show birds3w2s --data-root ~/data\n\n"
    "python -m mlpip_bench data show omni5w1s --split train --task 7 --output task.png",
)
def show(
    bench: Annotated[str, typer.Argument(help="Whose task is drawn, for example omni5w1s (see: list benches).")],
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    task: Annotated[int, typer.Option(help="Number of the task, from 0.")] = 0,
    queries: Annotated[int, typer.Option(help="Of each class.")] = 5,
    data_root: DataRoot = None,
    source: Annotated[str, typer.Option(help="auto: real data where found, else the stand-in; real; procedural.")] = (
        "auto"
    ),
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="FAMILY.OPTION=VALUE", help="An option of the task family, as of run; repeatable."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(parser=given_path, metavar="FILE", help="A PNG; left out, BENCH-SPLIT-TASK.png in this folder."),
    ] = None,
) -> None:
    """Draw a task as methods get it, to see how pictures were scaled and cut."""
    path = output or Path(f"{bench}-{split}-{task}.png")
    if path.suffix.lower() != ".png":
        raise UserError(f"data show writes a PNG; got --output {path}. Name a file that ends in .png.")
    from mlpip_bench.api.benches import load_bench

    chosen = options.data_options(data or [])
    family = registry.bench(bench, data_root).family
    if others := chosen.keys() - {family}:
        raise UserError(f"--data names the bench's task family, {family}; got {others.pop()!r}.")
    shown = load_bench(bench, data_root=data_root, source=cast("SourceChoice", source), data=chosen.get(family))
    figure = shown.figure(task, split=split, queries=queries)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=200)
    write_atomically(path, content.getvalue())
    typer.echo(path)


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
