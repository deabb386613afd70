"""What checks are made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

from mlpip_bench.inference.distributions import Delta
from mlpip_bench.inference.method import Method
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.testing.cases import ROUNDING, CheckFailedError, NotApplicableError, seeded_loss, trained_parameters

# -- what checks are made of -----------------------------------------------------------------------------------------


def assert_same(got: Tensor, expected: Tensor, what: str, tolerance: float = ROUNDING) -> None:
    """Equal up to a tolerance, absolute for small numbers and relative for large ones; NaN never is."""
    if got.shape != expected.shape:
        raise CheckFailedError(f"{what}: shape {tuple(got.shape)} instead of {tuple(expected.shape)}")
    worst = float(((got - expected).abs() / expected.abs().clamp(min=1)).max())
    if not worst <= tolerance:
        raise CheckFailedError(f"{what}: they differ by {worst:.2g}, where {tolerance:.1g} can be explained")


def parameters_of(method: Method[Any]) -> dict[str, nn.Parameter]:
    """The same, of a method that has some."""
    if not method.trainable:
        raise NotApplicableError("it is not trained")
    if not (found := trained_parameters(method)):
        raise NotApplicableError("no parameters")
    return found


def mean_loss(method: Method[Any], batch: TaskBatch, draws: int = 16) -> tuple[float, float]:
    """Mean of the loss over its noise, with the variance of that mean; 0 for a loss without noise."""
    losses = [seeded_loss(method, batch, seed).item() for seed in range(2)]
    if losses[0] != losses[1]:
        losses += [seeded_loss(method, batch, seed).item() for seed in range(2, draws)]
    if not all(map(math.isfinite, losses)):
        raise CheckFailedError("the loss is not finite")
    return float(np.mean(losses)), float(np.var(losses, ddof=1)) / len(losses)


def assert_same_loss(got: tuple[float, float], expected: tuple[float, float], what: str, tolerance: float) -> None:
    """Equal up to the noise of both."""
    explained = 5 * math.sqrt(got[1] + expected[1]) + tolerance * max(1.0, abs(expected[0]))
    if not abs(got[0] - expected[0]) <= explained:
        raise CheckFailedError(
            f"{what}: the loss is {got[0]:.4g} instead of {expected[0]:.4g}, where {explained:.1g} can be explained"
        )


def assert_finite(answer: Tensor, what: str) -> None:
    """No density is infinite or NaN."""
    if not answer.isfinite().all():
        raise CheckFailedError(f"{what}: a density is not finite")


def with_task_replaced(batch: TaskBatch, other: TaskBatch, task: int) -> TaskBatch:
    """The batch with one task of another one."""
    rows = [task if t == task else t + batch.support.tasks for t in range(batch.support.tasks)]
    both = TaskBatch.cat([other, batch])
    return TaskBatch(
        *(Labeled(part.x[rows], part.y[rows], part.way) for part in (both.support, both.query)),
        classes=None if both.classes is None else both.classes[rows],
    )


def select(points: Labeled, index: Any) -> Labeled:
    """Some of the points of every task."""
    return Labeled(points.x[:, index], points.y[:, index], points.way)


def moves_psi(parameter: nn.Parameter, method: Method[Any], support: Labeled) -> bool:
    """Whether q depends on a parameter."""
    with torch.no_grad():
        before = method.amortize(support).psi
        parameter.add_(0.1)
        after = method.amortize(support).psi
        parameter.sub_(0.1)
    return not (torch.equal(before.mean, after.mean) and torch.equal(before.variance, after.variance))


def spread_of(psi: Distribution, mean: Tensor, factor: float) -> Distribution:
    """The same Gaussian around another mean and with standard deviations times a factor."""
    if isinstance(psi, Independent):
        return Independent(spread_of(psi.base_dist, mean, factor), psi.reinterpreted_batch_ndims, validate_args=False)
    if isinstance(psi, MultivariateNormal):
        return MultivariateNormal(mean, scale_tril=factor * psi.scale_tril, validate_args=False)
    if isinstance(psi, Normal):
        return Normal(mean, factor * psi.scale, validate_args=False)
    if isinstance(psi, Delta):
        raise NotApplicableError("q is a point mass")
    raise NotApplicableError(f"the suite cannot change the spread of a {type(psi).__name__}")


def attributes_of(method: nn.Module) -> Iterator[tuple[str, object]]:
    """All that the module and its parts hold, and what is in their containers."""
    for path, module in method.named_modules():
        for name, value in vars(module).items():
            where = f"{path}.{name}".lstrip(".")
            if name == "_buffers":
                yield from ((f"{path}.{key}".lstrip("."), item) for key, item in value.items())
            elif isinstance(value, Mapping):
                yield from ((f"{where}[{key!r}]", item) for key, item in value.items())
            elif isinstance(value, list | tuple | set):
                yield from ((f"{where}[{index}]", item) for index, item in enumerate(value))
            else:
                yield where, value


def global_state() -> dict[str, object]:
    """What of the process a method must leave as it is."""
    return {
        "default dtype": torch.get_default_dtype(),
        "autograd's mode": torch.is_grad_enabled(),
        "number of threads": torch.get_num_threads(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "torch's generator": torch.get_rng_state().tolist(),
    }
