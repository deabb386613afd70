"""Training objectives as functions that methods call; in nats per query point."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution, kl_divergence

from mlpip_bench.tasks.batch import Labeled


def mlpip_loss(predictive: Distribution, query: Labeled) -> Float[Tensor, ""]:
    """Predictive log-loss of ML-PIP, the negative of the paper's Eq. 4.

    With a :class:`~mlpip_bench.inference.distributions.MonteCarloMixture` it is
    ``-1/(MT) sum log 1/L sum_l p(y | x, psi_l)``; with a point estimate it is cross-entropy. All tasks
    of a batch have equally many queries, so one mean over tasks and points is the paper's average.

    Args:
        predictive: q(y | x, D) with batch shape ``[task, point]``.
        query: the held-out points.
    """
    log_density: Tensor = predictive.log_prob(query.y)
    return -log_density.mean()


def elbo(
    conditional: Distribution, data: Labeled, psi: Distribution, prior: Distribution, beta: float | Tensor = 1.0
) -> Float[Tensor, " task"]:
    """Evidence lower bound of each task, the summand of the paper's Eq. for variational inference.

    ``sum over D of 1/L sum_l log p(y | x, psi_l) - beta KL[q(psi | D) || p(psi)]``: a mean of logs,
    where ML-PIP has the log of a mean. It is a sum over D, so the KL weighs the more, the smaller D is.

    Args:
        conditional: a :class:`~mlpip_bench.inference.distributions.MonteCarloMixture`, whose components are
            p(y | x, psi_l) with batch shape ``[sample, task, point]``.
        data: the points that the likelihood has; the D of the sum.
        psi: q(psi | D) with batch shape ``[task, ...]``; its KL to the prior is taken in closed form.
        prior: p(psi).
        beta: weight of the KL; 1 is the bound, anything below is not one.

    Returns:
        Nats per task.
    """
    components: Distribution = conditional.components  # type: ignore[attr-defined]
    log_likelihood: Tensor = components.log_prob(data.y).mean(0).sum(-1)
    return log_likelihood - beta * kl_divergence(psi, prior).flatten(1).sum(-1)
