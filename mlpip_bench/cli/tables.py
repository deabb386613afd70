"""``table`` and ``compare``: tables from records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlpip_bench.cli.common import (
    Benches,
    Margin,
    Methods,
    Metrics,
    Names,
    ResultsFolders,
    TableFormat,
    WithPublished,
    folder_name,
    print_answer,
    print_tables,
    rewrite_tables,
    show_tables,
)
from mlpip_bench.execution import options
from mlpip_bench.execution.config import RUNS
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import given_path

if TYPE_CHECKING:
    from mlpip_bench.records.record import Record
    from mlpip_bench.reporting.decisions import Margins
    from mlpip_bench.reporting.selection import Shown

TABLE_EXAMPLES = (
    "Examples:\n\npython -m mlpip_bench table\n\npython -m mlpip_bench table --format csv > results.csv\n\n"
    "python -m mlpip_bench table --metric accuracy --names versa=Versa --no-published --format latex\n\n"
    "python -m mlpip_bench table --paired --margin accuracy=0.5,nll=0.01\n\n"
    "python -m mlpip_bench table --timing --against maml\n\n"
    "python -m mlpip_bench table --timing --target accuracy=90"
)


def table(
    results_folders: ResultsFolders = None,
    format_: Annotated[TableFormat, typer.Option("--format", help="Form on standard output.")] = TableFormat.text,
    bench: Benches = None,
    methods: Methods = None,
    metric: Metrics = None,
    names: Names = None,
    published: WithPublished = True,
    margin: Margin = None,
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
    target: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC=NUMBER,...",
            help="With --timing: training until validation reached this, as in accuracy=90,nll=0.3 (%; nats); "
            "as CSV that alone.",
        ),
    ] = None,
    benchmark_json: Annotated[
        Path | None,
        typer.Option(
            parser=given_path,
            metavar="FILE",
            help="With --timing: print what pytest-benchmark wrote there (tox -e benchmarks).",
        ),
    ] = None,
) -> None:
    """Say who leads on each bench, and print the comparison tables, made anew from records."""
    from mlpip_bench.records import published as published_data
    from mlpip_bench.reporting.decisions import check_margins, parse_margins
    from mlpip_bench.reporting.selection import parse_names, selected, shown
    from mlpip_bench.reporting.tables.long import long_csv
    from mlpip_bench.reporting.tables.target import parse_targets, target_csv, target_tables
    from mlpip_bench.reporting.tables.timing import benchmark_tables, timed, timing_csv, timing_tables

    if paired and timing:
        raise UserError("--paired and --timing are tables of two kinds; got both. Leave one of them out.")
    if against is not None and not (paired or timing):
        raise UserError(
            f"--against chooses what to compare with; got --against {against} alone. Add --paired or --timing."
        )
    if timing and metric is not None:
        raise UserError(
            f"--metric chooses among tables of scores; got --metric {metric} with --timing. Leave one of them out; "
            "--target names the metric of a target."
        )
    if timing and against is not None and format_ is TableFormat.csv:
        raise UserError(
            f"ratios are in tables, and as CSV there are times alone; got --against {against} with --format csv. Leave "
            "one of them out."
        )
    if target is not None and not timing:
        raise UserError(f"--target is a table of timings; got --target {target} alone. Add --timing.")
    if benchmark_json is not None:
        if not timing:
            raise UserError("--benchmark-json is read for the table of timings; got it alone. Add --timing.")
        if any(option is not None for option in (bench, methods, against, target)):
            raise UserError("--benchmark-json is shown as it is. Leave out --bench, --methods, --against and --target.")
        show_tables(benchmark_tables(benchmark_json), format_)
        return
    margins, given, targets = parse_margins(margin), parse_names(names), parse_targets(target)
    records = _records(results_folders or [RUNS])
    wanted = options.names(methods) and options.names(f"{methods},{against or ''}")  # what is compared against, too
    benches, metrics = options.names(bench), options.names(metric)
    chosen = selected(records, benches=benches, methods=wanted, metrics=metrics)
    check_margins(margins, {score.metric for record in chosen for score in record.scores})
    if format_ is TableFormat.csv and not paired:
        as_csv = target_csv(chosen, targets) if targets else timing_csv(chosen) if timing else long_csv(chosen)
        typer.echo(as_csv, nl=False)
        return
    quoted = [row for row in published_data.load() if published and (not benches or row.bench in benches)]
    named = shown(chosen, given, quoted)
    other = next((n.method for n, r in zip(named.records, chosen, strict=True) if r.method == against), against)
    if timing:
        to_target = target_tables(named.records, targets)
        alone = to_target and against is None and not timed(named.records)
        timings = [] if alone else timing_tables(named.records, other)
        show_tables([*timings, *to_target], format_)
    elif paired:
        _show_paired(chosen, named, against, other, margins, format_)
    else:
        _show(named, margins, format_)


def _records(folders: list[Path]) -> list[Record]:
    """Of one folder, whose tables are written anew, or of several."""
    from mlpip_bench.reporting.selection import load_union

    return rewrite_tables(folders[0]) if len(folders) == 1 else load_union(folders)


def _show_paired(
    chosen: list[Record],
    named: Shown,
    against: str | None,
    other: str | None,
    margins: Margins,
    format_: TableFormat,
) -> None:
    from mlpip_bench.reporting.tables.paired import method_differences, nothing_to_pair, paired_csv, paired_tables

    by_plugin = method_differences(chosen, against, margins)
    if not by_plugin:
        raise nothing_to_pair(chosen)
    if format_ is TableFormat.csv:
        typer.echo(paired_csv(by_plugin), nl=False)
    else:
        show_tables(paired_tables(method_differences(named.records, other, margins)), format_)


def _show(named: Shown, margins: Margins, format_: TableFormat) -> None:
    from mlpip_bench.reporting.tables.norms import norm_tables
    from mlpip_bench.reporting.tables.overall import overall_tables
    from mlpip_bench.reporting.tables.scores import wide_tables

    if format_ is not TableFormat.text:
        records = named.records
        show_tables([*wide_tables(records, named.quoted), *norm_tables(records), *overall_tables(records)], format_)
        return
    print_answer(named, margins)
    # The last models' tables are in the folder; here they would push the main ones off the screen.
    best = [
        replace(record, scores=scores)
        for record in named.records
        if (scores := tuple(score for score in record.scores if score.model == "best"))
    ]
    print_tables(replace(named, records=best))


COMPARE_EXAMPLES = "Example:\n\npython -m mlpip_bench compare results/before results/after"


def compare(
    a: Annotated[Path, typer.Argument(parser=folder_name, metavar="A", help="Results folder.")],
    b: Annotated[Path, typer.Argument(parser=folder_name, metavar="B", help="The other one.")],
    margin: Margin = None,
    format_: Annotated[TableFormat, typer.Option("--format", help="Form on standard output.")] = TableFormat.text,
) -> None:
    """Compare two results folders: differences B minus A, paired over seeds and test tasks, and what they show."""
    from mlpip_bench.reporting.decisions import check_margins, parse_margins
    from mlpip_bench.reporting.tables.folders import changes, changes_csv, folder_tables, load_both

    margins, both = parse_margins(margin), load_both(a, b)
    check_margins(margins, {score.metric for records in both for record in records for score in record.scores})
    found = changes(*both, margins)
    if format_ is TableFormat.csv:
        typer.echo(changes_csv(found), nl=False)
    else:
        show_tables(folder_tables(found, a, b), format_)
