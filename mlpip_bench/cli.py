"""Command line: ``run``, what shows its results, ``check``, ``list`` and ``data``."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import torch
import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from mlpip_bench import __version__, arguments, registry
from mlpip_bench.benches.families import DATASETS
from mlpip_bench.benches.settings import PRESETS, TEST_QUERIES
from mlpip_bench.benches.spec import GRAMMAR, LISTED, parse_bench
from mlpip_bench.datasets import catalog, shapenet_render
from mlpip_bench.datasets.base import STAND_INS
from mlpip_bench.datasets.omniglot import Resize, Split
from mlpip_bench.execution import estimates, planning, profiling, scheduler, status
from mlpip_bench.execution.config import DEFAULT_NORM, RunConfig
from mlpip_bench.execution.executors import local, ray_cluster
from mlpip_bench.execution.executors.base import Executor
from mlpip_bench.execution.trial import Cell
from mlpip_bench.execution.worker import perform_elsewhere
from mlpip_bench.nn.normalization import NORM_MODES
from mlpip_bench.records import published, store
from mlpip_bench.records.record import Record
from mlpip_bench.reporting.table import WideTable, to_latex, to_markdown, to_rich
from mlpip_bench.reporting.tables.folders import changes, changes_csv, folder_tables, load_both
from mlpip_bench.reporting.tables.long import long_csv
from mlpip_bench.reporting.tables.norms import norm_tables
from mlpip_bench.reporting.tables.paired import method_differences, nothing_to_pair, paired_csv, paired_tables
from mlpip_bench.reporting.tables.scores import wide_tables
from mlpip_bench.reporting.tables.timing import benchmark_table, timed, timing_csv, timing_tables
from mlpip_bench.reporting.tables.writing import write_tables
from mlpip_bench.testing import conformance
from mlpip_bench.testing.checking import CheckResult, Status
from mlpip_bench.utils.device import Numerics
from mlpip_bench.utils.errors import UserError, unknown_name
from mlpip_bench.utils.files import write_atomically
from mlpip_bench.utils.locks import locked
from mlpip_bench.utils.progress import ConsoleReporter

out = Console()
err = Console(stderr=True)


class _Group(TyperGroup):
    """Shows errors of use as one message with status 2, and an interrupt as status 130."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            err.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
            raise typer.Exit(2) from error
        except KeyboardInterrupt as error:
            err.print("interrupted; the same command goes on from what is saved", highlight=False)
            raise typer.Exit(130) from error


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Compare meta-learners as approximate probabilistic inference (ML-PIP), fairly.",
)
list_app = typer.Typer(no_args_is_help=True, help="List what is installed.")
data_app = typer.Typer(no_args_is_help=True, help="Look after data sets.")
app.add_typer(list_app, name="list")
app.add_typer(data_app, name="data")


class TableFormat(StrEnum):
    """How ``table`` prints."""

    text = "text"
    markdown = "markdown"
    latex = "latex"
    csv = "csv"


def _folder(text: str) -> Path:
    if not str(text).strip():
        raise UserError("--results needs the name of a folder; got an empty one. Use . for the current folder.")
    return Path(text).expanduser()


