"""Checks of posteriors and predictions."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from mlpip_bench.inference.distributions import Delta, to_float64
from mlpip_bench.inference.method import Method, Posterior
from mlpip_bench.inference.particles import Particles
from mlpip_bench.nn.normalization import task_statistics
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.testing.cases import (
    MANY_SAMPLES,
    QUADRATURE,
    RELABELED,
    ROUNDING,
    WAY,
    Case,
    CheckFailedError,
    seeded_loss,
)
from mlpip_bench.testing.checking import check
from mlpip_bench.testing.comparing import assert_finite, assert_same, select, spread_of


@check()
def inputs_unchanged(case: Case) -> None:
    """Amortization, prediction and loss leave the tasks as they are, which other protocols and methods use too."""
    method, batch = case.method(), case.batch()
    tensors = {
        "support.x": batch.support.x,
        "support.y": batch.support.y,
        "query.x": batch.query.x,
        "query.y": batch.query.y,
    }
    before = {name: tensor.clone() for name, tensor in tensors.items()}

    def compare(function: str) -> None:
        for name, tensor in tensors.items():
            if not torch.equal(tensor, before[name]):
                raise CheckFailedError(f"{function} changes {name} in place; let it work on a copy")

    with torch.no_grad():
        q = method.amortize(batch.support)
        compare("amortize")
        method.predictive(q, batch.query.x)
        compare("predictive")
    seeded_loss(method, batch)
    compare("loss")


@check()
def shapes(case: Case) -> None:
    """Predictive and loss have the shape (task, point) and the dtype of their input, float32 or float64."""
    batch = case.batch()
    for dtype in (torch.float64, torch.float32):
        method = case.method().to(dtype)
        support, query = (
            Labeled(p.x.to(dtype), p.y.to(dtype) if p.y.is_floating_point() else p.y, p.way)
            for p in (batch.support, batch.query)
        )
        converted = TaskBatch(support, query, classes=batch.classes)
        answer, loss = case.predict(method, converted), seeded_loss(method, converted)
        for what, value in (("densities", answer), ("the loss", loss)):
            if value.dtype != dtype:
                raise CheckFailedError(f"{what} of {dtype} input must be {dtype}; got {value.dtype}")
        assert_finite(answer, f"with {dtype} input")
    with torch.no_grad():
        to_float64(method.predictive(method.amortize(support), query.x))


@check("classification", "regression")
def probabilities(case: Case) -> None:
    """The predictive is normalized: class probabilities sum to one, a density over the reals integrates to one."""
    method, batch = case.method(), case.batch()
    with torch.no_grad():
        predictive = method.predictive(method.amortize(batch.support), batch.query.x)
        if case.kind == "classification":
            total = case.densities(predictive, batch.query).exp().sum(-1)
            return assert_same(total, torch.ones_like(total), "sum of the class probabilities")
        grid = torch.linspace(-8, 8, 1601, dtype=torch.float64)  # of arsinh y, so that tails are reached
        density = case.densities(predictive, batch.query, grid.sinh().tolist()).exp()
        total = torch.trapezoid(density * grid.cosh(), grid)
        # A narrow density far from zero falls between the points of the grid.
        return assert_same(total, torch.ones_like(total), "integral of the density", 2e-2)


@check()
def posterior(case: Case) -> None:
    """Amortization gives a finite torch Distribution over psi, whose first batch dimension is the task."""
    method, batch = case.method(), case.batch()
    with torch.no_grad():
        q = method.amortize(batch.support)
    if not isinstance(q, Posterior):
        raise CheckFailedError(f"amortize must return a Posterior; got a {type(q).__name__}")
    if not isinstance(q.psi, Distribution):
        raise CheckFailedError(f"psi must be a torch Distribution; got a {type(q.psi).__name__}")
    if q.psi.batch_shape[:1] != (batch.support.tasks,):
        raise CheckFailedError(
            f"the batch shape of psi must begin with the {batch.support.tasks} tasks; got {tuple(q.psi.batch_shape)}"
        )
    if not q.psi.mean.isfinite().all():
        raise CheckFailedError("the mean of psi is not finite")


@check()
def batch_of_tasks(case: Case) -> None:
    """A task's predictions do not depend on the tasks that share its batch."""
    for norm in case.norms:
        method, batch = case.method(norm), case.batch()
        together = case.predict(method, batch)
        for t in range(batch.support.tasks):
            alone = case.predict(method, batch.task(t))
            assert_same(alone[0], together[t], f"norm {norm}, a task alone and in a batch", case.rounding)


@check()
def queries_independent(case: Case) -> None:
    """A query's prediction does not depend on the other queries, unless the norm is transductive."""
    for norm in case.norms:
        if norm == "transductive":
            continue
        method, batch = case.method(norm), case.batch()
        with torch.no_grad():
            q = method.amortize(batch.support)
            together = case.answer(method, q, batch.query)
            alone = [case.answer(method, q, select(batch.query, [i])) for i in range(batch.query.y.shape[1])]
        assert_same(torch.cat(alone, 1), together, f"norm {norm}, queries one at a time and together", case.rounding)


@check()
def query_order(case: Case) -> None:
    """Queries have no order: in every norm, to permute a task's queries permutes its predictions."""
    order = torch.tensor([4, 0, 3, 5, 1, 2])
    for norm in case.norms:
        method, batch = case.method(norm), case.batch()
        with torch.no_grad():
            q = method.amortize(batch.support)
            in_order = case.answer(method, q, batch.query)
            permuted = case.answer(method, q, select(batch.query, order))
        assert_same(permuted, in_order[:, order], f"norm {norm}, queries in another order", case.rounding)


