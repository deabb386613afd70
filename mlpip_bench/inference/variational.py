"""What the variational methods share: settings, the prior p(psi | theta), the weight of the KL, points of the bound.

The paper derives one objective for amortized and non-amortized VI (appendix on variational inference), which "does not
distinguish between training and test data within a task", and leaves prior and weight of the KL open. The choices are
settings here; ``observed`` names the three readings of which points q and the likelihood have in training.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from mlpip_bench.inference.search import OneOf, Space
from mlpip_bench.nn.normalization import Statistics
from mlpip_bench.tasks.batch import Labeled, TaskBatch

Observed = Literal["support", "support-all", "support+query"]
"""Points that q is inferred from, and that the likelihood has, in training:

* ``support``: both have the support set.
* ``support-all``: q has the support set, as at test; the likelihood has all points of the task.
* ``support+query``: both have all points of the task, support and queries.
"""

OVER_POINTS: Literal["1/points"] = "1/points"

SEARCH_SPACE: Space = {
    "observed": OneOf(("support", "support-all", "support+query")),
    "beta": OneOf((1.0, OVER_POINTS, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)),
    "anneal": OneOf((0, 200, 1000)),
    "prior_std": OneOf((1.0, 0.1, 0.3, 3.0)),
    "initial_log_variance": OneOf((0.0, -2.0, -4.0, -6.0)),
    "dropout": OneOf((False, True)),
    "samples": OneOf((10, 1, 30)),
}
"""What ``run --tune`` draws from for both forms of VI, beyond the learning rate."""


@dataclass(frozen=True)
class BoundSettings:
    """Settings of an evidence bound.

    Attributes:
        samples: L of the training objective.
        eval_samples: L at evaluation; 1 is the mean of q.
        beta: weight of the KL against the summed log-likelihood; 1 is the evidence bound, anything below is no bound.
            ``1/points`` is one over the number of points that the likelihood has.
    """

    samples: int = 10
    eval_samples: int = 100
    beta: float | Literal["1/points"] = 1.0

    def __post_init__(self) -> None:
        if min(self.samples, self.eval_samples) < 1:
            raise ValueError(f"samples and eval_samples must be at least 1; got {self.samples}, {self.eval_samples}")
        if self.beta != OVER_POINTS and not 0 <= self.beta < math.inf:
            raise ValueError(f"beta must be finite and not negative, or {OVER_POINTS}; got {self.beta}")

    def kl_weight(self, points: int) -> float:
        """``beta`` as a number, for a likelihood of so many points."""
        return 1 / points if self.beta == OVER_POINTS else self.beta


@dataclass(frozen=True)
class VariationalSettings(BoundSettings):
    """Settings of variational inference, beyond those of its bound.

    Attributes:
        prior_std: scale of the prior N(0, scale^2 I); where it is learned, its initial value.
        learn_prior: learn the scale of the prior with theta.
        initial_log_variance: of q, in addition to what the networks' initial weights give: about that of each
            coordinate at the start of training.
        anneal: iterations over which the weight of the KL rises linearly from 0 to ``beta``; 0 for none.
        observed: points of q and of the likelihood in training: ``support`` for both; ``support-all``, q from the
            support set and the likelihood on all images of the task, support and queries; ``support+query``, all
            images for both.
        dropout: whether training drops activations at the bench's rate.
        eval_samples: L at evaluation; 1 is the mean of q. Regression is in closed form there, whatever it is.
        scramble: which set of fixed points of that number, each as good as the others.
    """

    eval_samples: int = 1024
    scramble: int = 0
    prior_std: float = 1.0
    learn_prior: bool = False
    initial_log_variance: float = 0.0
    anneal: int = 0
    observed: Observed = "support"
    dropout: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.prior_std < math.inf:
            raise ValueError(f"prior_std must be positive and finite; got {self.prior_std}")
        if not -20 <= self.initial_log_variance <= 10:
            raise ValueError(f"initial_log_variance must be from -20 to 10; got {self.initial_log_variance}")
        if min(self.anneal, self.scramble) < 0:
            raise ValueError(f"anneal and scramble must not be negative; got {self.anneal}, {self.scramble}")

    @property
    def bounds_evidence(self) -> bool:
        """Whether the loss is minus a bound of log p(D) under the prior N(0, I), D the support set, per point of D.

        With a weight of 1 the other readings and priors are bounds, too, of other evidence.
        """
        standard = self.prior_std == 1 and not self.learn_prior
        return self.beta == 1 and not self.anneal and standard and self.observed == "support"


class GaussianPrior(nn.Module):
    """p(psi | theta) = N(0, scale^2 I).

    Args:
        learned: whether the scale is a parameter, one number for all coordinates.
        std: the scale, or its initial value.
    """

    log_scale: Tensor

    def __init__(self, *, learned: bool, std: float = 1.0) -> None:
        super().__init__()
        log_scale = torch.tensor(math.log(std))
        if learned:
            self.log_scale = nn.Parameter(log_scale)
        else:
            self.register_buffer("log_scale", log_scale, persistent=False)

    def forward(self, like: Tensor) -> Normal:
        """The prior over coordinates of the shape of ``like``."""
        return Normal(torch.zeros_like(like), self.log_scale.exp().expand_as(like), validate_args=False)


class KLWeight(nn.Module):
    """The weight of the KL: ``beta``, to which it rises over the first losses where it is annealed.

    The losses are counted in a buffer, so that training that was stopped goes on where it was.

    Args:
        settings: of the method.
    """

    losses: Tensor

    def __init__(self, settings: VariationalSettings) -> None:
        super().__init__()
        self.anneal = settings.anneal
        if self.anneal:  # else the state is as it was before there was annealing
            self.register_buffer("losses", torch.zeros(()))

    def forward(self, beta: float) -> float | Tensor:
        """The weight now; that of evaluation is ``beta``."""
        return beta * (self.losses / self.anneal).clamp(max=1) if self.anneal and self.training else beta

    def count(self) -> None:
        """Another loss has been computed."""
        if self.anneal:
            self.losses += 1


class PointsOfBound(NamedTuple):
    """Points of a bound, each with their features ``[task, point, feature]``."""

    q_data: Labeled
    q_features: Tensor
    likelihood_data: Labeled
    likelihood_features: Tensor


def points_of_bound(
    batch: TaskBatch, observed: Observed, features: Callable[..., tuple[Tensor, Statistics]]
) -> PointsOfBound:
    """The points that q and the likelihood have in training.

    Args:
        batch: the tasks.
        observed: which reading of the bound.
        features: of inputs, and of inputs with the statistics of the support set, as of a backbone. Queries are
            normalized by what q is conditioned on, as at test.
    """
    given = batch.merged if observed == "support+query" else batch.support
    of_given, statistics = features(given.x)
    if observed != "support-all":
        return PointsOfBound(given, of_given, given, of_given)
    of_queries, _ = features(batch.query.x, statistics)
    return PointsOfBound(given, of_given, batch.merged, torch.cat([of_given, of_queries], 1))
