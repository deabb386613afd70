"""One meta-training loop for all methods, which can be killed at any moment and goes on as if it had not been."""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mlpip_bench.evaluation.metrics import Metric
from mlpip_bench.evaluation.predict import ZeroProbabilityError, predict, score
from mlpip_bench.inference.method import Method, TrainingPlan
from mlpip_bench.nn.backbone import Backbone
from mlpip_bench.tasks.stream import Stream, batches
from mlpip_bench.training.checkpoints import TrainingState, add_environment, load_checkpoint, restore, save_checkpoint
from mlpip_bench.training.steps import optimizer_of, step_of
from mlpip_bench.utils import interrupts
from mlpip_bench.utils.choices import Graph
from mlpip_bench.utils.errors import TrialError, UserError
from mlpip_bench.utils.numerics import SCORED
from mlpip_bench.utils.progress import Quiet, Step
from mlpip_bench.utils.seeding import seed_from

Points = Mapping[int, Mapping[str, float]]
"""What there is to see of a training: values by name, by the iterations done."""

_CHECKPOINT_SECONDS = 20.0
_STEPS_BETWEEN_READS = {"cuda": 50}
"""Of losses, each of which a GPU would otherwise have to be waited for; 1 elsewhere."""
_ADVICE = (
    "a lower learning rate, a lower rate of the method's inner steps, or its defaults where they were set, helps "
    "(--set METHOD.NAME=VALUE)"
)


def train(
    method: Method[Any],
    plan: TrainingPlan,
    training: Stream,
    validation: Stream,
    *,
    metrics: Sequence[Metric],
    seed: int,
    checkpoint: Path,
    key: str = "",
    environment: Mapping[str, Any] | None = None,
    pretraining: Mapping[str, Any] | None = None,
    graph: Graph = "off",
    say: Callable[[str], object] | None = None,
    step: Step | None = None,
    log: Callable[[Points], object] | None = None,
    advice: str = _ADVICE,
) -> TrainingState:
    """Meta-train a method, from the last checkpoint if there is one.

    An iteration is a function of the state before it and of its number alone: its tasks come from a
    fixed stream and its noise from a seed of its own. So a resumed run gives the numbers of an
    uninterrupted one, on a CPU bit for bit. Where there is nothing to train, or no iteration is asked for, the model is
    prepared and validated once: no step is taken, and no running average moves.

    Args:
        method: on its device; holds the last state afterward.
        plan: budget and optimizer.
        training: training tasks, read from the start.
        validation: validation tasks, the same ones each time.
        metrics: what validation measures; the first chooses the best model, and each further one another.
        seed: training seed.
        checkpoint: file that is written every 20 seconds, at each validation, at the end, and before a signal ends it.
        key: hash of all that decides the trained model; a checkpoint of another key is refused.
        environment: what the checkpoint is to say of the machine from here on.
        pretraining: what the checkpoint is to say of what was trained before.
        graph: whether a step is a CUDA graph, as of :class:`~mlpip_bench.utils.numerics.Numerics`.
        say: called with a message for the user.
        step: called with the iterations done, the loss and the last validation.
        log: called after each writing of the checkpoint with what came since the last one, so that a training which
            goes on from it repeats nothing; its time is no part of the training's.
        advice: what helps where the training diverges.

    Raises:
        TrialError: loss, gradient or parameters are not finite (the checkpoint is the last good one), or
            the loss is no scalar with a gradient.
        UserError: the checkpoint is damaged, does not fit, or cannot be written.
    """
    optimizer = optimizer_of(method, plan)
    state = load_checkpoint(checkpoint, key) if checkpoint.exists() else _start(method, optimizer, key, pretraining)
    restore(state, checkpoint, method, optimizer)
    if state.iteration > plan.iterations:
        raise UserError(
            f"a checkpoint is of at most the iterations of its trial, {plan.iterations}; {checkpoint} is of "
            f"{state.iteration}. Delete it to train that model again from the start."
        )
    if environment is not None and state.iteration < plan.iterations:
        add_environment(state, environment)
    device = training.device
    for part in method.modules():
        if isinstance(part, Backbone):
            part.prepare(device)
    before, began = state.seconds, time.monotonic()
    saved = began

    trains = plan.iterations > 0 and method.learns
    take_step = step_of(method, optimizer, plan, graph=graph, device=device, say=say or Quiet().say)
    unread: list[tuple[int, float, Tensor]] = []
    points: defaultdict[int, dict[str, float]] = defaultdict(dict)
    value = math.nan

    def read() -> None:
        """The losses of the last steps at once: what follows an update is kept only if all are finite."""
        nonlocal value
        losses = torch.stack([loss for *_, loss in unread]).tolist() if unread else []
        for (iteration, rate, _), value in zip(unread, losses, strict=True):
            if not math.isfinite(value):
                raise TrialError(_not_finite(f"the loss ({value})", iteration, checkpoint, advice))
            points[iteration + 1] = {"training/loss": value, "training/learning_rate": rate}
        unread.clear()

    def check() -> None:
        # A gradient that is not finite shows in no loss before the next one; running statistics, which training does
        # not read, show in none.
        if not all(p.isfinite().all() for p in method.parameters()) or any(b.isnan().any() for b in method.buffers()):
            raise TrialError(_not_finite("a parameter or a statistic", state.iteration, checkpoint, advice))

    def save() -> None:
        nonlocal began, saved
        read()
        # A copy: state_dict() is a view of the live parameters.
        state.model, state.optimizer = copy.deepcopy(method.state_dict()), optimizer.state_dict()
        check()
        state.seconds = before + time.monotonic() - began
        save_checkpoint(state, checkpoint)
        written = time.monotonic()
        if log is not None and points:
            log(points)
        points.clear()
        saved = time.monotonic()
        began += saved - written

    def validate(loss: float | None) -> None:
        state.unvalidated = loss
        check()
        try:
            _validate(state, method, validation, plan.validation_tasks, metrics, loss)
        except interrupts.Interrupted:
            save()  # training goes on with this validation
            raise
        state.unvalidated = None
        seconds = state.seconds_at[state.iteration] = before + time.monotonic() - began
        entry = state.history[-1]
        means = {f"validation/{metric.name}": entry[metric.name] for metric in metrics if metric.name in entry}
        points[state.iteration] |= {"training/seconds": seconds, **means}
        save()

    # A signal waits until an iteration is done: half of one is no state that training could go on from. A validation,
    # which changes nothing of it, is left.
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), interrupts.held():
        if state.unvalidated is not None:
            validate(state.unvalidated)
        if not trains and not state.history:
            state.iteration = plan.iterations
            method.eval()
            with torch.no_grad(), SCORED.applied():
                method.prepare(training)
            validate(None)
        while state.iteration < plan.iterations:
            torch.manual_seed(seed_from("noise", seed, state.iteration))
            method.train()
            tasks = list(batches(training, state.iteration * plan.tasks_per_batch, plan.tasks_per_batch))
            rate = plan.rate(state.iteration)
            unread.append((state.iteration, rate, take_step(tasks, rate)))
            if len(unread) >= _STEPS_BETWEEN_READS.get(device.type, 1):
                read()
            state.iteration += 1
            last = state.iteration == plan.iterations
            if last or state.iteration % plan.validate_every == 0:
                read()
                validate(value)
            elif time.monotonic() - saved > _CHECKPOINT_SECONDS:
                save()
            if step is not None:
                step(state.iteration, f"loss {value:.3f} {_latest(state, metrics[0])}")
            if interrupts.pending():
                save()
                interrupts.check()
    return state


