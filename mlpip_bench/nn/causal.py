"""Causal layers of sequence models: dense temporal convolutions, and attention (Mishra et al. 2018, section 3).

A layer leaves what comes in as it is and appends features of its own to it. So what comes into any layer is the
beginning of what comes into a later one, and a point knows of those before it through that alone: once a sequence has
gone through all layers, ``following`` gives what each of several points would be as the next one.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


class DenseConvolution(nn.Module):
    """A convolution of two taps, of the point itself and of the one ``dilation`` before, gated: tanh times sigmoid.

    Args:
        width: of what comes in.
        filters: features that it appends.
        dilation: how far back its other tap is; before the first point are zeros.
    """

    def __init__(self, width: int, filters: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.taps = nn.Linear(2 * width, 2 * filters)

    def forward(self, sequence: Float[Tensor, "task point width"]) -> Float[Tensor, "task point wider"]:
        """All points."""
        earlier = F.pad(sequence, (0, 0, self.dilation, 0))[:, : sequence.shape[1]]
        return self._appended(earlier, sequence)

    def following(
        self, sequence: Float[Tensor, "task point width"], points: Float[Tensor, "task other width"]
    ) -> Float[Tensor, "task other wider"]:
        """Points each of which is the one that follows the sequence."""
        place = sequence.shape[1] - self.dilation
        earlier = sequence[:, place : place + 1] if place >= 0 else torch.zeros_like(points[:, :1])
        return self._appended(earlier, points)

    def _appended(self, earlier: Tensor, points: Tensor) -> Tensor:
        of_earlier, of_own = self.taps.weight.chunk(2, 1)
        candidate, gate = (F.linear(points, of_own, self.taps.bias) + F.linear(earlier, of_earlier)).chunk(2, -1)
        return torch.cat([points, candidate.tanh() * gate.sigmoid()], -1)


class CausalAttention(nn.Module):
    """Attention of one head, of each point to itself and to those before it.

    Args:
        width: of what comes in.
        keys: dimension of keys and queries.
        values: features that it appends.
    """

    def __init__(self, width: int, keys: int, values: int) -> None:
        super().__init__()
        self.scale = 1 / math.sqrt(keys)
        self.query = nn.Linear(width, keys)
        self.key = nn.Linear(width, keys, bias=False)  # a bias would add the same to all logits of a query
        self.value = nn.Linear(width, values)

    def weights(self, sequence: Float[Tensor, "task point width"]) -> Float[Tensor, "task point key"]:
        """How much of each point every point reads."""
        logits: Tensor = self.scale * self.query(sequence) @ self.key(sequence).mT
        later = torch.ones(logits.shape[1:], dtype=torch.bool, device=logits.device).triu(1)
        return logits.masked_fill(later, -math.inf).softmax(-1)

    def forward(self, sequence: Float[Tensor, "task point width"]) -> Float[Tensor, "task point wider"]:
        """All points."""
        return torch.cat([sequence, self.weights(sequence) @ self.value(sequence)], -1)

    def following(
        self, sequence: Float[Tensor, "task point width"], points: Float[Tensor, "task other width"]
    ) -> Float[Tensor, "task other wider"]:
        """Points each of which is the one that follows the sequence."""
        query = self.scale * self.query(points)
        of_own = (query * self.key(points)).sum(-1, keepdim=True)
        weights = torch.cat([query @ self.key(sequence).mT, of_own], -1).softmax(-1)
        read = weights[..., :-1] @ self.value(sequence) + weights[..., -1:] * self.value(points)
        return torch.cat([points, read], -1)
