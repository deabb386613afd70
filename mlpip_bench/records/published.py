"""The tables of Gordon et al. (ICLR 2019), as data: what others reported, never what was run here."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources
from pathlib import Path

from mlpip_bench.utils.errors import UserError


@dataclass(frozen=True)
class Published:
    """One number of the paper.

    Attributes:
        method: lower-case name, that of the plugin where there is one.
        label: the name the paper prints.
        citation: the paper's citation key; empty for its own rows.
        bench: bench with the same way and shot in training and test.
        metric: ``accuracy`` (Table 3, as a fraction) or ``nll`` (Table 1, nats per query).
        mean: the score, with the decimals the paper gives.
        ci95: half-width of its 95 % interval, where the paper gives one.
        note: conditions known to differ between the paper's rows; empty where they are not known.
        training_tasks: how many tasks its model was trained on; None where that is not known.
    """

    method: str
    label: str
    citation: str
    bench: str
    metric: str
    mean: Decimal
    ci95: Decimal | None
    note: str
    training_tasks: int | None = None


def load() -> list[Published]:
    """All published numbers, in the paper's order.

    Raises:
        UserError: the installation lacks the file.
    """
    packaged = resources.files("mlpip_bench") / "published.csv"
    checkout = Path(__file__).resolve().parents[2] / "results" / "published.csv"
    source = packaged if packaged.is_file() else checkout
    if not source.is_file():
        raise UserError(
            f"published.csv belongs to the package; {packaged} and {checkout} are missing. Install it again."
        )
    rows = csv.DictReader(source.read_text(encoding="utf-8").splitlines())
    return [
        Published(
            method=row["method"],
            label=row["label"],
            citation=row["citation"],
            bench=row["bench"],
            metric=row["metric"],
            mean=Decimal(row["mean"]),
            ci95=Decimal(row["ci95"]) if row["ci95"] else None,
            note=row["note"],
            training_tasks=int(row["training_tasks"]) if row["training_tasks"] else None,
        )
        for row in rows
    ]
