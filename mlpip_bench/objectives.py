"""Training objectives as functions that methods call; in nats per query point."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution

from mlpip_bench.tasks import Labelled


def mlpip_loss(predictive: Distribution, query: Labelled) -> Float[Tensor, ""]:
    """Predictive log-loss of ML-PIP, the negative of the paper's Eq. 4.

    With a :class:`~mlpip_bench.distributions.MonteCarloMixture` it is
    ``-1/(MT) sum log 1/L sum_l p(y | x, psi_l)``; with a point estimate it is cross-entropy. All tasks
    of a batch have equally many queries, so one mean over tasks and points is the paper's average.

    Args:
        predictive: q(y | x, D) with batch shape ``[task, point]``.
        query: the held-out points.
    """
    log_density: Tensor = predictive.log_prob(query.y)
    return -log_density.mean()
