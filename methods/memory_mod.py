"""Memory module: keys and values that are written point by point, and read by the cosine of a query with the keys.

psi: the memory after the support set: a slot a point, with a key of unit length and a value, a label, or none.
q: a point mass. The probability of a class is the attention on the keys with its label, a softmax of scaled cosines.
Reference: Kaiser, Nachum, Roy & Bengio, ICLR 2017, section 2; constants from their code.
Objective: max(0, alpha + cosine with the nearest key of another label - cosine with the nearest key of its own), a
query's mean. That is no likelihood, and not in nats: the NLL is that of a softmax that was not trained as one.

A point whose nearest key has its label is added to that key; any other one is written to a free slot. There are as
many slots as points, so that none is overwritten, and a slot's age says nothing. With one shot a query is of the class
of its nearest neighbor by cosine, and what the method has is its loss.

Differences from their paper:

- A memory has one task, and queries are not written. Theirs is lifelong: it is written through a stream, with the
  labels of earlier queries too, and has room for thousands of keys.
- Gradients flow through the keys, where theirs stop (``stop_keys``).
- The keys are features of the run's backbone, without dropout, a last linear layer, or a projection of queries.
- All keys are read, where theirs are the nearest 256, whose number k sets the scale of the cosines; here k is the
  number of keys. Of up to five keys, such as a 5-way 1-shot task's, the scale is 1 and the predictive nearly uniform.
- The preset ``paper`` shortens gradients to their code's norm of 5; a step is one of whole tasks, where theirs are
  taken at each point of a stream.

Differences from the published figure:

It is the accuracy at the showing of a class that follows the first one, in a stream whose memory is still written. Here
it is that of 5-way 1-shot tasks, each with a memory of its own five keys. The two are not the same measure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import normalize

from mlpip_bench.inference.distributions import Delta, attention_vote
from mlpip_bench.inference.method import Method, Posterior, Problem
from mlpip_bench.inference.ordering import ordered
from mlpip_bench.inference.search import LogUniform
from mlpip_bench.tasks.batch import Labeled, TaskBatch


@dataclass(frozen=True)
class MemoryModSettings:
    """Settings of the memory module.

    Attributes:
        alpha: margin between the cosines with the nearest right and the nearest wrong key.
        scale: factor on the cosines, of the predictive alone; None for theirs, max(1, ln(0.2 k) / alpha) of k keys.
        stop_keys: whether the loss has no gradient by way of the keys, as in their code.
    """

    alpha: float = 0.1
    scale: float | None = None
    stop_keys: bool = False

    def __post_init__(self) -> None:
        for name, value in (("alpha", self.alpha), ("scale", self.scale)):
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive and finite; got {value}")


class MemoryMod(Method[Delta]):
    """Nearest keys of a memory that a task's support set is written to."""

    reference = "Kaiser et al. 2017, Learning to Remember Rare Events (ICLR)"
    psi = "point mass at a memory of unit keys with labels, written point by point"
    Settings = MemoryModSettings
    settings: MemoryModSettings
    search_space: ClassVar = {
        **Method.search_space,
        "alpha": LogUniform(0.03, 1.0),
        "scale": LogUniform(1.0, 100.0),
    }
    presets: ClassVar = {"paper": {"*": {"clip_norm": 5.0}}}
    xfail_checks: ClassVar = {
        "support_order": "a point joins a key by what was written before it",
        "unequal_shots": "the check compares two orders, and a point joins a key by what was written before it",
    }

    def __init__(self, problem: Problem, settings: MemoryModSettings) -> None:
        super().__init__(problem, settings)
        self.backbone = problem.build_backbone()

    def amortize(self, support: Labeled) -> Posterior[Delta]:
        """The memory: each slot's key, then its value in one-hot form, zeros where it is free."""
        features, statistics = self.backbone(support.x)
        points = ordered(Labeled(normalize(features, dim=-1), support.y, support.way), training=self.training)
        return Posterior(Delta(self._written(points), event_dim=2), statistics)

    def _written(self, points: Labeled) -> Tensor:
        new = points.x.detach() if self.settings.stop_keys else points.x
        tasks = torch.arange(points.tasks, device=new.device)
        keys, used = new, torch.zeros_like(points.y, dtype=torch.bool)
        used[:, 0] = True
        for i in range(1, points.y.shape[1]):
            cosines = (keys[:, :i] @ new[:, i].unsqueeze(-1)).squeeze(-1)
            nearest = cosines.masked_fill(~used[:, :i], -math.inf).argmax(-1)
            hit = points.y[tasks, nearest] == points.y[:, i]
            used[:, i] = ~hit
            held = keys[tasks, nearest] * hit.unsqueeze(-1)
            slot = torch.where(hit, nearest, i)
            keys = keys.index_put((tasks, slot), normalize(held + new[:, i], dim=-1))
        return torch.cat([keys, points.one_hot * used.unsqueeze(-1)], -1)

    def predictive(self, q: Posterior[Delta], query_x: Tensor) -> Distribution:
        """p(y = c) = attention on the keys of class c."""
        cosines, one_hot = self._cosines(q, query_x)
        keys = one_hot.sum((1, 2), keepdim=True)
        scale = default_scale(keys, self.settings.alpha) if self.settings.scale is None else self.settings.scale
        return attention_vote(scale * cosines, one_hot)

    def loss(self, batch: TaskBatch) -> Tensor:
        """Mean margin of the queries."""
        return self.margins(batch).mean()

    def margins(self, batch: TaskBatch) -> Float[Tensor, "task point"]:
        """By how much each query misses the margin, 0 where it does not."""
        cosines, one_hot = self._cosines(self.amortize(batch.support), batch.query.x)
        own = batch.query.one_hot @ one_hot.mT > 0  # [task, point, slot]
        other = one_hot.any(-1).unsqueeze(1) & ~own
        return (_nearest(cosines, other) - _nearest(cosines, own) + self.settings.alpha).relu()

    def _cosines(self, q: Posterior[Delta], query_x: Tensor) -> tuple[Tensor, Tensor]:
        features, _ = self.backbone(query_x, q.norm_statistics)
        keys, one_hot = q.psi.mean.tensor_split([features.shape[-1]], -1)
        return normalize(features, dim=-1) @ keys.mT, one_hot


def default_scale(keys: Tensor, alpha: float) -> Tensor:
    """The factor on the cosines by the number of keys."""
    return ((0.2 * keys).log() / alpha).clamp(min=1)


def _nearest(
    cosines: Float[Tensor, "task point slot"], chosen: Bool[Tensor, "task point slot"]
) -> Float[Tensor, "task point"]:
    """Cosine with the nearest of the chosen keys; 0 where there are none, as in their code."""
    found = cosines.masked_fill(~chosen, -math.inf).amax(-1)
    return torch.where(chosen.any(-1), found, 0.0)