Results = Annotated[
    Path,
    typer.Option("--results", parser=_folder, metavar="DIR", help="Folder of records, tables and checkpoints."),
]
DataRoot = Annotated[
    Path | None, typer.Option(envvar="MLPIP_BENCH_DATA", help="Folder of real data sets (see: list data).")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(__version__)
        raise typer.Exit


def _table(*columns: str) -> Table:
    """A table whose cells are folded, never cut."""
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


@app.callback()
def _common(
    version: Annotated[  # noqa: ARG001  # its callback does the work
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    logging.basicConfig(
        level=logging.WARNING,
        format="%(message)s",
        handlers=[RichHandler(console=err, show_time=False, show_path=False)],
        force=True,
    )


@app.command(
    epilog="Examples:\n\n"
    "python -m mlpip_bench run --methods versa,maml --bench mini5w5s\n\n"
    "python -m mlpip_bench run --methods versa,maml,protonets --bench omni5w1s --data-root ~/data --seeds 0,1,2\n\n"
    "python -m mlpip_bench run --methods maml --bench omni5w1s --set maml.test_steps=5 --norm transductive --queries 1"
)
def run(
    bench: Annotated[str, typer.Option(help="Benches, with commas (see: list benches).")],
    methods: Annotated[
        str | None, typer.Option(help="Methods, with commas; left out, those that enter the bench (see: list methods).")
    ] = None,
    protocols: Annotated[
        str | None, typer.Option(help="Protocols, with commas; left out, the usual ones (see: list protocols).")
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", "--seed", help="Training seeds, with commas.")] = "0",
    norm: Annotated[
        str, typer.Option(help=f"Normalisation of all methods; several with commas, or all: {', '.join(NORM_MODES)}.")
    ] = DEFAULT_NORM,
    preset: Annotated[str, typer.Option(help=f"Budget: {', '.join(PRESETS)}.")] = "quick",
    iterations: Annotated[int | None, typer.Option(help="Training iterations, instead of the preset's.")] = None,
    test_tasks: Annotated[int | None, typer.Option(help="Test tasks, instead of the preset's.")] = None,
    queries: Annotated[int, typer.Option(help="Queries per class at test; the paper's protocol is the shot.")] = (
        TEST_QUERIES
    ),
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="[METHOD.]NAME=VALUE", help="A setting of a method, or of training; repeatable."),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[METHOD.]NAME=VALUE,VALUE", help="Values of a setting, each in turn; several: all combinations."
        ),
    ] = None,
    source: Annotated[str, typer.Option(help="auto: real data where found, else the stand-in; real; procedural.")] = (
        "auto"
    ),
    data_root: DataRoot = None,
    split: Annotated[str, typer.Option(help="Omniglot: random (by character) or vinyals (by alphabet).")] = "random",
    resize: Annotated[str, typer.Option(help="Omniglot: nearest (as the reference code) or antialias.")] = "nearest",
    views: Annotated[str, typer.Option(help="Views: shapenet, coil100, or auto: the first that is found.")] = "auto",
    angles: Annotated[str, typer.Option(help="Views: x as sincos, or as degrees too (as the reference code).")] = (
        "sincos"
    ),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    precision: Annotated[str, typer.Option(help="Of all methods: float32; tf32 (GPU only); bf16.")] = "float32",
    compile_: Annotated[
        str,
        typer.Option(
            "--compile",
            help="torch.compile for test tasks of all methods: off, default, reduce-overhead (CUDA graphs).",
        ),
    ] = "off",
    overwrite: Annotated[str, typer.Option(help="Which cells run again: never, failed, always.")] = "failed",
    profile: Annotated[
        bool, typer.Option("--profile", help="First show where the time of each cell goes; traces are in profiles/.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the cells: done or not and why, and what they will take.")
    ] = False,
    jobs: Annotated[int, typer.Option(help="Cells at once, each in a process of its own.")] = 1,
    ray: Annotated[
        str | None,
        typer.Option(metavar="local|auto|ADDRESS", help="Run cells on a Ray cluster, each with a GPU if it uses one."),
    ] = None,
    cpus: Annotated[
        int | None, typer.Option(help="CPU threads of a cell; left out, all, or an equal share, or 1 with --ray.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait for cells that another run is at work on, or leave them.")
    ] = True,
    results_folder: Results = Path("results"),
) -> None:
    """Train and test methods on benches, keep a record of each cell, and print the tables."""
    for name, value, known in (
        ("split", split, get_args(Split)),
        ("resize", resize, get_args(Resize)),
        ("views", views, get_args(catalog.Views)),
    ):
        if value not in known:
            raise UserError(f"--{name} must be one of {', '.join(known)}; got {value!r}.")
    for name, text in (("methods", methods), ("protocols", protocols)):
        if text is not None and not arguments.names(text):
            raise UserError(f"--{name} takes names with commas between them; got {text!r}. Leave it out for the usual.")
    overrides = arguments.settings(set_ or [], {"iterations": iterations, "test_tasks": test_tasks})
    norms = arguments.names(norm)
    config = RunConfig(
        benches=arguments.names(bench),
        methods=arguments.names(methods),
        protocols=arguments.names(protocols),
        seeds=arguments.seeds(seeds),
        norms=NORM_MODES if "all" in norms else norms,  # type: ignore[arg-type]  # plan_cells checks these names, with a suggestion
        preset=preset,
        queries=queries,
        overrides=overrides,
        sweeps=arguments.sweeps(sweep or [], overrides),
        source=source,  # type: ignore[arg-type]
        data_root=data_root,
        data=catalog.DataOptions(split=split, resize=resize, views=views),  # type: ignore[arg-type]
        angles=angles,  # type: ignore[arg-type]
        device=device,
        numerics=Numerics(precision, compile_),  # type: ignore[arg-type]  # plan_cells checks these words
        overwrite=overwrite,  # type: ignore[arg-type]
        results=results_folder,
    )
    for name, number in (("jobs", jobs), ("cpus", cpus)):
        if number is not None and number < 1:
            raise UserError(f"--{name} must be at least 1; got {number}.")
    if ray is not None and jobs > 1:
        raise UserError("--jobs is for processes of this machine, and a Ray cluster has its own count. Leave one out.")
    reporter = ConsoleReporter(err)
    planned = planning.plan_cells(config, reporter, here=ray is None)
    _print_configuration(planned, config.protocols, test_tasks)
    if dry_run:
        _print_estimates(planned, config, jobs, reporter)
        return
    if profile:
        profiling.profile_cells(planned, config.results, reporter, out)
    executor = _executor(jobs, ray, cpus, planned, reporter)
    summary = scheduler.run(planned, config, reporter, executor, wait=wait)
    records = _write_tables(config.results) if any(config.results.glob("records/*/*/*.json")) else []
    asked = {cell.record_key(protocol) for cell in planned for protocol in cell.protocols}
    # The last models' tables are in the folder; here they would push the main ones off the screen.
    main = [
        dataclasses.replace(record, scores=tuple(score for score in record.scores if score.model == "best"))
        for record in records
        if record.key in asked
    ]
    _print_tables(main, published.load())
    _print_summary(summary, config.results)
    if summary.failed:
        raise typer.Exit(1)


def _write_tables(folder: Path) -> list[Record]:
    """Write the tables of a folder's records, and return the records."""
    with locked(folder / "locks" / "tables.lock", wait=True):  # or those of a run that read less might be the last
        records = store.load_all(folder)
        write_tables(records, folder)
    return records


def _executor(
    jobs: int, ray: str | None, cpus: int | None, planned: Sequence[Cell], reporter: ConsoleReporter
) -> Executor | None:
    """What was asked for; ``None`` for this process, with as many threads as torch takes by itself unless told."""
    if ray is not None:
        gpus = int(any(cell.device.type == "cuda" for cell in planned))
        return ray_cluster.RayCluster(perform_elsewhere, reporter, ray, cpus or 1, gpus)
    if jobs > 1:
        threads = cpus or max(1, torch.get_num_threads() // jobs)
        return local.LocalProcesses(perform_elsewhere, reporter, jobs, threads)
    if cpus is not None:
        torch.set_num_threads(cpus)
    return None


def _print_estimates(planned: Sequence[Cell], config: RunConfig, jobs: int, reporter: ConsoleReporter) -> None:
    standings = status.survey(planned, config)
    found = estimates.estimate_all(standings, config, reporter)
    table = _table("cell", "to measure", "done, or why not", "time", "memory")
    for standing in standings:
        estimate = found.get(standing.cell)
        costs = (_duration(estimate.seconds), f"{estimate.peak_bytes / 1e9:.1f} GB") if estimate else ("", "")
        to_do = ", ".join((*standing.alone, *standing.beside))
        table.add_row(standing.cell.title, to_do, escape(status.why(standing, config)), *costs)
    out.print(table)
    known = [estimate for estimate in found.values() if estimate is not None]
    lines = [f"{len(found)} of {len(planned)} cells to run"]
    if known:
        at_once = min(jobs, len(found))
        lines += [
            f"about {_duration(sum(e.seconds for e in known) / at_once)}"
            + (f" with {jobs} at once" if jobs > 1 else ""),
            f"{at_once * max(e.peak_bytes for e in known) / 1e9:.1f} GB at most",
        ]
    if len(known) < len(found):
        lines.append(f"{len(found) - len(known)} cannot be estimated")
    if any(standing.beside for standing in standings):
        lines.append("what is measured side by side comes on top")
    out.print("; ".join(lines), highlight=False, soft_wrap=True)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _print_configuration(planned: Sequence[Cell], protocols: tuple[str, ...], test_tasks: int | None) -> None:
    table = _table("bench", "method", "seeds", "resolved configuration")
    shown: dict[tuple[str, str, str], list[str]] = {}
    for cell in planned:
        config = {k: v for k, v in cell.config.items() if k not in ("way", "shot")}
        config |= {f"settings.{k}": v for k, v in config.pop("settings").items()}
        text = ", ".join(f"{k} {v}" for k, v in config.items())
        data = f"{cell.dataset.name} ({cell.dataset.source}), device {cell.device}"
        shown.setdefault((cell.bench.name, cell.method, f"{text}, data {data}"), []).append(str(cell.seed))
    for (bench, method, text), seeds in shown.items():
        table.add_row(bench, method, ",".join(seeds), text)
    err.print(table)
    for cell in planned:
        if left_out := [name for name in protocols if name not in cell.protocols]:
            err.print(f"does not apply to {cell.title}: {', '.join(left_out)}", highlight=False)
    for cell in planned:
        if test_tasks is not None and cell.plan.test_tasks < test_tasks:
            err.print(f"{cell.title} has {cell.plan.test_tasks} test tasks, all that there are", highlight=False)
    if any(cell.dataset.source in STAND_INS for cell in planned):
        err.print("[yellow]stand-in data:[/] results on it are not results on the real data set")


def _print_tables(records: list[Record], quoted: list[published.Published]) -> None:
    if timed(records):
        _print_wide(timing_tables(records))
    numbers: dict[str, int] = {}
    by_norm = norm_tables(records, numbers)
    _print_wide([*wide_tables(records, quoted, numbers), *by_norm])
    norms = {(r.bench, r.method, r.config["norm"]) for r in records if any(score.way > 1 for score in r.scores)}
    if not by_norm and len(norms) > len({(bench, method) for bench, method, _ in norms}):
        err.print(
            "what a norm owes to the other queries is shown with `--protocols accuracy,nll,one_at_a_time`",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip


def _print_wide(shown: list[WideTable]) -> None:
    if shown:
        out.print(to_rich(*shown, width=out.width, bold=out.color_system is not None))
        out.print()


def _print_summary(summary: scheduler.Summary, folder: Path) -> None:
    for title, reason in summary.skipped:
        err.print(f"nothing to do for {title}: {reason}", highlight=False)
    for title in summary.left:
        err.print(f"left to another run, which is at work on it: {title}", highlight=False)
    left = f"{len(summary.left)} left to another run, " if summary.left else ""
    done, nothing, failed = (len(cells) for cells in (summary.done, summary.skipped, summary.failed))
    counts = f"{done} cells run, {nothing} had nothing to do, {left}{failed} failed"
    failures = f"; tracebacks are in {folder / 'failures'}" if summary.failed else ""
    err.print(f"{counts}; records and tables are in {folder}{failures}", markup=False, highlight=False, soft_wrap=True)


@app.command(
    epilog="Examples:\n\npython -m mlpip_bench table\n\npython -m mlpip_bench table --format csv > results.csv\n\n"
    "python -m mlpip_bench table --paired --against versa\n\npython -m mlpip_bench table --timing --against maml"
)
def table(
    results_folder: Results = Path("results"),
    format_: Annotated[TableFormat, typer.Option("--format", help="Form on standard output.")] = TableFormat.text,
    bench: Annotated[str | None, typer.Option(help="Only these benches, with commas.")] = None,
    methods: Annotated[str | None, typer.Option(help="Only these methods, with commas.")] = None,
    paired: Annotated[
        bool,
        typer.Option(
            "--paired",
            help="Print differences of methods and of their settings, paired over the test tasks, instead.",
        ),
    ] = False,
    timing: Annotated[
        bool, typer.Option("--timing", help="Print timings, with medians over repeats and ratios, instead.")
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD", help="With --paired: only differences to this method; with --timing: ratios to it."
        ),
    ] = None,
    benchmark_json: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --timing: print what pytest-benchmark wrote there (tox -e benchmarks)."
        ),
    ] = None,
) -> None:
    """Regenerate the comparison tables from records, and print them."""
    if paired and timing:
        raise UserError("--paired and --timing are tables of two kinds; got both. Leave one of them out.")
    if against is not None and not (paired or timing):
        raise UserError(
            f"--against chooses what to compare with; got --against {against} alone. Add --paired or --timing."
        )
    if benchmark_json is not None:
        if not timing:
            raise UserError("--benchmark-json is read for the table of timings; got it alone. Add --timing.")
        if any(option is not None for option in (bench, methods, against)):
            raise UserError("--benchmark-json is one table as it is. Leave out --bench, --methods and --against.")
        _show([benchmark_table(benchmark_json)], format_)
        return
    records = _write_tables(results_folder)
    # What is compared against is needed, too.
    wanted = arguments.names(methods) and arguments.names(f"{methods},{against or ''}")
    chosen = [
        record
        for record in records
        if record.bench in (arguments.names(bench) or (record.bench,)) and record.method in (wanted or (record.method,))
    ]
    if not chosen:
        asked = " ".join(f"--{k} {v}" for k, v in (("bench", bench), ("methods", methods)) if v is not None)
        have = ", ".join(sorted({f"{r.bench} {r.method}" for r in records}))
        raise UserError(f"no record matches {asked}. There are: {have}.")
    if timing and format_ is TableFormat.csv:
        typer.echo(timing_csv(chosen), nl=False)
        return
    if timing:
        _show(timing_tables(chosen, against), format_)
        return
    quoted = [row for row in published.load() if row.bench in (arguments.names(bench) or (row.bench,))]
    differences = method_differences(chosen, against) if paired else []
    if paired and not differences:
        raise nothing_to_pair(chosen)
    if format_ is TableFormat.csv:
        typer.echo(paired_csv(differences) if paired else long_csv(chosen, quoted), nl=False)
        return
    if paired:
        _show(paired_tables(differences, {} if format_ is TableFormat.text else None), format_)
    elif format_ is TableFormat.text:
        _print_tables(chosen, quoted)
    else:
        _show([*wide_tables(chosen, quoted), *norm_tables(chosen)], format_)


