"""Rankings of points by their similarity to a query: their score, average precision, and loss-augmented inference.

A ranking y of a query's relevant and other points is scored by F(y), the mean over pairs of one relevant and one other
point of ``similarity(relevant) - similarity(other)``, with its sign turned where the other point comes first. Its loss
is 1 - AP(y). Within each of the two groups the best ranking is in the order of similarity, since the loss depends on
the groups alone; so it is an interleaving of two sorted lists, which is found by dynamic programming.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional as F

from mlpip_bench.inference.distributions import Delta
from mlpip_bench.inference.method import Posterior, Problem
from mlpip_bench.inference.search import LogUniform, Space
from mlpip_bench.tasks.batch import Labeled, TaskBatch


@dataclass(frozen=True)
class RankingSettings:
    """Settings of a method that is trained on rankings.

    Attributes:
        epsilon: weight of the loss 1 - AP against the score F in loss-augmented inference.
        scale: factor on the mean cosines before the softmax of the predictive, which training does not see.
    """

    epsilon: float = 1.0
    scale: float = 10.0

    def __post_init__(self) -> None:
        for name in ("epsilon", "scale"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite; got {getattr(self, name)}")


SEARCH_SPACE: Space = {"epsilon": LogUniform(0.1, 10.0), "scale": LogUniform(1.0, 100.0)}
"""What ``run --tune`` draws from, beyond the learning rate."""

BUDGET: dict[str, Any] = {"learning_rate": 1e-3, "halve_every": 2_000, "iterations": 20_000, "tasks_per_batch": 1}
"""That of the code of Triantafillou et al. (2017), for presets."""


@dataclass(frozen=True, eq=False)
class Queries:
    """Queries, each with the points that it ranks; a point may be neither relevant nor other, as the query itself is.

    Attributes:
        similarity: of each point to its query.
        relevant: which points should come first.
        other: which points should come last.
    """

    similarity: Float[Tensor, "*query point"]
    relevant: Bool[Tensor, "*query point"]
    other: Bool[Tensor, "*query point"]

    def best_score(self, weight: float) -> Float[Tensor, "*query"]:
        """The maximum over all rankings y of F(y) + weight (1 - AP(y)).

        Its gradient is that of F at the best ranking, which is constant almost everywhere. It is 0 for a query that has
        no relevant points.

        Args:
            weight: of the loss, of either sign; 0 for the score alone.
        """
        positives, of_positives = _sorted(self.similarity, self.relevant)
        negatives, of_negatives = _sorted(self.similarity, self.other)
        first = F.pad(negatives.cumsum(-1), (1, 0))  # sum of the first j negatives
        j = torch.arange(first.shape[-1], dtype=first.dtype, device=first.device)
        pairs = (of_positives * of_negatives).clamp(min=1)
        beyond, best = j > of_negatives, torch.zeros_like(first)
        for i in range(int(of_positives.max())):  # a number that a GPU is waited for, so that it makes no graph of it
            # The next positive is the (i+1)-th, behind j negatives.
            score = ((of_negatives - 2 * j) * positives[..., i : i + 1] + 2 * first - first[..., -1:]) / pairs
            precision = (i + 1) / (i + 1 + j)
            gain = (score - weight * precision / of_positives.clamp(min=1)).masked_fill(beyond, -math.inf)
            best = best.cummax(-1).values + gain.masked_fill(i >= of_positives, 0.0)
        return best.amax(-1) + weight * of_positives.squeeze(-1).clamp(max=1)

    def perfect_score(self) -> Float[Tensor, "*query"]:
        """F of the ranking with all relevant points first; 0 for a query without a pair."""
        relevant, other = self.relevant.to(self.similarity), self.other.to(self.similarity)
        of_relevant, of_other = relevant.sum(-1, keepdim=True), other.sum(-1, keepdim=True)
        shares = (relevant * of_other - other * of_relevant) / (of_relevant * of_other).clamp(min=1)
        return (shares * self.similarity).sum(-1)


def _sorted(similarity: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Similarities of the masked points, the largest first and zeros behind them, and their number ``[*query, 1]``."""
    number = mask.to(similarity).sum(-1, keepdim=True)
    values = similarity.masked_fill(~mask, -math.inf).sort(-1, descending=True).values
    return values.masked_fill(torch.arange(mask.shape[-1], device=mask.device) >= number, 0.0), number


class CosineRanker(nn.Module):
    """Embeddings of unit length, whose inner products rank points and classify queries.

    Args:
        problem: classification.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.backbone = problem.build_backbone()

    def amortize(self, support: Labeled) -> Posterior[Delta]:
        """The class means of the support set's embeddings."""
        features, statistics = self.backbone(support.x)
        return Posterior(Delta(support.class_means(F.normalize(features, dim=-1)), event_dim=2), statistics)

    def predictive(self, q: Posterior[Delta], query_x: Tensor, scale: float) -> Categorical:
        """Softmax of the mean cosine of a query with each class's support points."""
        features, _ = self.backbone(query_x, q.norm_statistics)
        return Categorical(logits=scale * F.normalize(features, dim=-1) @ q.psi.mean.mT, validate_args=False)

    def queries(self, batch: TaskBatch) -> Queries:
        """Each point of a task as a query that ranks all others: those of its class are relevant."""
        of_support, statistics = self.backbone(batch.support.x)
        of_queries, _ = self.backbone(batch.query.x, statistics)
        embedded, y = F.normalize(torch.cat([of_support, of_queries], 1), dim=-1), batch.merged.y
        same = y.unsqueeze(2) == y.unsqueeze(1)
        itself = torch.eye(y.shape[1], dtype=torch.bool, device=y.device)
        return Queries(embedded @ embedded.mT, same & ~itself, ~same)
