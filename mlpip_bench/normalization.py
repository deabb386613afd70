"""Normalisation of convolutional features, one setting for all methods.

With ``n`` support images, a channel's statistics are taken per task:

* ``transductive``: support by support statistics, queries by the statistics of the queries that are
  predicted together. This is batch norm left in training mode at test, as in the public Versa and MAML code.
* ``metabn``: queries by the support's statistics (Bronskill et al. 2020, section 3.2).
* ``tasknorm``: TaskNorm-I (Bronskill et al. 2020, section 4): support statistics blended with those
  of the image itself, by a learned weight that depends on n.
* ``running``: batch statistics while training, their running averages at test (Ioffe & Szegedy 2015).
* ``layer``: each image by its own statistics over channels and positions.
* ``instance``: each image and channel by its own statistics over positions.

In all modes but ``transductive`` a query's features do not depend on the other queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

NormMode = Literal["transductive", "metabn", "tasknorm", "running", "layer", "instance"]
NORM_MODES: tuple[NormMode, ...] = get_args(NormMode)

_EPSILON = 1e-5
_MOMENTUM = 0.1


@dataclass(frozen=True, eq=False)
class Moments:
    """Support statistics of one layer, part of q(psi | D) because they are inferred from D.

    Attributes:
        mean, variance: ``[task, 1, channel, 1, 1]``, population variance. (``layer`` and ``instance``
            have no support statistics; what they return here is not read again.)
        images: how many support images they come from.
    """

    mean: Tensor
    variance: Tensor
    images: int


Statistics = tuple[Moments, ...]
"""Support statistics of a network, one entry a normalised layer."""


def task_statistics(statistics: Statistics, index: int) -> Statistics:
    """Those of one task of a batch."""
    return tuple(Moments(m.mean[index : index + 1], m.variance[index : index + 1], m.images) for m in statistics)


def cat_statistics(tasks: Sequence[Statistics]) -> Statistics:
    """Those of a batch from those of its tasks, which have equally many support images."""
    return tuple(
        Moments(torch.cat([m.mean for m in layer]), torch.cat([m.variance for m in layer]), layer[0].images)
        for layer in zip(*tasks, strict=True)
    )


class Normalization(nn.Module):
    """One normalised layer with the usual scale and shift.

    Args:
        channels: number of channels.
        mode: one of the modes above.
    """

    running_mean: Tensor
    running_variance: Tensor

    def __init__(self, channels: int, mode: NormMode) -> None:
        super().__init__()
        self.mode = mode
        self.scale = nn.Parameter(torch.ones(channels, 1, 1))
        self.shift = nn.Parameter(torch.zeros(channels, 1, 1))
        if mode == "tasknorm":
            self.blend_slope = nn.Parameter(torch.zeros(()))
            self.blend_offset = nn.Parameter(torch.zeros(()))
        if mode == "running":
            self.register_buffer("running_mean", torch.zeros(channels, 1, 1))
            self.register_buffer("running_variance", torch.ones(channels, 1, 1))

    def forward(
        self, x: Float[Tensor, "task point channel height width"], support: Moments | None, *, track: bool
    ) -> tuple[Tensor, Moments]:
        """Normalise the images of each task.

        Args:
            x: activations.
            support: statistics of the support set, or None where ``x`` is the support set.
            track: whether training may update running averages.

        Returns:
            The normalised activations, and the support statistics for the queries to come.
        """
        if self.mode in ("layer", "instance"):
            over = (2, 3, 4) if self.mode == "layer" else (3, 4)
            variance, mean = torch.var_mean(x, over, correction=0, keepdim=True)
            return self._affine(x, mean, variance), Moments(mean, variance, x.shape[1])
        if self.mode == "tasknorm":
            return self._task_norm(x, support)
        if self.mode == "running" and not self.training:
            mean, variance = (m.expand(x.shape[0], 1, *m.shape) for m in (self.running_mean, self.running_variance))
            return self._affine(x, mean, variance), Moments(mean, variance, x.shape[1])
        if self.mode == "metabn" and support is not None:
            return self._affine(x, support.mean, support.variance), support
        variance, mean = torch.var_mean(x, (1, 3, 4), correction=0, keepdim=True)
        if self.mode == "running" and track:
            with torch.no_grad():
                self.running_mean.lerp_(mean.mean((0, 1)), _MOMENTUM)
                self.running_variance.lerp_(variance.mean((0, 1)), _MOMENTUM)
        return self._affine(x, mean, variance), Moments(mean, variance, x.shape[1])

    def _task_norm(self, x: Tensor, support: Moments | None) -> tuple[Tensor, Moments]:
        own_variance, own_mean = torch.var_mean(x, (3, 4), correction=0, keepdim=True)
        if support is None:
            spread, mean = torch.var_mean(own_mean, 1, correction=0, keepdim=True)
            support = Moments(mean, own_variance.mean(1, keepdim=True) + spread, x.shape[1])
        blend = torch.sigmoid(self.blend_slope * support.images + self.blend_offset)
        mean = blend * support.mean + (1 - blend) * own_mean
        variance = blend * (support.variance + (support.mean - mean).square()) + (1 - blend) * (
            own_variance + (own_mean - mean).square()
        )
        return self._affine(x, mean, variance), support

    def _affine(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        # One multiply-add over the activations: statistics and affine parameters are folded first.
        scale = self.scale * torch.rsqrt(variance + _EPSILON)
        return torch.addcmul(self.shift - mean * scale, x, scale)
