"""``verify``: whether records are consistent with the predictions that they name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from mlpip_bench.cli.common import out

VERIFY_EXAMPLES = (
    "Examples:\n\npython -m mlpip_bench verify runs\n\n"
    "python -m mlpip_bench verify received/records/omni5w1s/versa/accuracy-seed0-6a51905f67d3.json"
)


def verify(
    places: Annotated[list[Path], typer.Argument(metavar="RECORDS...", help="Records, or results folders.")],
) -> None:
    """Make the scores of records again from the predictions that they name; exit 1 where one is inconsistent."""
    from mlpip_bench.records import verification

    files = list(verification.record_files(place.expanduser() for place in places))
    verdicts = [verification.verify(path) for path in files]
    for verdict in verdicts:
        out.print(f"{verdict.status} {verdict.path}: {verdict.detail}", markup=False, highlight=False, soft_wrap=True)
    counts = Counter(verdict.status for verdict in verdicts)
    out.print(", ".join(f"{count} {status}" for status, count in counts.items()), highlight=False)
    if counts["inconsistent"]:
        raise typer.Exit(1)
