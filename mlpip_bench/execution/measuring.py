"""The work of a trial: train its method, measure it, and make its records."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mlpip_bench import registry
from mlpip_bench.evaluation.inductive import is_inductive
from mlpip_bench.evaluation.keeping import to_keep
from mlpip_bench.evaluation.predict import predict
from mlpip_bench.evaluation.protocol import Contender, EvalProtocol, Evaluation, SideBySideProtocol, compiled_for_tests
from mlpip_bench.execution.fingerprint import NUMBERS_VERSION, engine_code, requirements
from mlpip_bench.execution.trial import Trial
from mlpip_bench.inference.method import Method
from mlpip_bench.records.predictions import Predictions, Split, save, stem
from mlpip_bench.records.record import Model, PredictionsFile, Record, Scores
from mlpip_bench.tasks.stream import Stream
from mlpip_bench.training.checkpoints import State, TrainingState, iterations_done, load_checkpoint
from mlpip_bench.training.loop import train
from mlpip_bench.utils.device import environment
from mlpip_bench.utils.errors import TrialError, UserError, one_line
from mlpip_bench.utils.progress import Reporter


def train_and_measure(
    trial: Trial,
    protocols: Sequence[str],
    folder: Path,
    reporter: Reporter,
    *,
    afresh: bool,
    predictions: bool = False,
) -> Iterator[Record]:
    """Train, from the last checkpoint if there is one, then measure by protocols that measure one model.

    Args:
        trial: what is trained.
        protocols: what is measured; may be none.
        folder: of the results.
        reporter: shows bars.
        afresh: whether to train again where training is complete.
        predictions: whether to keep the predictions that the records are made of, in a file that is written first.

    Yields:
        A record a protocol, to be kept at once.

    Raises:
        TrialError: training stopped, or a protocol failed, after the records of the others.
        UserError: a checkpoint is damaged or cannot be written.
    """
    method, trained, streams = train_trial(trial, folder, reporter, afresh=afresh)
    with trial.numerics.applied(trial.device):
        began = time.monotonic()
        method = compiled_for_tests(method, trial.numerics)
        found: dict[tuple[Split, Model], Predictions] | None = {} if predictions else None
        measured, failed = _measure(trial, method, trained, streams, protocols, reporter, found)
        inductive = bool(measured) and is_inductive(method, streams["test"].batch(0, 1))
        kept = _keep(trial, found, folder, reporter) if measured and found else None
        for name, scores in measured.items():
            record = make_record(trial, method, trained, name, scores, inductive, time.monotonic() - began, {})
            yield dataclasses.replace(record, predictions=kept)
    if failed:  # the records of the others are written by now
        messages = (f"protocol {name}: {message_of(error)}" for name, error in failed.items())
        raise TrialError("; ".join(messages)) from next(iter(failed.values()))


def train_trial(
    trial: Trial, folder: Path, reporter: Reporter, *, afresh: bool
) -> tuple[Method[Any], TrainingState, dict[str, Stream]]:
    """Train a trial's method, from the last checkpoint if there is one.

    Args:
        trial: what is trained.
        folder: of the results, for the checkpoint.
        reporter: shows a bar.
        afresh: whether to train again where training is complete.

    Returns:
        The method, which holds the last model; how training went; and the task streams.

    Raises:
        TrialError: training stopped.
        UserError: a checkpoint is damaged or cannot be written.
    """
    streams = trial.streams()
    method = trial.build_method()
    checkpoint = trial.checkpoint(folder)
    start = iterations_done(checkpoint)
    if afresh and start == trial.plan.iterations:
        checkpoint.unlink()  # an unfinished one belongs to this very command, which was interrupted
        start = 0
    if 0 < start < trial.plan.iterations:
        reporter.say(f"{trial.title}: goes on from iteration {start}")
    with (
        trial.numerics.applied(trial.device),
        reporter.stage(f"{trial.title}: training", trial.plan.iterations, start) as step,
    ):
        trained = train(
            method,
            trial.plan,
            streams["train"],
            streams["validation"],
            metrics=trial.family.validation_metrics,
            seed=trial.seed,
            checkpoint=checkpoint,
            step=step,
        )
    return method, trained, streams


def measure_side_by_side(name: str, trials: Sequence[Trial], folder: Path, reporter: Reporter) -> list[Record]:
    """Measure the trained models of some trials at once, by a protocol that does so."""
    began = time.monotonic()
    states = [load_checkpoint(trial.checkpoint(folder)) for trial in trials]
    contenders = []
    for trial, state in zip(trials, states, strict=True):
        method = trial.build_method()
        method.load_state_dict(state.best_model)
        method = compiled_for_tests(method, trial.numerics)
        contenders.append(Contender(trial.title, method, trial.plan, trial.streams()))
    protocol = registry.protocol(name)()
    assert isinstance(protocol, SideBySideProtocol)  # that is what these trials are grouped by
    with trials[0].numerics.applied(trials[0].device):  # one for all trials of a run
        measured = protocol.measure(contenders, reporter)
        seconds = time.monotonic() - began
        session = {"session": datetime.now(UTC).isoformat(sep=" ")}
        inductive = [is_inductive(c.method, c.streams["test"].batch(0, 1)) for c in contenders]
        return [
            make_record(trial, contender.method, state, name, scores, alone, seconds, session)
            for trial, contender, state, scores, alone in zip(
                trials, contenders, states, measured, inductive, strict=True
            )
        ]


def make_record(
    trial: Trial,
    method: Method[Any],
    trained: TrainingState,
    protocol: str,
    scores: Sequence[Scores],
    inductive: bool,
    seconds: float,
    session: Mapping[str, Any],
) -> Record:
    """The record of what a protocol measured of a trial's model."""
    return Record(
        key=trial.record_key(protocol),
        bench=trial.bench.name,
        method=trial.method,
        protocol=protocol,
        seed=trial.seed,
        device=trial.device.type,
        inductive=inductive,
        config=trial.config,
        data=trial.data_facts,
        backbone=trial.backbone_facts,
        scores=tuple(scores),
        parameters=sum(p.numel() for p in method.parameters()),
        training={
            "iterations": trained.iteration,
            "tasks_seen": trained.iteration * trial.plan.tasks_per_batch,
            "seconds": trained.seconds,
            "best_iteration": trained.best_iteration,
            "history": trained.history,
            **({"swept": sorted(trial.swept)} if trial.swept else {}),
        },
        seconds=seconds,
        environment={**environment(trial.device), "code": code_facts(trial, protocol), **session},
    )


