"""The files of tables below a results folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mlpip_bench.records import published as published_data
from mlpip_bench.records.record import Record
from mlpip_bench.reporting.entries import (
    grouped,
)
from mlpip_bench.reporting.latex import to_latex
from mlpip_bench.reporting.selection import shown
from mlpip_bench.reporting.table import to_markdown
from mlpip_bench.reporting.tables.long import long_csv, published_csv
from mlpip_bench.reporting.tables.norms import norm_tables
from mlpip_bench.reporting.tables.overall import overall_tables
from mlpip_bench.reporting.tables.paired import method_differences, paired_tables
from mlpip_bench.reporting.tables.scores import wide_tables
from mlpip_bench.reporting.tables.timing import timed, timing_csv, timing_tables
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import write_atomically


def write_tables(records: Sequence[Record], results: Path) -> list[Path]:
    """Write tables below ``results/tables``.

    ``long.csv``, ``published.csv`` (of the same benches) and, for each metric, ``<metric>.md`` and ``<metric>.tex``; so
    are ``paired``, ``overall``, ``norm_modes`` and ``timing`` (the last as CSV, too), where the records have what they
    show. Methods have the paper's names where it has one, in CSV those of the plugins. The same records give the same
    bytes.

    Returns:
        The files written.

    Raises:
        UserError: there are no records, or a file cannot be written.
    """
    if not records:
        raise UserError(
            f"tables are made from records; there are none below {results / 'records'}. "
            "Make some first, for example with `python -m mlpip_bench run --methods versa,maml --bench mini5w5s`."
        )
    published = published_data.load()
    contents = {"long.csv": long_csv(records)}
    named = shown(records)
    benches = {record.bench for record in records}
    if quoted := [row for row in published if row.bench in benches]:
        contents["published.csv"] = published_csv(quoted)
    files = grouped(wide_tables(named.records, named.quoted), lambda table: table.name)
    files |= {
        "paired": paired_tables(method_differences(named.records)),
        "norm_modes": norm_tables(named.records),
        "overall": overall_tables(named.records),
    }
    if timed(records):
        files["timing"] = timing_tables(named.records)
        contents["timing.csv"] = timing_csv(records)
    for name, tables in files.items():
        if tables:
            contents[f"{name}.md"] = "\n".join(map(to_markdown, tables))
            contents[f"{name}.tex"] = "\n".join(map(to_latex, tables))
    folder = results / "tables"
    for name, content in contents.items():
        write_atomically(folder / name, content.encode())
    return [folder / name for name in contents]
