"""``run``: train and test; this module reads the options, and imports nothing that takes time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from mlpip_bench.benches.family import PRESETS
from mlpip_bench.cli.common import DataRoot, Results
from mlpip_bench.execution import option_files, options
from mlpip_bench.utils.choices import NORM_MODES, OWN_NORM, Log
from mlpip_bench.utils.files import given_path

RUN_EXAMPLES = (
    "Examples:\n\n"
    "python -m mlpip_bench run --methods versa,maml --bench mini5w5s\n\n"
    "python -m mlpip_bench run --methods versa,maml,protonets --bench omni5w1s --data-root ~/data --seeds 0,1,2\n\n"
    "python -m mlpip_bench run --methods maml --bench omni5w1s --set maml.test_steps=5 --norm transductive --queries 1"
    "\n\npython -m mlpip_bench run --config experiment.yaml --seeds 3"
)
_D = options.DEFAULTS
_TRAINING, _DATA, _EXECUTION, _OUTPUT = "Training and test", "Data", "Execution", "Output"


def run(
    ctx: typer.Context,
    bench: Annotated[str | None, typer.Option(help="Benches, with commas (see: list benches).")] = None,
    methods: Annotated[
        str | None, typer.Option(help="Methods, with commas; left out, those that enter the bench (see: list methods).")
    ] = None,
    protocols: Annotated[
        str | None, typer.Option(help="Protocols, with commas; left out, the usual ones (see: list protocols).")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            parser=given_path,
            metavar="FILE",
            help="YAML with any of these options by name; those given here come before it.",
        ),
    ] = None,
    seeds: Annotated[
        str, typer.Option("--seeds", "--seed", help="Training seeds, with commas.", rich_help_panel=_TRAINING)
    ] = _D["seeds"],
    norm: Annotated[
        str,
        typer.Option(
            help=f"Normalization of all methods; several with commas, or all: {', '.join(NORM_MODES)}; or {OWN_NORM}, "
            "ordinary batch norm.",
            rich_help_panel=_TRAINING,
        ),
    ] = _D["norm"],
    backbone: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,SETTING=VALUE]",
            help="Network that all methods share; left out, the bench's own (see: list backbones).",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    pretrain: Annotated[
        str | None,
        typer.Option(
            metavar="none|classify[,SETTING=VALUE]",
            help="Train the backbone before, by classification of all training classes; left out, for the methods that "
            "need it. Its settings: list methods --check.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(
            metavar="FILE[,trained_on=TEXT]",
            help="Parameters that the method starts from: a checkpoint, a state dict of torch, or safetensors.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    evaluate_only: Annotated[
        bool,
        typer.Option(
            "--evaluate-only",
            help="Test models as they are at the start; nothing is trained.",
            rich_help_panel=_TRAINING,
        ),
    ] = False,
    preset: Annotated[str, typer.Option(help=f"Budget: {', '.join(PRESETS)}.", rich_help_panel=_TRAINING)] = _D[
        "preset"
    ],
    iterations: Annotated[
        int | None, typer.Option(help="Training iterations, instead of the preset's.", rich_help_panel=_TRAINING)
    ] = None,
    test_tasks: Annotated[
        int | None, typer.Option(help="Test tasks, instead of the preset's.", rich_help_panel=_TRAINING)
    ] = None,
    queries: Annotated[
        int,
        typer.Option(help="Queries per class at test; the paper's protocol is the shot.", rich_help_panel=_TRAINING),
    ] = _D["queries"],
    query_concentration: Annotated[
        float | None,
        typer.Option(
            metavar="ALPHA",
            help="At test, unequal numbers of queries of a task's classes: shares from a Dirichlet distribution, 2 is "
            "usual; left out, as many of each.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    recalibrate: Annotated[
        bool,
        typer.Option(
            "--recalibrate",
            help="Also measure each model with a temperature fitted on its validation tasks, in rows of their own.",
            rich_help_panel=_TRAINING,
        ),
    ] = False,
    test_on: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="Data set that the test tasks are of, with the way and shot of the bench: kanji, say, for omni5w1s.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="[METHOD.]NAME=VALUE",
            help="A setting of a method, or of training; repeatable.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[METHOD.]NAME=VALUE,VALUE",
            help="Values of a setting, each in turn; several: all combinations.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    tune: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Also a tuned trial of each: N random draws of settings, the defaults first, chosen on validation.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(
            help="With --tune: the validation metric that chooses, nll or accuracy; left out, the bench's first.",
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    precision: Annotated[
        str, typer.Option(help="Of all methods: float32; tf32 (GPU only); bf16.", rich_help_panel=_TRAINING)
    ] = _D["precision"],
    source: Annotated[
        str,
        typer.Option(help="auto: real data where found, else the stand-in; real; procedural.", rich_help_panel=_DATA),
    ] = _D["source"],
    data_root: DataRoot = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FAMILY.OPTION=VALUE",
            help="An option of a task family, for example omni.split=vinyals (see: list benches --check); repeatable.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, mps, cuda or cuda:N.", rich_help_panel=_EXECUTION)] = _D[
        "device"
    ],
    compile_: Annotated[
        str,
        typer.Option(
            "--compile",
            help="torch.compile for test tasks of all methods: off, default, reduce-overhead (CUDA graphs).",
            rich_help_panel=_EXECUTION,
        ),
    ] = _D["compile"],
    graph: Annotated[
        str,
        typer.Option(
            help="Whether a training step is a CUDA graph: auto (on a GPU), on, off.", rich_help_panel=_EXECUTION
        ),
    ] = _D["graph"],
    jobs: Annotated[
        int, typer.Option(help="Trials at once, each in a process of its own.", rich_help_panel=_EXECUTION)
    ] = _D["jobs"],
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="local|auto|ADDRESS",
            help="Run trials on a Ray cluster, each with a GPU if it uses one.",
            rich_help_panel=_EXECUTION,
        ),
    ] = None,
    cpus: Annotated[
        int | None,
        typer.Option(
            help="CPU threads of a trial; left out, all, or an equal share, or 1 with --ray.",
            rich_help_panel=_EXECUTION,
        ),
    ] = None,
    time_limit: Annotated[
        int | None,
        typer.Option(
            metavar="SECONDS",
            help="End a trial that takes longer, as failed; each then has a process of its own.",
            rich_help_panel=_EXECUTION,
        ),
    ] = None,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait/--no-wait",
            help="Wait for trials that another run is at work on, or leave them.",
            rich_help_panel=_EXECUTION,
        ),
    ] = _D["wait"],
    overwrite: Annotated[
        str, typer.Option(help="Which trials run again: never, failed, always.", rich_help_panel=_EXECUTION)
    ] = _D["overwrite"],
    results: Results = _D["results"],
    predictions: Annotated[
        bool,
        typer.Option(
            "--predictions/--no-predictions",
            help="Keep the predictions of all queries next to the records, for rescore and verify.",
            rich_help_panel=_OUTPUT,
        ),
    ] = _D["predictions"],
    check: Annotated[
        bool,
        typer.Option(
            "--check/--no-check",
            help="Run the conformance suite on methods of other packages, for the mark in tables.",
            rich_help_panel=_EXECUTION,
        ),
    ] = _D["check"],
    log: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(get_args(Log)),
            help="Log losses, validation and scores below logs/ of the results, to watch a training; an extra each.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            help="First show where the time of each trial goes; traces are in profiles/.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only list the trials: done or not and why.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate",
            help="Only list the trials, and measure a few steps of each: what time and memory they will take.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    margin: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC=NUMBER",
            help="With --dry-run: how many seeds and tasks differences of this size need, as accuracy=0.5,nll=0.01.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    print_config: Annotated[
        bool,
        typer.Option("--print-config", help="Only write all options as YAML for --config.", rich_help_panel=_OUTPUT),
    ] = False,
) -> None:
    """Train and test methods on benches, keep a record of each trial, and print the tables."""
    given = _given(ctx)
    asked = [options.merged(layer, given) for layer in (option_files.read_options(config) if config else [{}])]
    if print_config:
        typer.echo(option_files.as_yaml(asked[0]) if len(asked) == 1 else option_files.runs_as_yaml(asked), nl=False)
        return
    configs = [options.run_config(each) for each in asked]  # all, before any work starts
    from mlpip_bench.cli.running import perform_runs  # here, since torch takes a second to import

    perform_runs(configs, asked)


def _is_given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT")


def _given(ctx: typer.Context) -> dict[str, Any]:
    """The options that the command line has, or the environment; the others are defaults."""
    return {
        name.rstrip("_"): value
        for name, value in ctx.params.items()
        if name not in ("config", "print_config") and _is_given(ctx, name)
    }
