"""Checks of the training objective, and of what training leaves behind."""

from __future__ import annotations

import dataclasses
import io
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal
from torch.nn.modules.batchnorm import _BatchNorm

from mlpip_bench.inference.method import Method
from mlpip_bench.tasks.batch import TaskBatch
from mlpip_bench.testing.cases import (
    NOISE_STD,
    Case,
    CheckFailedError,
    ExpectedDeviationError,
    NotApplicableError,
    seeded_loss,
    trained_parameters,
)
from mlpip_bench.testing.checking import check
from mlpip_bench.testing.comparing import (
    assert_same,
    assert_same_loss,
    attributes_of,
    global_state,
    mean_loss,
    moves_psi,
    parameters_of,
    select,
    with_task_replaced,
)
from mlpip_bench.utils.process_state import ProcessState


@check()
def loss_scalar(case: Case) -> None:
    """The loss is a finite scalar tensor, with a gradient if there is anything to train."""
    method = case.method()
    loss = seeded_loss(method, case.batch())
    if not isinstance(loss, Tensor) or loss.shape:
        came = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise CheckFailedError(f"loss must return a scalar tensor; got {came}")
    if not loss.isfinite():
        raise CheckFailedError(f"the loss is {loss.item()}")
    if trained_parameters(method) and not loss.requires_grad:
        raise CheckFailedError("the loss has no gradient")


@check()
def loss_mean_over_tasks(case: Case) -> None:
    """The loss of a batch is the mean of its tasks' losses, so that the batch size does not change the step."""
    _despite_batch_norm(case, _mean_over_tasks)


def _mean_over_tasks(case: Case, method: Method[Any]) -> None:
    batch = case.batch()
    tasks = range(batch.support.tasks)
    alone = [mean_loss(method, batch.task(t)) for t in tasks]
    mean = sum(m for m, _ in alone) / len(alone)
    variance = sum(v for _, v in alone) / len(alone) ** 2
    assert_same_loss(mean_loss(method, batch), (mean, variance), "tasks together and alone", case.rounding)
    for t in tasks:  # under the same noise, so that even a small share shows
        if seeded_loss(method, with_task_replaced(batch, case.batch(seed=1), t)).equal(seeded_loss(method, batch)):
            raise CheckFailedError(f"another task {t} does not change the loss")


@check()
def loss_mean_over_points(case: Case) -> None:
    """The loss is a mean over queries, in nats per query: to have each of them twice changes nothing."""
    _despite_batch_norm(case, _mean_over_points)


def _mean_over_points(case: Case, method: Method[Any]) -> None:
    batch = case.batch()
    twice = dataclasses.replace(batch, query=select(batch.query, list(range(batch.query.y.shape[1])) * 2))
    assert_same_loss(mean_loss(method, twice), mean_loss(method, batch), "each query twice", case.rounding)


def _despite_batch_norm(case: Case, run: Callable[[Case, Method[Any]], None]) -> None:
    """The check; where ordinary batch norm fails it, and it holds with that layer's statistics held, a deviation."""
    try:
        run(case, case.method())
    except CheckFailedError as failure:
        method = case.method()
        layers = {name: layer for name, layer in method.named_modules() if isinstance(layer, _BatchNorm)}
        if not layers:
            raise
        for layer in layers.values():
            layer.eval().train = lambda _mode=True, layer=layer: layer  # type: ignore[method-assign,misc]
        run(case, method)
        raise ExpectedDeviationError(
            f"ordinary batch norm ({', '.join(layers)}) normalizes all tasks of a batch together in training, so that "
            f"a task's loss depends on the others; with its statistics held, the check passes ({failure})"
        ) from failure


