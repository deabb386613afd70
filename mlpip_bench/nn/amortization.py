"""Amortization networks: the features of a support set to a Gaussian q(psi | D)."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from mlpip_bench.nn.layers import NARROWEST, last_bias, mlp, std_from_log_variance
from mlpip_bench.tasks.batch import Labeled


class AmortizationNetwork(nn.Module):
    """Class-mean features to a factorized Gaussian over the class's weights and bias (paper, Eq. 5).

    Four separate nets, as in the reference code: mean and log-variance of the weights, and of the
    bias; the paper's table D.3 has one trunk and leaves the bias out.

    Args:
        features: dimension of h(x).
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight_mean = mlp(features, features, features, features)
        self.weight_log_variance = mlp(features, features, features, features)
        self.bias_mean = mlp(features, features, features, 1)
        self.bias_log_variance = mlp(features, features, features, 1)

    def forward(
        self, features: Float[Tensor, "task point feature"], data: Labeled
    ) -> tuple[Float[Tensor, "task way feature_and_bias"], Float[Tensor, "task way feature_and_bias"]]:
        """Mean and standard deviation of psi = (w_c, b_c), the bias last, from h(x) of the points of D."""
        pooled = data.class_means(features)
        mean = torch.cat([self.weight_mean(pooled), self.bias_mean(pooled)], -1)
        log_variance = torch.cat([self.weight_log_variance(pooled), self.bias_log_variance(pooled)], -1)
        return mean, std_from_log_variance(log_variance)

    def log_variance_biases(self) -> list[Tensor]:
        """Biases of the last layers of the log-variances."""
        return [last_bias(self.weight_log_variance), last_bias(self.bias_log_variance)]


class LinearAmortization(nn.Module):
    """Regression: mean and log-variance of psi linear in the sum over D of y (h(x), 1).

    Without inputs that is the sum of the observations, the amortization of the paper's toy
    experiment (section 5.1). With inputs it cannot hold the exact posterior, whose mean and variance depend on the sum
    of phi phi' as well: what such a q lacks in NLL is no fault of an objective alone.

    Args:
        features: dimension of h(x).
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.mean = mlp(features + 1, features + 1)
        self.log_variance = nn.Linear(features + 1, features + 1)
        nn.init.zeros_(self.log_variance.weight)  # the prior's variance; a sum may be large, and so its exponential
        nn.init.zeros_(self.log_variance.bias)

    def forward(
        self, features: Float[Tensor, "task point feature"], data: Labeled
    ) -> tuple[Float[Tensor, "task 1 feature_and_bias"], Float[Tensor, "task 1 feature_and_bias"]]:
        """Mean and standard deviation of psi, from h(x) of the points of D and their targets."""
        with_one = F.pad(features, (0, 1), value=1.0)
        pooled = (data.y.unsqueeze(-1) * with_one).sum(1, keepdim=True)
        return self.mean(pooled), std_from_log_variance(self.log_variance(pooled))

    def log_variance_biases(self) -> list[Tensor]:
        """The bias of the log-variances."""
        return [self.log_variance.bias]


class PooledAmortization(nn.Module):
    """Regression: mean and log-variance of psi from the mean over D of encodings of (h(x), y).

    Instance pooling, as the paper's network of views has it (section 5.3): what is inferred need not be linear in y.

    Args:
        features: dimension of h(x).
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        width = max(features, NARROWEST)
        self.before_pooling = nn.Sequential(mlp(features + 1, width, width), nn.ELU())
        self.mean = mlp(width, width, features + 1)
        self.log_variance = mlp(width, width, features + 1)

    def forward(
        self, features: Float[Tensor, "task point feature"], data: Labeled
    ) -> tuple[Float[Tensor, "task 1 feature_and_bias"], Float[Tensor, "task 1 feature_and_bias"]]:
        """Mean and standard deviation of psi, from h(x) of the points of D and their targets."""
        pooled = self.before_pooling(torch.cat([features, data.y.unsqueeze(-1)], -1)).mean(1, keepdim=True)
        return self.mean(pooled), std_from_log_variance(self.log_variance(pooled))

    def log_variance_biases(self) -> list[Tensor]:
        """The bias of the last layer of the log-variances."""
        return [last_bias(self.log_variance)]


OfRegression = Literal["linear", "pooled"]
"""Amortization of a regression:

* ``linear``: q is linear in the sum of the data (paper, Eq. 12).
* ``pooled``: networks before and behind the mean over the data.
"""


def amortization(
    features: int, *, regression: bool, of_regression: OfRegression = "linear"
) -> AmortizationNetwork | LinearAmortization | PooledAmortization:
    """The amortization network of a problem, the same for every method that amortizes a Gaussian."""
    if not regression:
        return AmortizationNetwork(features)
    return PooledAmortization(features) if of_regression == "pooled" else LinearAmortization(features)
