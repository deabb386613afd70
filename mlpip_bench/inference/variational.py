"""What the variational methods share: settings, the prior p(psi | theta), and the data D of the bound.

The paper derives one objective for amortized and non-amortized VI (appendix on variational inference)
and leaves prior, weight of the KL and D in training open; the choices are settings here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from mlpip_bench.tasks.batch import Labeled, TaskBatch

Observed = Literal["support", "support+query"]


@dataclass(frozen=True)
class BoundSettings:
    """Settings of an evidence bound.

    Attributes:
        samples: L of the training objective.
        eval_samples: L at evaluation; 1 is the mean of q.
        beta: weight of the KL against the summed log-likelihood; 1 is the evidence bound.
    """

    samples: int = 10
    eval_samples: int = 100
    beta: float = 1.0

    def __post_init__(self) -> None:
        if min(self.samples, self.eval_samples) < 1:
            raise ValueError(f"samples and eval_samples must be at least 1; got {self.samples}, {self.eval_samples}")
        if not 0 <= self.beta < math.inf:
            raise ValueError(f"beta must be finite and not negative; got {self.beta}")


@dataclass(frozen=True)
class VariationalSettings(BoundSettings):
    """Settings of variational inference, beyond those of its bound.

    Attributes:
        learn_prior: learn the scale of the prior N(0, scale^2 I) with theta; else it is N(0, I).
        observed: D of the bound in training: the support set, which is the paper's literal objective, or
            all images of the task, support and queries.
        dropout: whether training drops activations at the bench's rate.
    """

    learn_prior: bool = False
    observed: Observed = "support"
    dropout: bool = True


class GaussianPrior(nn.Module):
    """p(psi | theta) = N(0, scale^2 I).

    Args:
        learned: whether the scale is a parameter, one number for all coordinates; it starts at 1.
    """

    log_scale: Tensor

    def __init__(self, *, learned: bool) -> None:
        super().__init__()
        if learned:
            self.log_scale = nn.Parameter(torch.zeros(()))
        else:
            self.register_buffer("log_scale", torch.zeros(()), persistent=False)

    def forward(self, like: Tensor) -> Normal:
        """The prior over coordinates of the shape of ``like``."""
        return Normal(torch.zeros_like(like), self.log_scale.exp().expand_as(like), validate_args=False)


def observed_data(batch: TaskBatch, observed: Observed) -> Labeled:
    """D of the bound in training."""
    return batch.support if observed == "support" else batch.merged
