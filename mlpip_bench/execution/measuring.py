"""The work of a trial: train its method, measure it, and make its records."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mlpip_bench import registry
from mlpip_bench.evaluation.inductive import is_inductive
from mlpip_bench.evaluation.keeping import to_keep
from mlpip_bench.evaluation.predict import predict
from mlpip_bench.evaluation.protocol import (
    Contender,
    EvalProtocol,
    Evaluation,
    MeasurementRule,
    SideBySideProtocol,
    compiled_for_tests,
)
from mlpip_bench.evaluation.recalibration import at_an_end, fitted_temperature, recalibrated
from mlpip_bench.execution.fingerprint import NUMBERS_VERSION, engine_code, requirements
from mlpip_bench.execution.logs import TrialLog
from mlpip_bench.execution.starting import begin
from mlpip_bench.execution.trial import Trial
from mlpip_bench.inference.method import Method
from mlpip_bench.records.predictions import OfTrial, Predictions, Split, save, stem
from mlpip_bench.records.record import Model, PredictionsFile, Record, Scores
from mlpip_bench.tasks.stream import Stream
from mlpip_bench.training.checkpoints import State, TrainingState, add_environment, iterations_done, load_checkpoint
from mlpip_bench.training.loop import train
from mlpip_bench.training.steps import uses_graph
from mlpip_bench.utils.choices import Log
from mlpip_bench.utils.device import environment
from mlpip_bench.utils.errors import TrialError, UserError, message_in_one_line, one_line
from mlpip_bench.utils.numerics import SCORED
from mlpip_bench.utils.places import is_place
from mlpip_bench.utils.progress import Reporter
from mlpip_bench.utils.settings import as_json


def train_and_measure(
    trial: Trial,
    protocols: Sequence[str],
    folder: Path,
    reporter: Reporter,
    *,
    afresh: bool,
    predictions: bool = False,
    log: Log | None = None,
) -> Iterator[Record]:
    """Train, from the last checkpoint if there is one, then measure by protocols that measure one model.

    Args:
        trial: what is trained.
        protocols: what is measured; may be none.
        folder: of the results.
        reporter: shows bars.
        afresh: whether to train again where training is complete.
        predictions: whether to keep the predictions that the records are made of, in a file that is written first.
        log: library that logs training and scores.

    Yields:
        A record a protocol, as soon as it is measured, to be kept at once.

    Raises:
        TrialError: training stopped, or a protocol failed, after the records of the others.
        UserError: a checkpoint is damaged or cannot be written.
    """
    with TrialLog(log, trial, folder, reporter) as opened:
        method, trained, streams = train_trial(trial, folder, reporter, afresh=afresh, log=opened)
        failed: dict[str, BaseException] = {}
        made: list[Record] = []
        with SCORED.applied():
            began = time.monotonic()
            method = compiled_for_tests(method, trial.numerics)
            keeps = predictions and not trial.recalibrated  # which are made of those of its companion
            found: dict[tuple[Split, int], Predictions] | None = {} if keeps else None
            of_all: tuple[bool, PredictionsFile | None] | None = None
            for measured in _measure(trial, method, trained, streams, protocols, reporter, found, failed):
                if of_all is None:
                    kept = _keep(trial, found, folder, reporter) if found else None
                    of_all = is_inductive(method, streams["test"].batch(0, 1)), kept
                inductive, kept = of_all
                for name, scores in measured.items():
                    record = make_record(trial, method, trained, name, scores, inductive, time.monotonic() - began, {})
                    made.append(dataclasses.replace(record, predictions=kept))
                    yield made[-1]
            method.load_state_dict(trained.best_model)  # which the method holds from here on
        for record in made:
            opened.scores(record)
        if failed:  # the records of the others are written by now
            messages = (f"protocol {name}: {message_of(error)}" for name, error in failed.items())
            raise TrialError("; ".join(messages)) from next(iter(failed.values()))


def train_trial(
    trial: Trial, folder: Path, reporter: Reporter, *, afresh: bool, log: TrialLog | None = None
) -> tuple[Method[Any], TrainingState, dict[str, Stream]]:
    """Train a trial's method, from the last checkpoint if there is one.

    Args:
        trial: what is trained.
        folder: of the results, for the checkpoint.
        reporter: shows a bar.
        afresh: whether to train again where training is complete.
        log: shows how training goes; None for none.

    Returns:
        The method, which holds the last model; how training went; and the task streams.

    Raises:
        TrialError: training stopped.
        UserError: a checkpoint is damaged or cannot be written.
    """
    streams = trial.streams()
    checkpoint = trial.checkpoint(folder)
    start = iterations_done(checkpoint, trial.training_key)
    if afresh and start == trial.plan.iterations:
        checkpoint.unlink(missing_ok=True)  # an unfinished one belongs to this very command, which was interrupted
        start = 0
    begun = checkpoint.exists()
    method, pretraining = (trial.build_method(), {}) if begun else begin(trial, streams, folder, reporter)
    if log is not None and start < trial.plan.iterations:
        log.begin(start, streams)
    here = _where(trial)
    if 0 < start < trial.plan.iterations:
        reporter.say(f"{trial.title}: goes on from iteration {start}")
        if changed := add_environment(load_checkpoint(checkpoint), here):
            reporter.say(f"{trial.title}: goes on elsewhere, and its record says so: {', '.join(changed)}")
    with (
        trial.numerics.applied(),
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
            key=trial.training_key,
            environment=here,
            pretraining=pretraining,
            graph=trial.numerics.graph,
            say=lambda message: reporter.say(f"{trial.title}: {message}"),
            step=step,
            log=None if log is None else log.points,
        )
    return method, trained, streams


def _where(trial: Trial) -> dict[str, Any]:
    """What numbers of training depend on, of the machine and the code."""
    found = environment(trial.device)
    graph = {"graph": trial.numerics.graph} if uses_graph(trial.numerics.graph, trial.device) else {}
    named = {name: found[name] for name in ("torch", "numba", "threads", "processor", "gpu")}
    return {**named, **graph, "build": engine_code()}


def measure_side_by_side(
    name: str, trials: Sequence[Trial], failed: dict[str, BaseException], folder: Path, reporter: Reporter
) -> list[Record]:
    """Measure the trained models of some trials at once, by a protocol that does so.

    Args:
        name: of the protocol.
        trials: that are trained.
        failed: comes to hold why models could not be measured, by the keys of their trials.
        folder: of the results, for the checkpoints.
        reporter: shows bars.

    Returns:
        The records of the others.
    """
    began = time.monotonic()
    contenders: dict[Trial, tuple[Contender, TrainingState]] = {}
    for trial in trials:
        state = load_checkpoint(trial.checkpoint(folder), trial.training_key)
        try:
            build = functools.partial(_built, trial, state.best_model)
            method = compiled_for_tests(build(), trial.numerics)
            contenders[trial] = Contender(trial.title, method, trial.plan, trial.streams(), build), state
        except (Exception, SystemExit) as error:  # one that fails takes no other with it
            failed[trial.key] = error
    protocol = trials[0].protocol(name)  # one, with its settings, for all trials of a run
    assert isinstance(protocol, SideBySideProtocol)  # that is what these trials are grouped by
    with trials[0].numerics.applied():  # one for all trials of a run
        measured = protocol.measure([contender for contender, _ in contenders.values()], reporter)
        seconds = time.monotonic() - began
        session = {"session": datetime.now(UTC).isoformat(sep=" ")}
        records = []
        for (trial, (contender, state)), scores in zip(contenders.items(), measured, strict=True):
            if isinstance(scores, BaseException):
                failed[trial.key] = scores
                continue
            alone = is_inductive(contender.method, contender.streams["test"].batch(0, 1))
            records.append(make_record(trial, contender.method, state, name, scores, alone, seconds, session))
        return records


def _built(trial: Trial, state: State) -> Method[Any]:
    """A trial's method, built anew, with a state of its parameters and buffers."""
    method = trial.build_method()
    method.load_state_dict(state)
    return method


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
    iterations = trained.iteration if method.learns else 0
    return Record(
        key=trial.record_key(protocol),
        bench=trial.measured_as,
        method=trial.method,
        protocol=protocol,
        seed=trial.seed,
        device=trial.device.type,
        inductive=inductive,
        config=trial.config | settings_of(trial, protocol),
        data=trial.data_facts,
        backbone=trial.backbone_facts,
        scores=tuple(scores),
        parameters=method.parameter_count,
        training={
            "iterations": iterations,
            "tasks_seen": iterations * trial.plan.tasks_per_batch,
            "seconds": trained.seconds,
            "best_iteration": trained.best_iteration,
            "chosen": {name: iteration for name, (iteration, _) in _chosen(trial, trained).items()},
            "history": trained.history,
            "history_seconds": [trained.seconds_at.get(int(entry["iteration"])) for entry in trained.history],
            **({"environments": trained.environments} if len(trained.environments) > 1 else {}),
            **({"pretraining": trained.pretraining} if trained.pretraining else {}),
            **({"outside": True} if trained.pretraining and not (iterations or trial.pretraining) else {}),
            **({"swept": sorted(trial.swept)} if trial.swept else {}),
        },
        seconds=seconds,
        environment={**environment(trial.device), "code": code_facts(trial, protocol), **session},
    )