@check()
def every_parameter(case: Case) -> None:
    """Every parameter gets a finite gradient that is not zero, unless it moves psi where no prediction can see it."""
    for norm in case.norms:
        method, batch = case.method(norm), case.batch(shots=2 if norm == "running" else 1)
        parameters = parameters_of(method)
        seeded_loss(method, batch).backward()
        for name, parameter in parameters.items():
            where = f"norm {norm}, gradient of {name}"
            if parameter.grad is None:
                raise CheckFailedError(f"{where}: there is none")
            if not parameter.grad.isfinite().all():
                raise CheckFailedError(f"{where}: not finite")
            # A softmax does not see what moves the logits of all classes equally; rounding leaves it 0 or 1e-17.
            if not parameter.grad.any() and not moves_psi(parameter, method.eval(), batch.support):
                raise CheckFailedError(f"{where}: zero")


@check()
def gradient(case: Case) -> None:
    """The gradient is that of the loss, by central differences in most of several random directions of a parameter."""
    method, batch = case.method(), case.batch()
    parameters = parameters_of(method)
    seeded_loss(method, batch).backward()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in parameters.items():
        agree, differ = 0, []
        while agree <= _DIRECTIONS // 2:  # of most, since a kink may be nearer than any step
            direction = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            slope = 0.0 if parameter.grad is None else float((parameter.grad * direction).sum())
            for step in _STEPS:
                differences = _central_differences(method, batch, parameter, step * direction) / step
                if abs(slope - differences) <= 1e-3 * max(abs(slope), abs(differences)) + 1e-7:
                    agree += 1
                    break
            else:
                differ.append(f"{slope:.6g} by autograd, {differences:.6g} by finite differences")
            if len(differ) > _DIRECTIONS // 2:
                raise CheckFailedError(f"slope along {name}: {differ[0]}")


_DIRECTIONS = 5
_STEPS = (1e-6, 1e-8)
"""Of the differences: the first is free of rounding, the second of most kinks, as ReLU and max pooling have them."""


def _central_differences(method: Method[Any], batch: TaskBatch, parameter: Tensor, move: Tensor) -> float:
    """Half of what the loss changes from one side of a parameter's value to the other."""
    value, losses = parameter.detach().clone(), []
    for moved in (value + move, value - move):
        with torch.no_grad():
            parameter.copy_(moved)
        losses.append(seeded_loss(method, batch).item())
    with torch.no_grad():
        parameter.copy_(value)
    return (losses[0] - losses[1]) / 2


@check()
def training_noise(case: Case) -> None:
    """Training noise comes from torch's generator alone: the same seed gives the same loss and gradients."""
    before = random.getstate(), np.random.get_state()  # noqa: NPY002  # the global generator is what must not be used
    runs = []
    try:
        for seed in (1, 2):
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            method = case.method()
            states = random.getstate(), str(np.random.get_state())  # noqa: NPY002
            loss = seeded_loss(method, case.batch())
            if loss.requires_grad:
                loss.backward()
            if states != (random.getstate(), str(np.random.get_state())):  # noqa: NPY002
                raise CheckFailedError("the global generator of random or numpy is used")
            runs.append([loss.detach(), *(p.grad for p in trained_parameters(method).values() if p.grad is not None)])
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
    if len(runs[0]) != len(runs[1]) or not all(map(torch.equal, *runs)):
        raise CheckFailedError("two runs from the same torch seed differ")


@check()
def evaluation_fixed(case: Case) -> None:
    """Evaluation has no noise of its own: predictions do not depend on any seed."""
    method, batch = case.method(), case.batch()
    answers = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        answers.append(case.predict(method, batch))
    if not torch.equal(*answers):
        raise CheckFailedError("predictions differ between two seeds")


