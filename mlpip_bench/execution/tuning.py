"""A tuned trial: random draws from a method's search space, of which validation chooses the one that is tested."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlpip_bench.execution.config import RunConfig
from mlpip_bench.execution.logs import TrialLog
from mlpip_bench.execution.measuring import train_and_measure, train_trial
from mlpip_bench.execution.trial import Trial, Tuning
from mlpip_bench.records.record import Record
from mlpip_bench.training.checkpoints import TrainingState, load_checkpoint
from mlpip_bench.utils.choices import Log
from mlpip_bench.utils.errors import TrialError, UserError, unknown_name
from mlpip_bench.utils.locks import locked
from mlpip_bench.utils.progress import Reporter
from mlpip_bench.utils.settings import as_json


def tuned(trial: Trial, config: RunConfig) -> Trial:
    """The tuned companion of a trial, which is its draw 0; what a user has set is not drawn.

    Raises:
        UserError: validation has no such metric, or nothing is left to draw.
    """
    assert config.tune is not None
    metrics = [metric.name for metric in trial.family.validation_metrics]
    select = config.select or metrics[0]
    if select not in metrics:
        raise unknown_name(f"metric of --select, of validation on {trial.bench.name},", select, metrics)
    fixed = {**config.overrides.get("*", {}), **config.overrides.get(trial.method, {})}
    space = {name: choice for name, choice in trial.plugin.search_space.items() if name not in fixed}
    if not space:
        raise UserError(
            f"--tune draws settings of each method; all that {trial.method} declares are set: "
            f"{', '.join(trial.plugin.search_space) or 'it declares none'}. Leave --set out, or --tune."
        )
    return dataclasses.replace(trial, protocols=trial.protocols_of_one_model, tuning=Tuning(config.tune, select, space))


def tune_and_measure(
    trial: Trial,
    protocols: Sequence[str],
    folder: Path,
    reporter: Reporter,
    *,
    afresh: bool,
    predictions: bool,
    log: Log | None = None,
) -> Iterator[Record]:
    """Train all draws, each from its own checkpoint, and measure the one that is best on validation.

    No draw sees a test task before it is chosen. One that diverges is a draw without a score.

    Args:
        trial: with a tuning.
        protocols: what is measured of the chosen draw.
        folder: of the results.
        reporter: shows bars.
        afresh: whether to train again what is trained.
        predictions: whether to keep predictions.
        log: library that logs each draw's training, and the scores of the chosen one.

    Yields:
        A record a protocol, whose training counts all draws.

    Raises:
        TrialError: all draws failed, or a protocol did.
        UserError: a checkpoint is damaged or cannot be written.
    """
    tuning = trial.tuning
    assert tuning is not None
    draws, notes = [trial.draw(number) for number in range(tuning.draws)], []
    for draw in draws:
        with locked(draw.path(folder, "locks", ".lock"), wait=True):
            notes.append(_trained(draw, tuning, folder, reporter, afresh=afresh, log=log))
    scored = [number for number, note in enumerate(notes) if note["score"] is not None]
    if not scored:
        raise TrialError(f"all {tuning.draws} draws failed; the first: {notes[0]['error']}")
    best = _best_of(trial, tuning)(scored, key=lambda number: notes[number]["score"])  # the first of equal ones
    chosen = dataclasses.replace(draws[best], protocols=trial.protocols)
    counted = {
        "seconds": sum(note["seconds"] for note in notes),
        "tasks_seen": sum(note["iterations"] for note in notes) * trial.plan.tasks_per_batch,
        "tuning": {
            **tuning.as_json(),
            "default": {name: _value(trial, name) for name in tuning.space},
            "chosen": best,
            "tried": notes,
        },
    }
    with locked(chosen.path(folder, "locks", ".lock"), wait=True):
        for record in train_and_measure(
            chosen, protocols, folder, reporter, afresh=False, predictions=predictions, log=log
        ):
            yield dataclasses.replace(
                record,
                key=trial.record_key(record.protocol),
                config={**record.config, "tuned": tuning.in_words},
                training={**record.training, **counted},
            )


def _trained(
    draw: Trial, tuning: Tuning, folder: Path, reporter: Reporter, *, afresh: bool, log: Log | None
) -> dict[str, Any]:
    """Train a draw; its values, its validation score (None where it diverged), and what it took."""
    error, state = "", None
    try:
        with TrialLog(log, draw, folder, reporter) as opened:
            _, state, _ = train_trial(draw, folder, reporter, afresh=afresh, log=opened)
    except TrialError as failed:
        error = str(failed)
        reporter.say(f"{draw.title}: {error}")
    checkpoint = draw.checkpoint(folder)
    reached = state or (load_checkpoint(checkpoint) if checkpoint.exists() else None)
    return {
        "values": {name: _value(draw, name) for name in tuning.space},
        "score": None if state is None else _score(state, draw, tuning),
        "seconds": reached.seconds if reached else 0.0,
        "iterations": reached.iteration if reached else 0,
        **({"error": error} if error else {}),
    }


def _score(state: TrainingState, draw: Trial, tuning: Tuning) -> float | None:
    """The best validation of a draw, which is that of the model whose scores are chosen by the metric."""
    found = [entry[tuning.select] for entry in state.history if tuning.select in entry]
    score: float | None = _best_of(draw, tuning)(found, default=None)
    return score


def _best_of(trial: Trial, tuning: Tuning) -> Callable[..., Any]:
    """``max`` or ``min``: which way the metric is good."""
    (better,) = (metric.better for metric in trial.family.validation_metrics if metric.name == tuning.select)
    return max if better == "higher" else min


def _value(trial: Trial, name: str) -> Any:
    """A setting as a JSON value."""
    settings: Mapping[str, Any] = {**as_json(trial.plan), **as_json(trial.settings)}
    return settings[name]