def _show(shown: list[WideTable], format_: TableFormat) -> None:
    if format_ is TableFormat.csv:
        raise UserError("pytest-benchmark's file is JSON already; --format csv is for records. Leave --format out.")
    if format_ is TableFormat.text:
        _print_wide(shown)
        return
    render = to_markdown if format_ is TableFormat.markdown else to_latex
    typer.echo("\n".join(map(render, shown)))


@app.command(epilog="Example:\n\npython -m mlpip_bench figures --results results")
def figures(results_folder: Results = Path("results")) -> None:
    """Regenerate the figures from records, and print where they are."""
    from mlpip_bench.reporting.figures.writing import write_figures

    for path in write_figures(store.load_all(results_folder), results_folder):
        typer.echo(path)


@app.command(epilog="Example:\n\npython -m mlpip_bench compare results/before results/after")
def compare(
    a: Annotated[Path, typer.Argument(parser=_folder, metavar="A", help="Results folder.")],
    b: Annotated[Path, typer.Argument(parser=_folder, metavar="B", help="The other one.")],
    format_: Annotated[TableFormat, typer.Option("--format", help="Form on standard output.")] = TableFormat.text,
) -> None:
    """Compare two results folders: differences B minus A, paired over test tasks, and which of them are real."""
    found = changes(*load_both(a, b))
    if format_ is TableFormat.csv:
        typer.echo(changes_csv(found), nl=False)
    else:
        _show(folder_tables(found, a, b), format_)


