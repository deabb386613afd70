"""``clean``: remove what no table needs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mlpip_bench.cli.common import Results, TrustCode, folded_table, out
from mlpip_bench.execution import options
from mlpip_bench.execution.config import RUNS
from mlpip_bench.utils.errors import unknown_name

CLEAN_EXAMPLES = (
    "Examples:\n\n"
    "python -m mlpip_bench clean --results runs\n\n"
    "python -m mlpip_bench clean --only records,failures --yes"
)


def clean(
    results_folder: Results = RUNS,
    only: Annotated[
        str | None,
        typer.Option(
            help="Only these, with commas: records (outdated ones), predictions (of no record), checkpoints (of "
            "records), failures; or unfinished (checkpoints of trainings to go on with), only where it is named."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them; left out, they are only listed.")] = False,
    trust_code: TrustCode = False,
) -> None:
    """List, or with --yes remove, outdated records, predictions of none, checkpoints and failures of a folder."""
    from mlpip_bench.execution import cleaning

    kinds: Any = options.names(only) or cleaning.USUAL
    for kind in kinds:
        if kind not in cleaning.KINDS:
            raise unknown_name("kind of file to clean", kind, cleaning.KINDS)
    found = cleaning.leftovers(results_folder, kinds, trust_code=trust_code)
    table = folded_table("what", "file", "why it can go", "kB")
    for leftover in found:
        path = leftover.path.relative_to(results_folder).as_posix()
        table.add_row(leftover.kind, path, leftover.why, f"{leftover.size / 1000:.0f}")
    if found:
        out.print(table)
    if yes:
        cleaning.remove(found)
    done = "removed" if yes else "to remove with --yes"
    out.print(f"{len(found)} files {done}, {sum(each.size for each in found) / 1e6:.1f} MB", highlight=False)
