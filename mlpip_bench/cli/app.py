"""The command line as a whole: its commands, its errors, its log."""

from __future__ import annotations

import logging
from typing import Annotated, Any

import typer
from rich.logging import RichHandler
from typer.core import TyperGroup

from mlpip_bench import __version__
from mlpip_bench.cli.check import CHECK_EXAMPLES, check
from mlpip_bench.cli.clean import CLEAN_EXAMPLES, clean
from mlpip_bench.cli.common import err, out
from mlpip_bench.cli.data import data_app
from mlpip_bench.cli.elsewhere import EXPORT_SPLIT_EXAMPLES, IMPORT_EXAMPLES, export_split, import_scores
from mlpip_bench.cli.features import FEATURES_EXAMPLES, features
from mlpip_bench.cli.figures import FIGURES_EXAMPLES, REPORT_EXAMPLES, figures, report
from mlpip_bench.cli.listing import list_app
from mlpip_bench.cli.models import EXPORT_EXAMPLES, PREDICT_EXAMPLES, export, predict
from mlpip_bench.cli.rescore import RESCORE_EXAMPLES, rescore
from mlpip_bench.cli.run import RUN_EXAMPLES, run
from mlpip_bench.cli.tables import COMPARE_EXAMPLES, TABLE_EXAMPLES, compare, table
from mlpip_bench.cli.verify import VERIFY_EXAMPLES, verify
from mlpip_bench.utils import interrupts
from mlpip_bench.utils.console import labeled
from mlpip_bench.utils.errors import UserError

_UsageError: Any = typer.BadParameter.__base__  # Typer has an own copy of click, under a private name

_ELSEWHERE = {
    "--epochs": "Training is counted in iterations, each of some tasks: --iterations N.",
    "--steps": "Training is counted in iterations, each of some tasks: --iterations N.",
    "--lr": "That is a setting: --set learning_rate=VALUE.",
    "--learning-rate": "That is a setting: --set learning_rate=VALUE.",
    "--batch-size": "That is a setting: --set tasks_per_batch=N.",
    "--gpu": "That is --device cuda.",
    "--way": "That is in the bench's name: omni5w1s has 5 ways.",
    "--ways": "That is in the bench's name: omni5w1s has 5 ways.",
    "--shot": "That is in the bench's name: omni5w1s has 1 shot.",
    "--shots": "That is in the bench's name: omni5w1s has 1 shot.",
    "--dataset": "The data set is in the bench's name: --bench omni5w1s.",
    "--model": "That is --methods.",
}
"""What other programs call an option of ``run``, and how it is said here."""


class _Group(TyperGroup):
    """Shows errors of use as one message with status 2, and an interrupt by the status of its signal."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            hint = _ELSEWHERE.get(getattr(error, "option_name", ""), "")
            if "unexpected extra argument" in error.message:
                hint = "Several names are given with commas between them: --methods NAME,NAME."
            error.message += f" {hint}" if hint else ""
            raise
        except UserError as error:
            err.print(labeled("error:", str(error), "bold red"), soft_wrap=True)
            raise typer.Exit(2) from error
        except KeyboardInterrupt as error:
            err.print("interrupted; the same command goes on from what is saved", highlight=False)
            raise typer.Exit(interrupts.status(error)) from error


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Compare meta-learners as approximate probabilistic inference (ML-PIP), fairly.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(__version__)
        raise typer.Exit


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


for _command, _examples in (
    (run, RUN_EXAMPLES),
    (table, TABLE_EXAMPLES),
    (figures, FIGURES_EXAMPLES),
    (compare, COMPARE_EXAMPLES),
    (report, REPORT_EXAMPLES),
    (rescore, RESCORE_EXAMPLES),
    (verify, VERIFY_EXAMPLES),
    (export, EXPORT_EXAMPLES),
    (predict, PREDICT_EXAMPLES),
    (check, CHECK_EXAMPLES),
    (clean, CLEAN_EXAMPLES),
    (import_scores, IMPORT_EXAMPLES),
):
    app.command(epilog=_examples)(_command)
data_app.command(epilog=EXPORT_SPLIT_EXAMPLES)(export_split)
data_app.command(epilog=FEATURES_EXAMPLES)(features)
app.add_typer(list_app, name="list")
app.add_typer(data_app, name="data")


def main() -> None:
    """Entry point."""
    app(prog_name="mlpip_bench")