@app.command(
    epilog="Examples:\n\npython -m mlpip_bench report\n\n"
    "python -m mlpip_bench report --results results --results results/norm_modes --output report.html"
)
def report(
    results_folders: Annotated[
        list[Path] | None,
        typer.Option("--results", parser=_folder, metavar="DIR", help="Folder of records; repeatable."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file; left out, report.html in the first folder.")
    ] = None,
) -> None:
    """Write one HTML page that needs no network: tables, differences, figures, timing, provenance."""
    from mlpip_bench.reporting.html import to_html

    folders = results_folders or [Path("results")]
    path = output.expanduser() if output else folders[0] / "report.html"
    by_folder = {str(folder): store.load_all(folder) for folder in folders}
    failures = {str(folder): store.load_failures(folder) for folder in folders}
    write_atomically(path, to_html(by_folder, registry.paper_training_tasks, failures).encode())
    typer.echo(path)


@app.command(
    epilog="Examples:\n\npython -m mlpip_bench check versa maml\n\npython -m mlpip_bench check --all",
)
def check(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Methods (see: list methods).")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All installed methods.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Each check also where several methods are checked.")] = (
        False
    ),
) -> None:
    """Check that methods keep what the comparison relies on; the conformance suite, see docs/conformance.md."""
    if bool(names) == everything:
        raise UserError(f"check takes names of methods, or --all; got {'both' if names else 'neither'}.")
    if everything:
        plugins, broken = _loaded(registry.method_names(), registry.method)
    else:
        plugins, broken = {name: registry.method(name) for name in names or ()}, {}
    for error in broken.values():
        err.print(f"[bold red]failed:[/] {escape(error)}", highlight=False, soft_wrap=True)
    failed, total = list(broken), len(plugins) + len(broken)
    width = max(map(len, plugins), default=0)
    for name, plugin in plugins.items():
        with err.status(f"checking {name}"):
            checked = conformance.check_method(plugin)
        if any(result.status == "failed" for result in checked):
            failed.append(name)
        if verbose or total == 1:
            out.print(_check_table(name, checked))
            continue
        out.print(f"{name:{width}}  {_counts(checked)}", markup=False, highlight=False, soft_wrap=True)
        for line in conformance.failure_lines(checked):
            out.print(Padding(Text(line), (0, 0, 0, 4)))
    err.print(f"{total - len(failed)} of {total} methods pass" + (f"; failed: {', '.join(failed)}" if failed else ""))
    if failed:
        raise typer.Exit(1)


