"""``table`` and ``compare``: tables from records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlpip_bench.cli.common import Results, TableFormat, folder_name, print_tables, rewrite_tables, show_tables
from mlpip_bench.execution import options
from mlpip_bench.execution.config import RUNS
from mlpip_bench.utils.errors import UserError

TABLE_EXAMPLES = (
    "Examples:\n\npython -m mlpip_bench table\n\npython -m mlpip_bench table --format csv > results.csv\n\n"
    "python -m mlpip_bench table --paired --against versa\n\npython -m mlpip_bench table --timing --against maml"
)


def table(
    results_folder: Results = RUNS,
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
    from mlpip_bench.records import published
    from mlpip_bench.reporting.tables.long import long_csv
    from mlpip_bench.reporting.tables.norms import norm_tables
    from mlpip_bench.reporting.tables.paired import method_differences, nothing_to_pair, paired_csv, paired_tables
    from mlpip_bench.reporting.tables.scores import wide_tables
    from mlpip_bench.reporting.tables.timing import benchmark_table, timing_csv, timing_tables

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
        show_tables([benchmark_table(benchmark_json)], format_)
        return
    records = rewrite_tables(results_folder)
    # What is compared against is needed, too.
    wanted = options.names(methods) and options.names(f"{methods},{against or ''}")
    chosen = [
        record
        for record in records
        if record.bench in (options.names(bench) or (record.bench,)) and record.method in (wanted or (record.method,))
    ]
    if not chosen:
        asked = " ".join(f"--{k} {v}" for k, v in (("bench", bench), ("methods", methods)) if v is not None)
        have = ", ".join(sorted({f"{r.bench} {r.method}" for r in records}))
        raise UserError(f"no record matches {asked}. There are: {have}.")
    if timing and format_ is TableFormat.csv:
        typer.echo(timing_csv(chosen), nl=False)
        return
    if timing:
        show_tables(timing_tables(chosen, against), format_)
        return
    quoted = [row for row in published.load() if row.bench in (options.names(bench) or (row.bench,))]
    differences = method_differences(chosen, against) if paired else []
    if paired and not differences:
        raise nothing_to_pair(chosen)
    if format_ is TableFormat.csv:
        typer.echo(paired_csv(differences) if paired else long_csv(chosen), nl=False)
        return
    if paired:
        show_tables(paired_tables(differences), format_)
    elif format_ is TableFormat.text:
        print_tables(chosen, quoted)
    else:
        show_tables([*wide_tables(chosen, quoted), *norm_tables(chosen)], format_)


COMPARE_EXAMPLES = "Example:\n\npython -m mlpip_bench compare results/before results/after"


def compare(
    a: Annotated[Path, typer.Argument(parser=folder_name, metavar="A", help="Results folder.")],
    b: Annotated[Path, typer.Argument(parser=folder_name, metavar="B", help="The other one.")],
    format_: Annotated[TableFormat, typer.Option("--format", help="Form on standard output.")] = TableFormat.text,
) -> None:
    """Compare two results folders: differences B minus A, paired over test tasks, and which of them are real."""
    from mlpip_bench.reporting.tables.folders import changes, changes_csv, folder_tables, load_both

    found = changes(*load_both(a, b))
    if format_ is TableFormat.csv:
        typer.echo(changes_csv(found), nl=False)
    else:
        show_tables(folder_tables(found, a, b), format_)