@check()
def support_order(case: Case) -> None:
    """The order of the support points is irrelevant."""
    method, batch = case.method(), case.batch()
    order = torch.tensor([4, 0, 3, 5, 1, 2])
    shuffled = TaskBatch(select(batch.support, order), batch.query)
    assert_same(
        case.predict(method, shuffled), case.predict(method, batch), "support points in another order", case.rounding
    )


@check()
def support_counts(case: Case) -> None:
    """Every support point counts: q, and with it the predictions, change with each of them."""
    method, batch, other = case.method("layer"), case.batch(), case.batch(seed=1)  # "layer" lets no point leak
    before = case.predict(method, batch)
    for i in range(batch.support.y.shape[1]):
        x, y = batch.support.x.clone(), batch.support.y.clone()
        x[:, i], y[:, i] = other.support.x[:, i], other.support.y[:, i]
        after = case.predict(method, TaskBatch(Labeled(x, y, batch.support.way), batch.query))
        if float((after - before).abs().amax((1, 2)).min()) < ROUNDING:
            raise CheckFailedError(f"another support point {i} changes no prediction")


@check("classification")
def class_relabeling(case: Case) -> None:
    """Classes have no order: relabeling them relabels the predictions."""
    # Fixed points are not symmetric between classes, so that labels must not say which class has which dimension. The
    # number of samples is the default one: more of them would hide it.
    method, batch = case.method(), case.batch(tasks=1)
    new = torch.tensor([2, 0, 1])
    renamed = Labeled(batch.support.x, new[batch.support.y], WAY)
    with torch.no_grad():
        exact = isinstance(method.amortize(batch.support).psi, Delta)
    relabeled = case.predict(method, TaskBatch(renamed, batch.query))[..., new]
    assert_same(relabeled, case.predict(method, batch), "relabeled classes", case.rounding if exact else RELABELED)


@check()
def way_and_shot(case: Case) -> None:
    """Way and shots at test may differ from training."""
    method = case.method()
    for way, shots in ((2, 1), (3, 3), (6, 2)):
        batch = case.batch(way=way, shots=shots)
        answer = case.predict(method, batch)
        assert_finite(answer, f"way {way}, {shots} shots")
        if case.kind == "classification":
            total = answer.sum(-1)
            assert_same(total, torch.ones_like(total), f"way {way}, {shots} shots, sum of the class probabilities")


@check("classification")
def unequal_shots(case: Case) -> None:
    """Classes of one task may have different numbers of shots, in any order."""
    method, batch = case.method(), case.batch(shots=3)
    answers = []
    for keep in ([0, 3, 4, 6, 7, 8], [4, 8, 0, 7, 3, 6]):
        answer = case.predict(method, TaskBatch(select(batch.support, keep), batch.query))
        assert_finite(answer, "1, 2 and 3 shots")
        answers.append(answer)
    assert_same(
        answers[0].sum(-1), torch.ones_like(answers[0][..., 0]), "1, 2 and 3 shots, sum of the class probabilities"
    )
    assert_same(answers[1], answers[0], "1, 2 and 3 shots in another order", case.rounding)


@check()
def predictive_integrates(case: Case) -> None:
    """The predictive averages the likelihood over all of q, its spread included, and is no plug-in of its mean."""
    method, batch = case.method("layer", eval_samples=MANY_SAMPLES), case.batch(tasks=1)
    plain = case.method("layer", eval_samples=8)  # of a q that is a point
    with torch.no_grad():
        if isinstance(plain.amortize(batch.support).psi, Particles):
            _mean_over_particles(case, plain, batch)
            return
        q = method.amortize(batch.support)
        # Wide, so that the spread matters, and so that a variance is not taken for a standard deviation.
        q = dataclasses.replace(q, psi=spread_of(q.psi, 4 * q.psi.mean, 4.0))

        def seen(of: Method[Any], q: Posterior[Any]) -> Tensor:
            """Densities; images where those underflow."""
            predictive = of.predictive(q, batch.query.x)
            if case.kind == "reconstruction":
                return predictive.mean.flatten(2)
            return case.densities(predictive, batch.query).exp()

        got = seen(method, q)
        draws = []
        for _ in range(400):
            at_a_draw = dataclasses.replace(q, psi=spread_of(q.psi, q.psi.sample(), 1e-9))
            draws.append(seen(plain, at_a_draw))
    std, expected = torch.std_mean(torch.stack(draws), 0)
    explained = 5 * std / math.sqrt(len(draws)) + QUADRATURE
    worst = int(((got - expected).abs() / explained).argmax())
    difference, allowed = float((got - expected).abs().flatten()[worst]), float(explained.flatten()[worst])
    if not difference <= allowed:
        raise CheckFailedError(
            f"it differs from the average over {len(draws)} draws of psi by {difference:.2g}, "
            f"where {allowed:.1g} can be explained"
        )


def _mean_over_particles(case: Case, method: Method[Any], batch: TaskBatch) -> None:
    """An empirical q is integrated exactly: densities are the mean of those that each particle has alone."""
    q = method.amortize(batch.support)
    generator = torch.Generator().manual_seed(0)  # far from one another, so that it matters whose they are
    values = q.psi.values + 0.5 * torch.randn(q.psi.values.shape, generator=generator, dtype=torch.float64)

    def densities(particles: slice) -> Tensor:
        statistics = q.norm_statistics
        if statistics and len(statistics[0].mean) == q.psi.count:  # each network has its own; the task is one
            statistics = task_statistics(statistics, particles)
        some = dataclasses.replace(q, psi=Particles(values[:, particles]), norm_statistics=statistics)
        return case.densities(method.predictive(some, batch.query.x), batch.query).exp()

    alone = [densities(slice(m, m + 1)) for m in range(q.psi.count)]
    assert_same(densities(slice(None)), torch.stack(alone).mean(0), "the mixture and the mean over its particles")
