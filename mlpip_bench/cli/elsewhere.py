"""``data export-split`` and ``import-scores``: what is trained or tested by other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mlpip_bench.benches.family import PRESETS, TEST_QUERIES
from mlpip_bench.cli.common import DataRoot, Results, err, out, rewrite_tables
from mlpip_bench.execution.config import RUNS
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import check_folder_can_be_made, given_path
from mlpip_bench.utils.progress import ConsoleReporter

EXPORT_SPLIT_EXAMPLES = (
    "Examples:\n\npython -m mlpip_bench data export-split mini5w1s --to split --data-root ~/data\n\n"
    "python -m mlpip_bench data export-split omni20w1s --to split --images --queries 1"
)
IMPORT_EXAMPLES = (
    "Example:\n\npython -m mlpip_bench import-scores scores.csv --bench omni5w1s --tasks split/tasks.npz --as probe "
    "--backbone ResNet-12 --norm running --inductive --parameters 12424320 --pretraining 'classification, 90 epochs' "
    "--saw 'the training classes'"
)

Preset = Annotated[str, typer.Option(help=f"Budget that the number of test tasks is of: {', '.join(PRESETS)}.")]
Queries = Annotated[int, typer.Option(help="Queries per class at test.")]
Concentration = Annotated[
    float | None, typer.Option(metavar="ALPHA", help="Unequal numbers of queries of a task's classes, as of run.")
]
TestTasks = Annotated[int | None, typer.Option(help="Test tasks, instead of the preset's.")]
TestOn = Annotated[str | None, typer.Option(metavar="DATA", help="Data set that the test tasks are of, as of run.")]
Source = Annotated[str, typer.Option(help="auto: real data where found, else the stand-in; real; procedural.")]
Data = Annotated[
    list[str] | None,
    typer.Option(metavar="FAMILY.OPTION=VALUE", help="An option of a task family, as of run; repeatable."),
]


def _of_tasks(ctx: typer.Context) -> dict[str, Any]:
    """The options that shape test tasks."""
    names = ("queries", "test_tasks", "query_concentration", "test_on", "preset", "source", "data_root", "data")
    return {name: ctx.params[name] for name in names}


def export_split(
    ctx: typer.Context,
    bench: Annotated[str, typer.Argument(help="For example mini5w1s (see: list benches).")],
    target: Annotated[Path, typer.Option("--to", parser=given_path, metavar="DIR", help="Folder that is made.")],
    images: Annotated[bool, typer.Option("--images", help="Write the images, too, as arrays.")] = False,
    queries: Queries = TEST_QUERIES,
    test_tasks: TestTasks = None,
    query_concentration: Concentration = None,
    test_on: TestOn = None,
    preset: Preset = PRESETS[0],
    source: Source = "auto",
    data_root: DataRoot = None,
    data: Data = None,
) -> None:
    """Write which classes are of which split, and the test tasks, for networks that are trained elsewhere."""
    from mlpip_bench.execution import frozen_tasks, split_export

    reporter = ConsoleReporter(err)
    frozen = frozen_tasks.frozen_tasks(bench, _of_tasks(ctx), reporter)
    split_export.export_split(frozen, target, reporter, images=images)
    for line in (f"{target} has the splits and {frozen.trial.plan.test_tasks} test tasks", f"tasks {frozen.sha256}"):
        out.print(line, markup=False, highlight=False, soft_wrap=True)


def import_scores(
    ctx: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(parser=given_path, metavar="FILE", help="csv or npz: accuracy, nll or both, one a test task."),
    ],
    bench: Annotated[str, typer.Option(help="Whose test tasks they are of.")],
    method: Annotated[str, typer.Option("--as", metavar="NAME", help="What tables call them.")],
    tasks: Annotated[
        str,
        typer.Option(metavar="SHA256|FILE", help="The tasks that they are of: tasks.npz of the export, or its digest."),
    ],
    backbone: Annotated[str, typer.Option(metavar="TEXT", help="The network, in a few words.")],
    norm: Annotated[str, typer.Option(metavar="NAME", help="How it normalizes: running, layer, transductive, none.")],
    parameters: Annotated[int, typer.Option(help="How many numbers were trained.")],
    pretraining: Annotated[
        str, typer.Option(metavar="TEXT", help="What was trained before the test, and how; none for nothing.")
    ],
    inductive: Annotated[
        bool | None,
        typer.Option("--inductive/--transductive", help="Whether queries were predicted without sight of others."),
    ] = None,
    saw: Annotated[str, typer.Option(metavar="TEXT", help="The data that it was trained on.")] = "",
    weights: Annotated[
        Path | None,
        typer.Option(parser=given_path, metavar="FILE", help="The trained network, whose SHA-256 is kept."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the training.")] = 0,
    device: Annotated[str, typer.Option(metavar="NAME", help="Where they were computed: cpu, cuda.")] = "outside",
    results: Results = RUNS,
    replace: Annotated[bool, typer.Option("--replace", help="Replace scores that were imported before.")] = False,
    queries: Queries = TEST_QUERIES,
    test_tasks: TestTasks = None,
    query_concentration: Concentration = None,
    test_on: TestOn = None,
    preset: Preset = PRESETS[0],
    source: Source = "auto",
    data_root: DataRoot = None,
    data: Data = None,
) -> None:
    """Put scores that were computed elsewhere, on the tasks of data export-split, next to those of the suite."""
    if inductive is None:
        raise UserError(
            "accuracy may owe something to the other queries, and tables say whether it does: pass --inductive where "
            "each query was predicted without sight of the others, else --transductive."
        )
    check_folder_can_be_made(results)
    from mlpip_bench.execution import frozen_tasks, score_import

    made = score_import.Made(
        method, backbone, norm, inductive, parameters, pretraining, saw, weights, seed=seed, device=device
    )
    made.check()
    scores = score_import.read_scores(file)
    asked = _of_tasks(ctx)
    if test_tasks is None:
        asked["test_tasks"] = score_import.tasks_in(tasks)
    frozen = frozen_tasks.frozen_tasks(bench, asked, ConsoleReporter(err))
    score_import.check_tasks(frozen, tasks)
    score_import.check_scores(scores, frozen, file)
    records = score_import.records_of(frozen, made, scores, file)
    for path in score_import.save(records, results, replace=replace):
        out.print(path, markup=False, highlight=False, soft_wrap=True)
    rewrite_tables(results)
