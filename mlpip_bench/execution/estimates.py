"""What a run will take: a few steps of each trial, measured and multiplied."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mlpip_bench.evaluation.predict import chunk_size, predict
from mlpip_bench.evaluation.protocol import EvalProtocol, Evaluation, MeasurementRule
from mlpip_bench.execution.config import RunConfig
from mlpip_bench.execution.status import Standing
from mlpip_bench.execution.trial import Trial
from mlpip_bench.inference.method import Method, TrainingPlan
from mlpip_bench.tasks.stream import Stream, batches
from mlpip_bench.training.checkpoints import iterations_done
from mlpip_bench.training.pretraining import classification, images_of
from mlpip_bench.training.steps import descend, loss_of, optimizer_of
from mlpip_bench.utils.device import most_resident_bytes
from mlpip_bench.utils.progress import Reporter
from mlpip_bench.utils.timers import Stopwatch, peak_bytes

_STEPS = 3
_TASKS = 2


@dataclass(frozen=True)
class Estimate:
    """What a trial will take, roughly.

    Attributes:
        seconds: to train what is left, to validate, and to test by the protocols that measure one model.
        peak_bytes: of its process: what it holds before the work (interpreter, data), and the work's tensors; of a
            GPU, the work's tensors alone.
    """

    seconds: float
    peak_bytes: int


def estimate_all(standings: Sequence[Standing], config: RunConfig, reporter: Reporter) -> dict[Trial, Estimate | None]:
    """Estimates of the trials that have something to do; None for one that cannot be run.

    Seeds of a configuration cost the same, so that one of them is measured.
    """
    found: dict[Trial, Estimate | None] = {}
    before: dict[str, Estimate | None] = {}
    pretrainings: set[str] = set()  # each is made once
    held = most_resident_bytes()
    open_ones = [standing for standing in standings if not standing.nothing]
    with reporter.stage("measuring a few steps of each", len(open_ones)) as step:
        for number, standing in enumerate(open_ones, 1):
            trial = standing.trial
            reached = _reached(trial, config)
            costs = repr((trial.bench.name, trial.method, trial.config, standing.alone, reached))
            if costs not in before:
                try:
                    before[costs] = _estimate(trial, standing.alone, reached, held)
                except (Exception, SystemExit):  # which the run will keep as the trial's failure
                    before[costs] = None
            found[trial] = _with_pretraining(trial, before[costs], config, pretrainings)
            step(number)
    return found


def _reached(trial: Trial, config: RunConfig) -> int:
    reached = iterations_done(trial.checkpoint(config.results), trial.training_key)
    return 0 if config.overwrite == "always" and reached == trial.plan.iterations else reached


def _estimate(trial: Trial, protocols: Sequence[str], reached: int, held: int) -> Estimate:
    plan, device = trial.plan, trial.device
    method, streams = trial.build_method(), trial.streams()
    train_step = _step_of(method, plan, streams["train"])
    validations = plan.iterations // plan.validate_every - reached // plan.validate_every
    with trial.numerics.applied(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        step_bytes = peak_bytes(train_step, device)  # which warms up, too
        step = statistics.median(_seconds(train_step, device) for _ in range(_STEPS))
        validation = _seconds(lambda: predict(method, streams["validation"], _TASKS), device) / _TASKS
        evaluation = Evaluation(method, "best", streams["test"], min(_TASKS, plan.test_tasks))
        at_once = min(chunk_size(streams["test"]), plan.test_tasks)
        test_bytes = peak_bytes(lambda: evaluation.predictions, device) // evaluation.tasks * at_once
        vars(evaluation).pop("predictions")
        rules = map(trial.protocol, protocols)
        test = sum(_seconds(lambda: _measure(rule, evaluation), device) for rule in rules) / evaluation.tasks  # noqa: B023
    left = plan.iterations - reached
    models = (
        2 if left or plan.iterations > plan.validate_every else 1
    )  # the best, by one metric or by two, and the last
    draws = trial.tuning.draws if trial.tuning else 1
    training = draws * (left * step + validations * plan.validation_tasks * validation)
    seconds = training + models * plan.test_tasks * test
    return Estimate(seconds, max(step_bytes, test_bytes) + (held if device.type == "cpu" else 0))


def _step_of(method: Method[Any], plan: TrainingPlan, stream: Stream) -> Callable[[], None]:
    """A training step; nothing where none is taken."""
    optimizer = optimizer_of(method, plan)

    def train_step() -> None:
        if plan.iterations:
            method.train()
            descend(loss_of(method, list(batches(stream, 0, plan.tasks_per_batch))), optimizer, plan.clip_norm)

    return train_step


def _with_pretraining(trial: Trial, found: Estimate | None, config: RunConfig, counted: set[str]) -> Estimate | None:
    """With the time of its pre-training, for the first trial that needs it."""
    settings = trial.pretraining
    if settings is None or found is None or trial.pretraining_key in counted:
        return found
    counted.add(trial.pretraining_key)
    training = images_of(trial.streams()["train"], trial.bench.name)
    step = _step_of(*classification(trial.problem, settings, training))
    left = settings.iterations - iterations_done(trial.pretraining_checkpoint(config.results), trial.pretraining_key)
    with trial.numerics.applied():
        step()
        seconds = statistics.median(_seconds(step, trial.device) for _ in range(_STEPS))
    return dataclasses.replace(found, seconds=found.seconds + left * seconds)


def _measure(protocol: MeasurementRule, evaluation: Evaluation) -> None:
    assert isinstance(protocol, EvalProtocol)
    protocol.measure(evaluation)


def _seconds(work: Callable[[], Any], device: torch.device) -> float:
    watch = Stopwatch(device)
    watch.mark()
    work()
    watch.mark()
    return watch.laps()[0]
