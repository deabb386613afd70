"""Covariance functions of Gaussian processes, all of variance 1 but for the linear one.

Rasmussen & Williams 2006, Gaussian Processes for Machine Learning, chapter 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

Kernel: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Of inputs ``[*batch, point, dimension]`` and ``[*batch, other, dimension]``, to ``[*batch, point, other]``."""


def _distances(a: Tensor, b: Tensor) -> Tensor:
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")  # whose squares lose digits of near points


@dataclass(frozen=True)
class RBF:
    """Squared exponential: exp(-r^2 / (2 l^2)) (their Eq. 4.9).

    Attributes:
        length_scale: l.
    """

    length_scale: float

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """The covariances."""
        return (-_distances(a, b).square() / (2 * self.length_scale**2)).exp()


@dataclass(frozen=True)
class Matern:
    """Matern of order 5/2: (1 + s + s^2 / 3) exp(-s) with s = sqrt(5) r / l (their Eq. 4.17).

    Attributes:
        length_scale: l.
    """

    length_scale: float

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """The covariances."""
        s = math.sqrt(5) * _distances(a, b) / self.length_scale
        return (1 + s + s.square() / 3) * (-s).exp()


@dataclass(frozen=True)
class Periodic:
    """Of period p: exp(-(p sin(pi r / p) / pi)^2 / (2 l^2)), at short distances the RBF of that length scale.

    Their Eq. 4.31, exp(-2 sin^2(pi r / p) / w^2), with w = 2 pi l / p.

    Attributes:
        length_scale: l.
        period: p.
    """

    length_scale: float
    period: float = 1.0

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """The covariances."""
        chord = self.period / math.pi * (math.pi / self.period * _distances(a, b)).sin()
        return (-chord.square() / (2 * self.length_scale**2)).exp()


@dataclass(frozen=True)
class LinearKernel:
    """That of Bayesian linear regression with weights from N(0, I): x . x' and the variance of the bias.

    Attributes:
        bias_variance: 0 where there is no bias.
    """

    bias_variance: float = 1.0

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """The covariances."""
        return a @ b.mT + self.bias_variance