def settings_of(trial: Trial, protocol: str) -> dict[str, Any]:
    """What a record's configuration says of the protocol's own settings; nothing where all are at their defaults."""
    settings = trial.protocol_settings.get(protocol)
    return {} if settings is None else {"protocol_settings": as_json(settings)}


def code_facts(trial: Trial, protocol: str) -> dict[str, Any]:
    """What a record says of the code that made it: of the suite's, and of plugins of other packages."""
    others = {f"protocol {name}" for name in trial.protocols if name != protocol}
    own = {plugin: code for plugin, code in trial.code.items() if plugin not in others}
    place = registry.place_of(trial.method)
    packages = [requirements(*plugin.split(" ", 1)) for plugin in own]  # type: ignore[arg-type]
    return {
        "numbers": NUMBERS_VERSION,
        "build": engine_code(),
        **({"place": place} if is_place(place) else {}),
        **({"plugins": own, "packages": {k: v for found in packages for k, v in found.items()}} if own else {}),
    }


def message_of(error: BaseException) -> str:
    """The message of a failure."""
    if isinstance(error, TrialError):
        return message_in_one_line(error)
    message = one_line(error)
    if isinstance(error, MemoryError) or any(words in message for words in ("can't allocate memory", "out of memory")):
        return (
            "it takes more memory than there is; fewer samples, a smaller tasks_per_batch or train_queries, and fewer "
            f"--jobs take less ({message})"
        )
    return message


