"""``run``: train and test."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, get_args

import torch
import typer
from rich.markup import escape

from mlpip_bench.benches.settings import PRESETS, TEST_QUERIES
from mlpip_bench.cli import arguments
from mlpip_bench.cli.common import DataRoot, Results, err, folded_table, out, print_tables, rewrite_tables
from mlpip_bench.datasets import catalog
from mlpip_bench.datasets.base import STAND_INS
from mlpip_bench.datasets.omniglot import Resize, Split
from mlpip_bench.execution import estimates, planning, profiling, scheduler, status
from mlpip_bench.execution.config import DEFAULT_NORM, RunConfig
from mlpip_bench.execution.executors import local, ray_cluster
from mlpip_bench.execution.executors.base import Executor
from mlpip_bench.execution.trial import Trial
from mlpip_bench.execution.worker import perform_elsewhere
from mlpip_bench.nn.normalization import NORM_MODES
from mlpip_bench.records import published
from mlpip_bench.utils.device import Numerics
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.progress import ConsoleReporter

RUN_EXAMPLES = (
    "Examples:\n\n"
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
        str, typer.Option(help=f"Normalization of all methods; several with commas, or all: {', '.join(NORM_MODES)}.")
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
    overwrite: Annotated[str, typer.Option(help="Which trials run again: never, failed, always.")] = "failed",
    profile: Annotated[
        bool, typer.Option("--profile", help="First show where the time of each trial goes; traces are in profiles/.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the trials: done or not and why, and what they will take.")
    ] = False,
    jobs: Annotated[int, typer.Option(help="Trials at once, each in a process of its own.")] = 1,
    ray: Annotated[
        str | None,
        typer.Option(metavar="local|auto|ADDRESS", help="Run trials on a Ray cluster, each with a GPU if it uses one."),
    ] = None,
    cpus: Annotated[
        int | None, typer.Option(help="CPU threads of a trial; left out, all, or an equal share, or 1 with --ray.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait for trials that another run is at work on, or leave them.")
    ] = True,
    results_folder: Results = Path("results"),
) -> None:
    """Train and test methods on benches, keep a record of each trial, and print the tables."""
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
        norms=NORM_MODES if "all" in norms else norms,  # type: ignore[arg-type]  # plan_trials checks these names, with a suggestion
        preset=preset,
        queries=queries,
        overrides=overrides,
        sweeps=arguments.sweeps(sweep or [], overrides),
        source=source,  # type: ignore[arg-type]
        data_root=data_root,
        data=catalog.DataOptions(split=split, resize=resize, views=views),  # type: ignore[arg-type]
        angles=angles,  # type: ignore[arg-type]
        device=device,
        numerics=Numerics(precision, compile_),  # type: ignore[arg-type]  # plan_trials checks these words
        overwrite=overwrite,  # type: ignore[arg-type]
        results=results_folder,
    )
    for name, number in (("jobs", jobs), ("cpus", cpus)):
        if number is not None and number < 1:
            raise UserError(f"--{name} must be at least 1; got {number}.")
    if ray is not None and jobs > 1:
        raise UserError("--jobs is for processes of this machine, and a Ray cluster has its own count. Leave one out.")
    reporter = ConsoleReporter(err)
    planned = planning.plan_trials(config, reporter, here=ray is None)
    _print_configuration(planned, config.protocols, test_tasks)
    if dry_run:
        _print_estimates(planned, config, jobs, reporter)
        return
    if profile:
        profiling.profile_trials(planned, config.results, reporter, out)
    executor = _executor(jobs, ray, cpus, planned, reporter)
    summary = scheduler.run(planned, config, reporter, executor, wait=wait)
    records = rewrite_tables(config.results) if any(config.results.glob("records/*/*/*.json")) else []
    asked = {trial.record_key(protocol) for trial in planned for protocol in trial.protocols}
    # The last models' tables are in the folder; here they would push the main ones off the screen.
    main = [
        dataclasses.replace(record, scores=tuple(score for score in record.scores if score.model == "best"))
        for record in records
        if record.key in asked
    ]
    print_tables(main, published.load())
    _print_summary(summary, config.results)
    if summary.failed:
        raise typer.Exit(1)


def _executor(
    jobs: int, ray: str | None, cpus: int | None, planned: Sequence[Trial], reporter: ConsoleReporter
) -> Executor | None:
    """What was asked for; ``None`` for this process, with as many threads as torch takes by itself unless told."""
    if ray is not None:
        gpus = int(any(trial.device.type == "cuda" for trial in planned))
        return ray_cluster.RayCluster(perform_elsewhere, reporter, ray, cpus or 1, gpus)
    if jobs > 1:
        threads = cpus or max(1, torch.get_num_threads() // jobs)
        return local.LocalProcesses(perform_elsewhere, reporter, jobs, threads)
    if cpus is not None:
        torch.set_num_threads(cpus)
    return None


def _print_estimates(planned: Sequence[Trial], config: RunConfig, jobs: int, reporter: ConsoleReporter) -> None:
    standings = status.survey(planned, config)
    found = estimates.estimate_all(standings, config, reporter)
    table = folded_table("trial", "to measure", "done, or why not", "time", "memory")
    for standing in standings:
        estimate = found.get(standing.trial)
        costs = (_duration(estimate.seconds), f"{estimate.peak_bytes / 1e9:.1f} GB") if estimate else ("", "")
        to_do = ", ".join((*standing.alone, *standing.beside))
        table.add_row(standing.trial.title, to_do, escape(status.why(standing, config)), *costs)
    out.print(table)
    known = [estimate for estimate in found.values() if estimate is not None]
    lines = [f"{len(found)} of {len(planned)} trials to run"]
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


def _print_configuration(planned: Sequence[Trial], protocols: tuple[str, ...], test_tasks: int | None) -> None:
    table = folded_table("bench", "method", "seeds", "resolved configuration")
    shown: dict[tuple[str, str, str], list[str]] = {}
    for trial in planned:
        config = {k: v for k, v in trial.config.items() if k not in ("way", "shot")}
        config |= {f"settings.{k}": v for k, v in config.pop("settings").items()}
        text = ", ".join(f"{k} {v}" for k, v in config.items())
        data = f"{trial.dataset.name} ({trial.dataset.source}), device {trial.device}"
        shown.setdefault((trial.bench.name, trial.method, f"{text}, data {data}"), []).append(str(trial.seed))
    for (bench, method, text), seeds in shown.items():
        table.add_row(bench, method, ",".join(seeds), text)
    err.print(table)
    for trial in planned:
        if left_out := [name for name in protocols if name not in trial.protocols]:
            err.print(f"does not apply to {trial.title}: {', '.join(left_out)}", highlight=False)
    for trial in planned:
        if test_tasks is not None and trial.plan.test_tasks < test_tasks:
            err.print(f"{trial.title} has {trial.plan.test_tasks} test tasks, all that there are", highlight=False)
    if any(trial.dataset.source in STAND_INS for trial in planned):
        err.print("[yellow]stand-in data:[/] results on it are not results on the real data set")


def _print_summary(summary: scheduler.Summary, folder: Path) -> None:
    for title, reason in summary.skipped:
        err.print(f"nothing to do for {title}: {reason}", highlight=False)
    for title in summary.left:
        err.print(f"left to another run, which is at work on it: {title}", highlight=False)
    left = f"{len(summary.left)} left to another run, " if summary.left else ""
    done, nothing, failed = (len(trials) for trials in (summary.done, summary.skipped, summary.failed))
    counts = f"{done} trials run, {nothing} had nothing to do, {left}{failed} failed"
    failures = f"; tracebacks are in {folder / 'failures'}" if summary.failed else ""
    err.print(f"{counts}; records and tables are in {folder}{failures}", markup=False, highlight=False, soft_wrap=True)