def _check_table(name: str, checked: list[CheckResult]) -> Table:
    table = _table(name, "result", "what it protects, and what came")
    for result in conformance.merged(checked):
        colour = "red" if result.status == "failed" else "default"
        text = "\n".join(part for part in (result.protects, result.detail) if part)
        table.add_row(result.name.replace(", ", "\n"), f"[{colour}]{result.status}[/]", escape(text))
    return table


def _counts(checked: list[CheckResult]) -> str:
    """How many checks came out how: ``22 passed, 2 expected failures``."""
    counts = Counter(result.status for result in checked)
    return ", ".join(
        f"{counts[status]} {status}" + ("s" if status == "expected failure" and counts[status] > 1 else "")
        for status in get_args(Status)
        if counts[status]
    )


_P = TypeVar("_P")


def _loaded(names: Iterable[str], load: Callable[[str], _P]) -> tuple[dict[str, _P], dict[str, str]]:
    """Plugins by name, and errors of the broken ones by name: somebody's broken plugin hides no other."""
    plugins, broken = {}, {}
    for name in names:
        try:
            plugins[name] = load(name)
        except UserError as error:
            broken[name] = str(error)
    return plugins, broken


def _print_list(table: Table, broken: Mapping[str, str]) -> None:
    out.print(table)
    for error in broken.values():
        out.print(f"[red]broken:[/] {escape(error)}", highlight=False, soft_wrap=True)