def _measure(
    trial: Trial,
    method: Method[Any],
    trained: TrainingState,
    streams: Mapping[str, Stream],
    protocols: Sequence[str],
    reporter: Reporter,
    kept: dict[tuple[Split, int], Predictions] | None,
    failed: dict[str, BaseException],
) -> Iterator[dict[str, list[Scores]]]:
    """By protocol, the scores of the models that validation chose and of the last, as soon as they are complete.

    A score is of the model that its metric chooses by, so accuracy and NLL may be of two models of one training.
    Models of one iteration are one, and measured once. Predictions that the protocols ask for are added to ``kept``,
    with those of the validation tasks, before any scores are given; what failed is added to ``failed``.
    """
    scores: dict[str, list[Scores]] = {name: [] for name in protocols}
    chosen = _chosen(trial, trained)
    first = next(iter(chosen))
    by_metric = {
        name: {m.name: m.chosen_by if m.chosen_by in chosen else first for m in registry.protocol(name).metrics}
        for name in protocols
    }
    states = {iteration: state for iteration, state in chosen.values() if iteration != trained.iteration}
    states[trained.iteration] = trained.model  # after the others: with its scores all are complete
    for iteration, state in states.items():
        method.load_state_dict(state)
        last = iteration == trained.iteration
        which: Model = "best" if iteration in dict(chosen.values()) else "last"
        tested, detail = method, {}
        if trial.recalibrated:
            temperature = fitted_temperature(method, streams["validation"], trial.plan.validation_tasks)
            tested, detail = recalibrated(method, temperature), {"temperature": (temperature,)}
            if at_an_end(temperature):
                reporter.say(f"{trial.title}: its temperature, {temperature:.3g}, is at an end of what is searched")
        evaluation = Evaluation(tested, which, streams["test"], trial.plan.test_tasks, reporter, trial.title)
        complete: dict[str, list[Scores]] = {}
        waits = kept is not None  # for predictions, which the first protocol that needs them makes
        for name in [n for n in protocols if n not in failed]:
            if not last and iteration not in {chosen[by][0] for by in by_metric[name].values()}:
                continue
            try:
                found = scores_of(trial.protocol(name), evaluation)
            except UserError:
                raise
            except (Exception, SystemExit) as error:  # one that fails takes no other with it
                failed[name] = error
                continue
            for score in (dataclasses.replace(s, detail={**s.detail, **detail}) for s in found):
                by = by_metric[name].get(score.metric, first)
                if chosen[by][0] == iteration:
                    scores[name].append(dataclasses.replace(score, model="best", chosen_by=by))
                if last:
                    scores[name].append(dataclasses.replace(score, model="last", chosen_by=""))
            if last:
                complete[name] = scores[name]
            if kept is not None and waits and "predictions" in vars(evaluation):
                kept.update(_predictions(trial, evaluation, iteration, streams, reporter))
                waits = False
            if complete and not waits:
                yield complete
                complete = {}
        if complete:
            yield complete


