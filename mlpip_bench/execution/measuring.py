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
from mlpip_bench.evaluation.metrics import VALIDATION
from mlpip_bench.evaluation.protocol import Contender, EvalProtocol, Evaluation, SideBySideProtocol, compile_for_tests
from mlpip_bench.execution.fingerprint import engine_code
from mlpip_bench.execution.trial import Cell, build_method, streams_of
from mlpip_bench.inference.method import Method
from mlpip_bench.records.record import Model, Record, Scores
from mlpip_bench.tasks.stream import Stream
from mlpip_bench.training.checkpoints import State, TrainingState, iterations_done, load_checkpoint
from mlpip_bench.training.loop import train
from mlpip_bench.utils.device import environment
from mlpip_bench.utils.errors import CellError, UserError, one_line
from mlpip_bench.utils.progress import Reporter


def train_and_measure(
    cell: Cell, protocols: Sequence[str], folder: Path, reporter: Reporter, *, afresh: bool
) -> Iterator[Record]:
    """Train, from the last checkpoint if there is one, then measure by protocols that measure one model.

    Args:
        cell: what is trained.
        protocols: what is measured; may be none.
        folder: of the results.
        reporter: shows bars.
        afresh: whether to train again where training is complete.

    Yields:
        A record a protocol, to be kept at once.

    Raises:
        CellError: training stopped, or a protocol failed, after the records of the others.
        UserError: a checkpoint is damaged or cannot be written.
    """
    streams = streams_of(cell, cell.device)
    method = build_method(cell)
    checkpoint = cell.checkpoint(folder)
    start = iterations_done(checkpoint)
    if afresh and start == cell.plan.iterations:
        checkpoint.unlink()  # an unfinished one belongs to this very command, which was interrupted
        start = 0
    if 0 < start < cell.plan.iterations:
        reporter.say(f"{cell.title}: goes on from iteration {start}")
    with cell.numerics.applied(cell.device):
        with reporter.stage(f"{cell.title}: training", cell.plan.iterations, start) as step:
            trained = train(
                method,
                cell.plan,
                streams["train"],
                streams["validation"],
                metrics=VALIDATION[cell.bench.data.kind],
                seed=cell.seed,
                checkpoint=checkpoint,
                step=step,
            )
        began = time.monotonic()
        compile_for_tests(method, cell.numerics)
        measured, failed = _measure(cell, method, trained, streams["test"], protocols, reporter)
        inductive = bool(measured) and is_inductive(method, streams["test"].batch(0, 1))
        for name, scores in measured.items():
            yield _record(cell, method, trained, name, scores, inductive, time.monotonic() - began, {})
    if failed:  # the records of the others are written by now
        told = (f"protocol {name}: {message_of(error)}" for name, error in failed.items())
        raise CellError("; ".join(told)) from next(iter(failed.values()))


def measure_side_by_side(name: str, cells: Sequence[Cell], folder: Path, reporter: Reporter) -> list[Record]:
    """Measure the trained models of some cells at once, by a protocol that does so."""
    began = time.monotonic()
    states = [load_checkpoint(cell.checkpoint(folder)) for cell in cells]
    contenders = []
    for cell, state in zip(cells, states, strict=True):
        method = build_method(cell)
        method.load_state_dict(state.best_model)
        compile_for_tests(method, cell.numerics)
        contenders.append(Contender(cell.title, method, cell.plan, streams_of(cell, cell.device)))
    protocol = registry.protocol(name)()
    assert isinstance(protocol, SideBySideProtocol)  # that is what these cells are grouped by
    with cells[0].numerics.applied(cells[0].device):  # one for all cells of a run
        measured = protocol.measure(contenders, reporter)
        seconds = time.monotonic() - began
        session = {"session": datetime.now(UTC).isoformat(sep=" ")}
        inductive = [is_inductive(c.method, c.streams["test"].batch(0, 1)) for c in contenders]
        return [
            _record(cell, contender.method, state, name, scores, alone, seconds, session)
            for cell, contender, state, scores, alone in zip(
                cells, contenders, states, measured, inductive, strict=True
            )
        ]


def _record(
    cell: Cell,
    method: Method[Any],
    trained: TrainingState,
    protocol: str,
    scores: Sequence[Scores],
    inductive: bool,
    seconds: float,
    session: Mapping[str, Any],
) -> Record:
    return Record(
        key=cell.record_key(protocol),
        bench=cell.bench.name,
        method=cell.method,
        protocol=protocol,
        seed=cell.seed,
        device=cell.device.type,
        inductive=inductive,
        config=cell.config,
        data=cell.data,
        scores=tuple(scores),
        parameters=sum(p.numel() for p in method.parameters()),
        training={
            "iterations": trained.iteration,
            "tasks_seen": trained.iteration * cell.plan.tasks_per_batch,
            "seconds": trained.seconds,
            "best_iteration": trained.best_iteration,
            "history": trained.history,
        },
        seconds=seconds,
        environment={**environment(cell.device), "code": {**cell.code(protocol), "build": engine_code()}, **session},
    )


def message_of(error: BaseException) -> str:
    """What a failure is told with."""
    return str(error) if isinstance(error, CellError) else one_line(error)


def _measure(
    cell: Cell,
    method: Method[Any],
    trained: TrainingState,
    test: Stream,
    protocols: Sequence[str],
    reporter: Reporter,
) -> tuple[dict[str, list[Scores]], dict[str, BaseException]]:
    """By protocol, the scores of the best model and of the last one; and the errors of protocols that failed.

    They are measured once if the two models are one.
    """
    scores: dict[str, list[Scores]] = {name: [] for name in protocols}
    failed: dict[str, BaseException] = {}
    states: dict[Model, State] = {"best": trained.best_model, "last": trained.model}
    if trained.best_iteration == trained.iteration:
        del states["last"]
    for model, state in states.items():
        method.load_state_dict(state)
        evaluation = Evaluation(method, model, test, cell.plan.test_tasks, reporter, cell.title)
        for name in [n for n in protocols if n not in failed]:
            try:
                scores[name] += _scores(name, evaluation)
            except UserError:
                raise
            except (Exception, SystemExit) as error:  # one that fails takes no other with it
                failed[name] = error
    if "last" not in states:
        scores = {name: best + [dataclasses.replace(s, model="last") for s in best] for name, best in scores.items()}
    method.load_state_dict(trained.best_model)  # which the method holds from here on
    return {name: found for name, found in scores.items() if name not in failed}, failed


def _scores(name: str, evaluation: Evaluation) -> list[Scores]:
    """What a protocol gives; raises whatever it raises, and CellError for what are not scores of the test tasks."""
    protocol = registry.protocol(name)()
    assert isinstance(protocol, EvalProtocol)  # the others measure several models at once
    scores = protocol.measure(evaluation)
    if not (isinstance(scores, list) and scores and all(isinstance(s, Scores) for s in scores)):
        raise CellError(f"measure must return a list of Scores, and at least one; got {scores!r:.60}.")
    if uneven := [s for s in scores if len(s.per_task) != evaluation.tasks]:
        raise CellError(
            f"there must be one score for each of the {evaluation.tasks} test tasks; {uneven[0].metric} has "
            f"{len(uneven[0].per_task)}."
        )
    return scores