@list_app.command("methods")
def list_methods() -> None:
    """Installed methods with reference and psi."""
    plugins, broken = _loaded(registry.method_names(), registry.method)
    table = _table("method", "psi, reference, and settings (defaults, before a preset's changes)")
    table.show_lines = True
    for name, plugin in plugins.items():
        settings = ", ".join(f"{k}={v!r}" for k, v in dataclasses.asdict(plugin.Settings()).items())
        table.add_row(name, escape("\n".join(filter(None, (plugin.psi, plugin.reference, settings)))))
    _print_list(table, broken)


@list_app.command("protocols")
def list_protocols() -> None:
    """Installed protocols with their metrics."""
    plugins, broken = _loaded(registry.protocol_names(), registry.protocol)
    table = _table("protocol (* by default)", "tasks", "metrics", "what it measures")
    for name, protocol in plugins.items():
        metrics = ", ".join(f"{metric.name} ({metric.unit})" for metric in protocol.metrics)
        marked = f"{name} *" if protocol.default else name
        table.add_row(marked, ", ".join(protocol.datasets or protocol.handles), metrics, protocol.description)
    _print_list(table, broken)


@list_app.command("benches")
def list_benches() -> None:
    """The paper's benches and some more; any number in a name works."""
    table = _table("benches", "data set", "methods by default", "needs")
    plugins, _ = _loaded(registry.method_names(), registry.method)
    for dataset in dict.fromkeys(parse_bench(name).dataset for name in LISTED):
        benches = [name for name in LISTED if parse_bench(name).dataset == dataset]
        entering = [name for name, plugin in plugins.items() if dataset in plugin.default_for]
        data = DATASETS[dataset]
        table.add_row(", ".join(benches), data.title, ", ".join(entering), data.needs)
    out.print(table)
    out.print(GRAMMAR, highlight=False, markup=False)