def code_facts(trial: Trial, protocol: str) -> dict[str, Any]:
    """What a record says of the code that made it: of the suite's, and of plugins of other packages."""
    others = {f"protocol {name}" for name in trial.protocols if name != protocol}
    own = {plugin: code for plugin, code in trial.code.items() if plugin not in others}
    packages = [requirements(*plugin.split(" ", 1)) for plugin in own]  # type: ignore[arg-type]
    return {
        "numbers": NUMBERS_VERSION,
        "build": engine_code(),
        **({"plugins": own, "packages": {k: v for found in packages for k, v in found.items()}} if own else {}),
    }


def message_of(error: BaseException) -> str:
    """The message of a failure."""
    return str(error) if isinstance(error, TrialError) else one_line(error)


def _measure(
    trial: Trial,
    method: Method[Any],
    trained: TrainingState,
    streams: Mapping[str, Stream],
    protocols: Sequence[str],
    reporter: Reporter,
    found: dict[tuple[Split, Model], Predictions] | None,
) -> tuple[dict[str, list[Scores]], dict[str, BaseException]]:
    """By protocol, the scores of the best model and of the last one; and the errors of protocols that failed.

    They are measured once if the two models are one. Predictions that the protocols ask for are added to ``found``,
    with those of the validation tasks.
    """
    scores: dict[str, list[Scores]] = {name: [] for name in protocols}
    failed: dict[str, BaseException] = {}
    states: dict[Model, State] = {"best": trained.best_model, "last": trained.model}
    if trained.best_iteration == trained.iteration:
        del states["last"]
    for model, state in states.items():
        method.load_state_dict(state)
        evaluation = Evaluation(method, model, streams["test"], trial.plan.test_tasks, reporter, trial.title)
        for name in [n for n in protocols if n not in failed]:
            try:
                scores[name] += scores_of_protocol(name, evaluation)
            except UserError:
                raise
            except (Exception, SystemExit) as error:  # one that fails takes no other with it
                failed[name] = error
        if found is not None and "predictions" in vars(evaluation) and method.problem.kind != "reconstruction":
            validation = predict(method, streams["validation"], trial.plan.validation_tasks)
            try:
                both: dict[Split, Any] = {"test": evaluation.predictions, "validation": validation}
                found.update({(split, model): to_keep(predicted) for split, predicted in both.items()})
            except ValueError as error:
                reporter.say(f"{trial.title}: the predictions of its {model} model are not kept: {error}")
    if "last" not in states:
        scores = {name: best + [dataclasses.replace(s, model="last") for s in best] for name, best in scores.items()}
    method.load_state_dict(trained.best_model)  # which the method holds from here on
    return {name: found for name, found in scores.items() if name not in failed}, failed


def _keep(
    trial: Trial, found: Mapping[tuple[Split, Model], Predictions], folder: Path, reporter: Reporter
) -> PredictionsFile | None:
    """Write predictions next to the records that are made of them."""
    try:
        return save(found, trial.record_path(folder, "").parent, stem(trial.seed, trial.training_key))
    except ValueError as error:
        reporter.say(f"{trial.title}: {error}; they are not kept")
        return None


def scores_of_protocol(name: str, evaluation: Evaluation) -> list[Scores]:
    """What a protocol gives; raises whatever it raises, and TrialError for what are not scores of the test tasks."""
    protocol = registry.protocol(name)()
    assert isinstance(protocol, EvalProtocol)  # the others measure several models at once
    scores = protocol.measure(evaluation)
    if not (isinstance(scores, list) and scores and all(isinstance(s, Scores) for s in scores)):
        raise TrialError(f"measure must return a list of Scores, and at least one; got {scores!r:.60}.")
    if uneven := [s for s in scores if len(s.per_task) != evaluation.tasks]:
        raise TrialError(
            f"there must be one score for each of the {evaluation.tasks} test tasks; {uneven[0].metric} has "
            f"{len(uneven[0].per_task)}."
        )
    return scores
