"""Does what ``run`` asks for: plans, runs, and shows; its imports are those that take time."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import typer

from mlpip_bench.cli.common import err, folded_table, out, print_answer, print_tables, rewrite_tables
from mlpip_bench.execution import estimates, planning, profiling, scheduler, status
from mlpip_bench.execution.config import RunConfig
from mlpip_bench.execution.executors import local, ray_cluster
from mlpip_bench.execution.executors.base import Executor
from mlpip_bench.execution.trial import Trial
from mlpip_bench.execution.worker import perform_elsewhere
from mlpip_bench.records import power, store
from mlpip_bench.reporting.decisions import Margins, parse_margins
from mlpip_bench.reporting.selection import shown
from mlpip_bench.utils.console import labeled
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import check_folder_can_be_made
from mlpip_bench.utils.progress import ConsoleReporter
from mlpip_bench.utils.provenance import STAND_INS


def perform_runs(configs: Sequence[RunConfig], asked: Sequence[Mapping[str, Any]]) -> None:
    """Plan all runs, then list each, or do it and print its tables.

    Args:
        configs: what is asked for.
        asked: how each is done: ``jobs``, ``ray``, ``cpus``, ``wait``, ``profile``, ``dry_run``, ``estimate``,
            ``margin``; and ``test_tasks``.

    Raises:
        UserError: what was asked for cannot be done; before any work starts.
        typer.Exit: with status 1, where a trial failed.
    """
    margins = [_margins(options) for options in asked]
    for config, options in zip(configs, asked, strict=True):
        if not (options["dry_run"] or options["estimate"]):
            check_folder_can_be_made(config.results)  # before data are read
    reporter = ConsoleReporter(err)
    planned = [
        planning.plan_trials(config, reporter, here=options["ray"] is None, at_once=options["jobs"])
        for config, options in zip(configs, asked, strict=True)
    ]
    failed = [_perform_run(*of_run, reporter) for of_run in zip(planned, configs, asked, margins, strict=True)]
    if any(failed):
        raise typer.Exit(1)


def _margins(options: Mapping[str, Any]) -> Margins:
    """What a plan of seeds and tasks is for, by metric."""
    margins = parse_margins(options["margin"])
    if margins and not (options["dry_run"] or options["estimate"]):
        raise UserError(
            "run takes --margin to plan, with --dry-run; table and report take it for verdicts. Add --dry-run."
        )
    return margins


def _perform_run(
    planned: Sequence[Trial],
    config: RunConfig,
    options: Mapping[str, Any],
    margins: Mapping[str, float],
    reporter: ConsoleReporter,
) -> bool:
    """List the trials of a run, or do them and print their tables; whether one failed."""
    jobs, ray = options["jobs"], options["ray"]
    _print_configuration(planned, config.protocols, options["test_tasks"])
    if options["dry_run"] or options["estimate"]:
        _print_standings(planned, config, jobs, reporter if options["estimate"] else None)
        if margins:
            _print_needs(planned, config.results, margins)
        return False
    if options["profile"]:
        profiling.profile_trials([trial for trial in planned if trial.tuning is None], config.results, reporter, out)
    limit = options["time_limit"]
    executor = _executor(jobs, ray, options["cpus"], limit, planned, reporter)
    summary = scheduler.run(planned, config, reporter, executor, wait=options["wait"], time_limit=limit)
    records = rewrite_tables(config.results) if any(config.results.glob("records/*/*/*.json")) else []
    asked = {trial.record_key(protocol) for trial in planned for protocol in trial.protocols}
    # The last models' tables are in the folder; here they would push the main ones off the screen.
    main = [
        dataclasses.replace(record, scores=tuple(score for score in record.scores if score.model == "best"))
        for record in records
        if record.key in asked
    ]
    named = shown(main)
    print_tables(named)
    _print_summary(summary, config.results)
    print_answer(named)
    return bool(summary.failed)


def _executor(
    jobs: int,
    ray: str | None,
    cpus: int | None,
    limit: int | None,
    planned: Sequence[Trial],
    reporter: ConsoleReporter,
) -> Executor | None:
    """The executor that was asked for; ``None`` for one trial after the other, on torch's own threads unless given."""
    if ray is not None:
        gpus = int(any(trial.device.type == "cuda" for trial in planned))
        return ray_cluster.RayCluster(perform_elsewhere, reporter, ray, cpus or 1, gpus)
    if jobs > 1:
        threads = cpus or max(1, torch.get_num_threads() // jobs)
        return local.LocalProcesses(perform_elsewhere, reporter, jobs, threads, limit)
    if cpus is not None:
        torch.set_num_threads(cpus)
    return None


def _print_standings(planned: Sequence[Trial], config: RunConfig, jobs: int, reporter: ConsoleReporter | None) -> None:
    """List the trials; measure what they will take if there is a reporter for that."""
    standings = status.survey(planned, config)
    found = estimates.estimate_all(standings, config, reporter) if reporter else {}
    table = folded_table("trial", "to measure", "done, or why not", *(("time", "memory") if reporter else ()))
    for standing in standings:
        estimate = found.get(standing.trial)
        costs = (_duration(estimate.seconds), f"{estimate.peak_bytes / 1e9:.1f} GB") if estimate else ()
        to_do = ", ".join((*standing.alone, *standing.side_by_side))
        table.add_row(standing.trial.title, to_do, status.why(standing, config), *costs)
    out.print(table)
    if reporter is None:
        to_run = sum(not standing.nothing for standing in standings)
        out.print(f"{to_run} of {len(planned)} trials to run; --estimate says what they will take", highlight=False)
        return
    known = [estimate for estimate in found.values() if estimate is not None]
    lines = [f"{sum(not standing.nothing for standing in standings)} of {len(planned)} trials to run"]
    if known:
        at_once = min(jobs, len(found))
        lines += [
            f"about {_duration(sum(e.seconds for e in known) / at_once)}"
            + (f" with {jobs} at once" if jobs > 1 else ""),
            f"{at_once * max(e.peak_bytes for e in known) / 1e9:.1f} GB at most",
        ]
    if len(known) < len(found):
        lines.append(f"{len(found) - len(known)} cannot be estimated")
    if any(standing.side_by_side for standing in standings):
        lines.append("what is measured side by side comes on top")
    out.print("; ".join(lines), highlight=False, soft_wrap=True)


def _print_needs(planned: Sequence[Trial], results: Path, margins: Mapping[str, float]) -> None:
    """What margins need, from the records of the results folder and of the committed experiments."""
    committed = sorted((Path(__file__).resolve().parents[2] / "results").glob("*/records"))
    records = {r.key: r for folder in (results, *(place.parent for place in committed)) for r in store.load_all(folder)}
    benches = list(dict.fromkeys(trial.measured_as for trial in planned))
    methods = {trial.method for trial in planned}
    found = power.needs([r for r in records.values() if r.method in methods], benches, margins)
    others = [bench for bench in benches if bench not in {need.bench for need in found}]
    found += power.needs(records.values(), others, margins)  # of methods that are not in the run
    table = folded_table("bench", "metric", "margin", "pairs known", "most is needed by", "tasks, one seed", "seeds")
    for need in found:
        seeds = (
            f"{need.seeds} with {need.test_tasks} tasks" if need.seeds else f"no number with {need.test_tasks} tasks"
        )
        seeds = "not known: no pair has two seeds" if need.variances.seed is None else seeds
        tasks = f"{need.tasks:,}" if need.tasks else f"more than {power.MOST:,}"
        table.add_row(need.bench, need.metric, f"{need.margin:g}", str(need.pairs), need.pair, tasks, seeds)
    if found:
        out.print(table)
        out.print(
            f"to find a difference of the margin with a chance of {power.POWER:.0%} at the 5 % level; one seed decides "
            "on two trained models, seeds on methods",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
    known = {(need.bench, need.metric) for need in found}
    for bench, metric in itertools.product(benches, margins):
        if (bench, metric) not in known:
            out.print(f"nothing is known of {bench} {metric}: no records of two methods", highlight=False)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _print_configuration(planned: Sequence[Trial], protocols: tuple[str, ...], test_tasks: int | None) -> None:
    table = folded_table("bench", "method", "seeds", "resolved configuration")
    shown: dict[tuple[str, str, str], list[str]] = {}
    for trial in (trial for trial in planned if not trial.recalibrated):  # whose companion has the same
        config = {k: v for k, v in trial.config.items() if k not in ("way", "shot")}
        config |= {f"settings.{k}": v for k, v in config.pop("settings").items()}
        text = ", ".join(f"{k} {v}" for k, v in config.items())
        spec = ", ".join(f"{k} {v}" for k, v in trial.backbone.spec.items())
        backbone = trial.backbone.name + (f" ({spec})" if spec else "")
        data = f"{trial.data.name} ({trial.data.source})"
        if other := trial.tested_on:
            data += f", tested on {other.data.name} ({other.data.source})"
        data += f", device {trial.device}"
        shown.setdefault((trial.measured_as, trial.method, f"{text}, backbone {backbone}, data {data}"), []).append(
            str(trial.seed)
        )
    for (bench, method, text), seeds in shown.items():
        table.add_row(bench, method, ",".join(seeds), text)
    err.print(table)
    if any(trial.recalibrated for trial in planned):
        err.print("each is measured with a fitted temperature as well", highlight=False)
    for trial in planned:
        if left_out := [name for name in protocols if name not in trial.protocols]:
            err.print(f"does not apply to {trial.title}: {', '.join(left_out)}", highlight=False)
    for trial in planned:
        if test_tasks is not None and trial.plan.test_tasks < test_tasks:
            err.print(f"{trial.title} has {trial.plan.test_tasks} test tasks, all that there are", highlight=False)
    if any(trial.data.source in STAND_INS for trial in planned):
        err.print(labeled("stand-in data:", "results on it are not results on the real data set", "yellow"))
    for warning in dict.fromkeys(trial.numerics.warning(trial.device) for trial in planned):
        if warning:
            err.print(labeled("slow:", warning, "yellow"))


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