@list_app.command("data")
def list_data(data_root: DataRoot = None) -> None:
    """Data sets, their layouts, and whether they are found below the data folder."""
    for row in catalog.describe(data_root):
        source = row.source
        out.print(f"[bold]{source.key}[/]  {escape(source.title)}", soft_wrap=True, highlight=False)
        lines = [f"{row.status}: {row.detail}", f"stand-in: {source.stand_in.name if source.stand_in else 'none'}"]
        for line in [
            *lines,
            f"looked for in {'/ or '.join(source.folders)}/, as",
            *(f"  - {x}" for x in source.layouts),
        ]:
            out.print(f"  {line}", markup=False, soft_wrap=True, highlight=False)


@data_app.command("verify", epilog="Example:\n\npython -m mlpip_bench data verify --data-root ~/data")
def verify(
    data_root: DataRoot = None,
    datasets: Annotated[str | None, typer.Option("--data", help="Only these data sets, with commas.")] = None,
) -> None:
    """Read data sets from their files, past the cache, and check that they are whole."""
    table = _table("data set", "what", "status", "detail")
    wanted = list(arguments.names(datasets))
    if not wanted:
        for row in catalog.describe(data_root):
            if row.status == "not found":
                table.add_row(row.source.key, "files", row.status, row.detail)
            else:
                wanted.append(row.source.key)
    if not wanted:
        raise UserError("no data set is found; pass --data-root or set MLPIP_BENCH_DATA (see: list data).")
    failed = False
    for name in wanted:
        for check in catalog.verify(name, data_root):
            table.add_row(name, check.what, check.status, check.detail)
            failed |= check.status == "failed"
    out.print(table)
    if failed:
        raise typer.Exit(2)


@data_app.command(
    "prepare",
    epilog="Example:\n\npython -m mlpip_bench data prepare shapenet --from ~/ShapeNetCore.v2 --to ~/data/shapenet",
)
def prepare(
    dataset: Annotated[str, typer.Argument(help="What to prepare: shapenet.")],
    source: Annotated[Path, typer.Option("--from", metavar="DIR", help="Folder of the meshes, ShapeNetCore v2.")],
    target: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Folder of the views; left out, DATA-ROOT/shapenet.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Meshes rendered at once; left out, one a core.")] = None,
    data_root: DataRoot = None,
) -> None:
    """Render meshes to the views that the benches read; the same command goes on where it was stopped."""
    if dataset != "shapenet":
        raise unknown_name("data set to prepare", dataset, ["shapenet"])
    target = target or (data_root and data_root / "shapenet")
    if target is None:
        raise UserError("the views need a folder; pass --to, or --data-root (or MLPIP_BENCH_DATA) for its shapenet/.")
    if shapenet_render.prepare(source.expanduser(), target.expanduser(), ConsoleReporter(err), jobs=jobs):
        raise typer.Exit(1)


def main() -> None:
    """Entry point."""
    app(prog_name="mlpip_bench")
