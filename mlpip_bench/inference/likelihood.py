"""p(y | x, psi, theta) of methods whose psi is a point, from the outputs of a network with the parameters psi."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Normal
from torch.nn import functional as F

from mlpip_bench.inference.method import Problem


def squared_errors(outputs: Float[Tensor, "task point 1"], y: Float[Tensor, "task point"]) -> Float[Tensor, " task"]:
    """Mean squared error of each task."""
    return (outputs.squeeze(-1) - y).square().mean(1)


def mean_losses(outputs: Float[Tensor, "task point way"], y: Tensor) -> Float[Tensor, " task"]:
    """The loss of inner steps for each task, a mean over its points: cross-entropy in nats; squared error of reals."""
    if y.is_floating_point():
        return squared_errors(outputs, y)
    log_likelihood: Tensor = Categorical(logits=outputs, validate_args=False).log_prob(y)
    return -log_likelihood.mean(1)


class Likelihood(nn.Module):
    """A softmax over the outputs; in regression a Gaussian around the one output.

    The Gaussian's variance is that of the noise, which is known, and a second one that is learned with theta: how far a
    network is off that knows few points. Without it a point estimate would be certain of what it cannot know, and its
    log-loss would measure that alone. Since all tasks share it, the loss has the gradient of the squared error up to a
    factor.

    Args:
        problem: classification or regression.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.noise_std = problem.noise_std
        if self.noise_std is not None:
            self.raw_std = nn.Parameter(torch.zeros(()))

    def predictive(self, outputs: Float[Tensor, "task point way"]) -> Distribution:
        """Batch shape ``[task, point]``."""
        if self.noise_std is None:
            return Categorical(logits=outputs, validate_args=False)
        mean = outputs.squeeze(-1)
        return Normal(mean, at_least(self.noise_std, self.raw_std).expand_as(mean), validate_args=False)


def at_least(noise_std: float, raw: Tensor) -> Tensor:
    """A standard deviation that a network gives, in addition to that of the noise: sqrt(noise^2 + softplus(raw)^2)."""
    return (noise_std**2 + F.softplus(raw).square()).sqrt()