def _start(
    method: Method[Any], optimizer: torch.optim.Optimizer, key: str, pretraining: Mapping[str, Any] | None
) -> TrainingState:
    return TrainingState(0, method.state_dict(), optimizer.state_dict(), key=key, pretraining=dict(pretraining or {}))


def _validate(
    state: TrainingState,
    method: Method[Any],
    stream: Stream,
    tasks: int,
    metrics: Sequence[Metric],
    loss: float | None,
) -> None:
    predictions = predict(method, stream, tasks, lambda _done, _note="": interrupts.check())
    means = {}
    for metric in metrics:
        with contextlib.suppress(ZeroProbabilityError):  # such a model is without that metric, and trained on
            means[metric.name] = math.fsum(score(metric, predictions)) / tasks
    trained = {} if loss is None else {"loss": loss}
    state.history.append({"iteration": state.iteration, **trained, **means})
    model = copy.deepcopy(method.state_dict())
    signs = {metric.name: 1 if metric.better == "higher" else -1 for metric in metrics}
    scores = {name: sign * means[name] if name in means else -math.inf for name, sign in signs.items()}
    first, *others = scores
    if not state.best_model or scores[first] > state.best_score:
        state.best_model, state.best_iteration, state.best_score = model, state.iteration, scores[first]
    for name in others:
        if name not in state.best_by or scores[name] > state.best_by[name]["score"]:
            state.best_by[name] = {"model": model, "iteration": state.iteration, "score": scores[name]}


def _latest(state: TrainingState, metric: Metric) -> str:
    """The last validation, for the progress bar."""
    if not state.history:
        return ""
    value = state.history[-1].get(metric.name, math.nan)
    return f"val {metric.name} {value:.1%}" if metric.unit == "fraction" else f"val {metric.name} {value:.3f}"


def _not_finite(what: str, iteration: int, checkpoint: Path, advice: str) -> str:
    kept = f"its last good checkpoint is {checkpoint}" if checkpoint.exists() else "there is no checkpoint yet"
    return f"{what} is not finite at iteration {iteration}; {kept}. Training stops here; {advice}."
