"""Classifiers that are fitted to the features of each task, with nothing trained through the fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from mlpip_bench.inference.distributions import where_float64_is
from mlpip_bench.tasks.batch import Labeled
from mlpip_bench.utils.errors import TrialError

_LARGEST_GRADIENT = 1e-9
_MOST_STEPS = 20_000
"""Of a logistic regression, which ends where no entry of its gradient is larger."""


@dataclass(frozen=True)
class FitSettings:
    """Settings of a fit by SGD, at the values of Chen et al. (2019).

    Attributes:
        epochs: passes over the support set.
        batch_size: support points for which there is a step in each pass; a step takes the gradient of all of them.
        rate: learning rate, for a mean cross-entropy.
        momentum, dampening, weight_decay: as ``torch.optim.SGD`` has them.
    """

    epochs: int = 100
    batch_size: int = 4
    rate: float = 0.01
    momentum: float = 0.9
    dampening: float = 0.9
    weight_decay: float = 1e-3

    def __post_init__(self) -> None:
        if self.epochs < 0 or self.batch_size < 1:
            raise ValueError(f"epochs must be 0 or more, batch_size at least 1; got {self.epochs}, {self.batch_size}")
        if not 0 < self.rate < math.inf or not 0 <= self.weight_decay < math.inf:
            raise ValueError(
                f"rate must be positive and finite, weight_decay 0 or more; got {self.rate}, {self.weight_decay}"
            )
        if not (0 <= self.momentum < 1 and 0 <= self.dampening <= 1):
            raise ValueError(
                f"momentum must be from 0 to below 1, dampening from 0 to 1; got {self.momentum}, {self.dampening}"
            )

    def steps(self, points: int) -> int:
        """Of a fit to so many support points."""
        return self.epochs * math.ceil(points / self.batch_size)


def fit(
    start: Float[Tensor, "task ..."],
    logits: Callable[[Tensor], Float[Tensor, "task point way"]],
    support: Labeled,
    settings: FitSettings,
) -> Float[Tensor, "task ..."]:
    """Parameters of each task's own classifier after SGD on the mean cross-entropy of its support set.

    SGD works coordinate by coordinate and the losses of tasks are summed, so tasks do not see each other. The gradient
    is that of the whole support set, the mean of those of minibatches: the order of the points is nothing to it.

    Args:
        start: parameters, where descent starts.
        logits: of the support points, given the parameters.
        support: the support sets.
        settings: of the fit.
    """
    parameters = start.detach().clone().requires_grad_()
    sgd = torch.optim.SGD(
        [parameters],
        lr=settings.rate,
        momentum=settings.momentum,
        dampening=settings.dampening,
        weight_decay=settings.weight_decay,
    )
    with torch.enable_grad():
        for _ in range(settings.steps(support.y.shape[1])):
            loss = F.cross_entropy(logits(parameters).flatten(0, 1), support.y.flatten()) * support.tasks
            (parameters.grad,) = torch.autograd.grad(loss, parameters)
            sgd.step()
    return parameters.detach()


def logistic_regression(
    features: Float[Tensor, "task point feature"], support: Labeled, penalty: float
) -> Float[Tensor, "task way feature_and_bias"]:
    """Weights and bias that minimize each task's summed cross-entropy + penalty/2 |weights|^2; the bias is free.

    In float64, by steps on the quadratic bound of the loss (Böhning 1992, Multinomial Logistic Regression Algorithm),
    with momentum that starts anew where a task's descent turns (O'Donoghue & Candès 2015, Adaptive Restart for
    Accelerated Gradient Schemes).

    Args:
        features: of the support points.
        support: their classes.
        penalty: on the weights.

    Raises:
        TrialError: it is not solved within as many steps as any sensible problem takes.
    """
    y = where_float64_is(support.one_hot).double()
    basis, coordinates = torch.linalg.qr(where_float64_is(features).double().mT)  # the weights are in their span
    points = F.pad(coordinates.mT, (0, 1), value=1.0)
    penalties = torch.full_like(points[0, 0], penalty)
    penalties[-1] = 0.0
    root = torch.linalg.cholesky(points.mT @ points / 2 + penalties.diag())
    psi = ahead = points.new_zeros(support.tasks, support.way, points.shape[-1])
    age = points.new_zeros(support.tasks, 1, 1)
    for _ in range(_MOST_STEPS):
        gradient = ((points @ ahead.mT).softmax(-1) - y).mT @ points + penalties * ahead
        if gradient.abs().max() <= _LARGEST_GRADIENT:
            return torch.cat([ahead[..., :-1] @ basis.mT, ahead[..., -1:]], -1).to(features)
        psi, before = ahead - torch.cholesky_solve(gradient.mT, root).mT, psi
        turned = (gradient * (psi - before)).sum((1, 2), keepdim=True) > 0
        age = torch.where(turned, 0.0, age + 1)
        ahead = psi + age / (age + 3) * (psi - before)
    raise TrialError(
        f"a logistic regression must be solved; after {_MOST_STEPS} steps the gradient is "
        f"{float(gradient.abs().max()):.1g}. Give it a larger penalty, or features of unit length."
    )