def _predictions(
    trial: Trial, evaluation: Evaluation, iteration: int, streams: Mapping[str, Stream], reporter: Reporter
) -> dict[tuple[Split, int], Predictions]:
    """The predictions of an evaluation that can be kept, and those of the validation tasks."""
    method = evaluation.method
    if method.problem.kind == "reconstruction":
        return {}
    validation = predict(method, streams["validation"], trial.plan.validation_tasks)
    both: dict[Split, Any] = {"test": evaluation.predictions, "validation": validation}
    try:
        return {(split, iteration): to_keep(found, streams[split]) for split, found in both.items()}
    except ValueError as error:
        reporter.say(f"{trial.title}: the predictions of its model of iteration {iteration} are not kept: {error}")
        return {}


def _keep(trial: Trial, found: OfTrial, folder: Path, reporter: Reporter) -> PredictionsFile | None:
    """Write predictions next to the records that are made of them."""
    try:
        return save(found, trial.record_path(folder, "").parent, stem(trial.seed, trial.training_key))
    except ValueError as error:
        reporter.say(f"{trial.title}: {error}; they are not kept")
        return None


def _chosen(trial: Trial, trained: TrainingState) -> dict[str, tuple[int, State]]:
    """Iteration and state of the model that each metric of validation chose, that of the first metric first."""
    first = trial.family.validation_metrics[0].name
    others = {name: (best["iteration"], best["model"]) for name, best in trained.best_by.items()}
    return {first: (trained.best_iteration, trained.best_model), **others}


def scores_of(protocol: MeasurementRule, evaluation: Evaluation) -> list[Scores]:
    """What a protocol gives; raises whatever it raises, and TrialError for what are not scores of the test tasks."""
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