@check()
def evaluation_keeps_state(case: Case) -> None:
    """Evaluation leaves nothing behind: no task on the module, no changed parameter, buffer or global setting."""
    method, batch, other = case.method("running"), case.batch(), case.batch(seed=7)
    state = {name: value.clone() for name, value in method.state_dict().items()}
    outside = global_state()
    with torch.no_grad():
        q = method.amortize(batch.support)
        first = case.answer(method, q, batch.query)
    held = dict(attributes_of(method))  # what is made once, at the first use, may stay
    try:
        case.predict(method, other)
        for name, value in global_state().items():
            if value != outside[name]:
                raise CheckFailedError(f"evaluation changes {name}")
    finally:
        torch.set_default_dtype(outside["default dtype"])  # type: ignore[arg-type]
        torch.set_grad_enabled(bool(outside["autograd's mode"]))
    now = dict(attributes_of(method))
    changed = sorted(n for n in held.keys() | now.keys() if n not in held or n not in now or held[n] is not now[n])
    changed += [n for n, value in method.state_dict().items() if n not in state or not torch.equal(value, state[n])]
    if changed:
        raise CheckFailedError(
            f"evaluation changes what the module holds: {', '.join(dict.fromkeys(changed))}. What was inferred from a "
            "task belongs in the Posterior that amortize returns, and predictive must read it there: on the module, "
            "the next task's takes its place"
        )
    with torch.no_grad():
        if not torch.equal(case.answer(method, q, batch.query), first):
            raise CheckFailedError("a task's predictions change after another task")


@check()
def process_state(case: Case) -> None:
    """The process is left as it was: threads, torch's modes, signals, folder, and the functions of others."""
    before = ProcessState()
    method, batch = case.method(), case.batch()
    loss = seeded_loss(method, batch)
    if isinstance(loss, Tensor) and loss.requires_grad:
        loss.backward()
    case.predict(method.eval(), batch)
    if changed := before.set_back():
        raise CheckFailedError(f"it changes {'; '.join(changed)}")


@check()
def evaluation_without_graph(case: Case) -> None:
    """Evaluation works without autograd and leaves no graph behind, whose memory would grow."""
    method, batch = case.method(), case.batch()
    with torch.no_grad():
        q = method.amortize(batch.support)
        predictive = method.predictive(q, batch.query.x)
    for what, value in (("q(psi | D)", q.psi.mean), ("the predictive", case.densities(predictive, batch.query))):
        if value.requires_grad:
            raise CheckFailedError(f"under torch.no_grad, {what} still has a graph")


@check()
def state_round_trip(case: Case) -> None:
    """A checkpoint holds all that a trained method is: loaded into a fresh instance, it predicts the same."""
    method, batch = case.method("running"), case.batch()
    file = io.BytesIO()
    torch.save(method.state_dict(), file)
    file.seek(0)
    fresh = type(method)(method.problem, method.settings).double()
    try:
        fresh.load_state_dict(torch.load(file, weights_only=True), strict=True)
    except RuntimeError as error:
        raise CheckFailedError(
            f"a fresh instance does not take the state of a trained one, as a buffer that holds a task has it: {error}"
        ) from error
    assert_same(
        case.predict(fresh.eval(), batch),
        case.predict(method, batch),
        "a fresh instance with the same state",
        case.rounding,
    )


@check("regression")
def evidence_bound(case: Case) -> None:
    """An evidence bound stays below the exact log-evidence of D, also where training has pushed it up."""
    method, batch = case.method(most_steps=100), case.batch(shots=3)
    if not method.bounds_evidence:
        raise NotApplicableError("its loss does not claim to bound the evidence (bounds_evidence)")
    if parameters := trained_parameters(method):
        adam = torch.optim.Adam(parameters.values(), lr=0.05)
        for step in range(200):
            adam.zero_grad()
            seeded_loss(method, batch, step).backward()
            adam.step()
    mean, variance = mean_loss(method, batch)
    x, y = batch.support.x.flatten(2), batch.support.y
    with torch.no_grad():
        dimension = method.amortize(batch.support).psi.mean.shape[-1]
    x = torch.cat([x, x.new_ones(*x.shape[:2], dimension - x.shape[-1])], -1)  # psi may have a bias
    covariance = x @ x.mT + NOISE_STD**2 * torch.eye(y.shape[1], dtype=y.dtype)
    evidence = MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y).mean().item()
    bound, error = -mean * y.shape[1], math.sqrt(variance) * y.shape[1]
    if not bound - 5 * error <= evidence:
        raise CheckFailedError(f"the bound is {bound:.4g} nats, above the log-evidence {evidence:.4g}")
