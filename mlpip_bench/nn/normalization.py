"""Normalization of convolutional features, one setting for all methods.

With ``n`` support images, a channel's statistics are taken per task:

* ``transductive``: support by support statistics, queries by the statistics of the queries that are
  predicted together. This is batch norm left in training mode at test, as in the public Versa and MAML code.
* ``metabn``: queries by the support's statistics (Bronskill et al. 2020, section 3.2).
* ``tasknorm``: TaskNorm-I (Bronskill et al. 2020, section 4): support statistics blended with those
  of the image itself, by a learned weight that depends on n.
* ``running``: batch statistics while training, their running averages at test (Ioffe & Szegedy 2015). The averages
  move once a pass over a batch, by the mean over its tasks: support sets are one pass, queries another.
* ``layer``: each image by its own statistics over channels and positions.
* ``instance``: each image and channel by its own statistics over positions.

In all modes but ``transductive`` a query's features do not depend on the other queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mlpip_bench.utils.choices import NormMode

EPSILON = 1e-5
MOMENTUM = 0.1
"""What a move of running averages takes from the batch."""


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
"""Support statistics of a network, one entry a normalized layer."""


def task_statistics(statistics: Statistics, tasks: slice) -> Statistics:
    """Those of some tasks of a batch."""
    return tuple(Moments(m.mean[tasks], m.variance[tasks], m.images) for m in statistics)


def cat_statistics(tasks: Sequence[Statistics]) -> Statistics:
    """Those of a batch from those of its tasks, which have equally many support images."""
    return tuple(
        Moments(torch.cat([m.mean for m in layer]), torch.cat([m.variance for m in layer]), layer[0].images)
        for layer in zip(*tasks, strict=True)
    )


class Normalization(nn.Module):
    """One normalized layer with the usual scale and shift.

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
        self, x: Float[Tensor, "task point channel height width"], support: Moments | None
    ) -> tuple[Tensor, Moments]:
        """Normalize the images of each task; running averages stay as they are.

        Args:
            x: activations.
            support: statistics of the support set, or None where ``x`` is the support set.

        Returns:
            The normalized activations, and the support statistics for the queries to come.
        """
        own, support = self.statistics(x, support)
        return self.affine(x, own), support

    def statistics(self, x: Tensor, support: Moments | None) -> tuple[Moments, Moments]:
        """What the images are normalized by, and the support statistics; arguments as of :meth:`forward`."""
        if self.mode in ("layer", "instance"):
            own = _moments(x, (2, 3, 4) if self.mode == "layer" else (3, 4))
            return own, own
        if self.mode == "tasknorm":
            return self._task_norm(x, support)
        if self.mode == "running" and not self.training:
            mean, variance = (m.expand(x.shape[0], 1, *m.shape) for m in (self.running_mean, self.running_variance))
            own = Moments(mean, variance, x.shape[1])
            return own, own
        if self.mode == "metabn" and support is not None:
            return support, support
        own = _moments(x, (1, 3, 4))
        return own, own

    @torch.no_grad()
    def move_averages(self, moments: Moments) -> None:
        """Move running averages towards the mean of the moments of a batch's tasks."""
        self.running_mean.lerp_(moments.mean.mean((0, 1)), MOMENTUM)
        self.running_variance.lerp_(moments.variance.mean((0, 1)), MOMENTUM)

    def own_moments(self, support: Moments | None) -> bool:
        """Whether images are normalized by the moments of their channels over all of a task's images among them."""
        return self.mode == "transductive" or (self.mode == "metabn" and support is None)

    def affine(self, x: Tensor, by: Moments) -> Tensor:
        """Activations normalized, scaled and shifted."""
        factor, offset = self.folded(by, self.scale)
        return torch.addcmul(offset, x, factor)

    def folded(self, by: Moments, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Factor and offset of the one multiply-add that statistics and affine parameters come to."""
        factor = _of_task(scale) * torch.rsqrt(by.variance + EPSILON)
        return factor, _of_task(self.shift) - by.mean * factor

    def _task_norm(self, x: Tensor, support: Moments | None) -> tuple[Moments, Moments]:
        per_image = _moments(x, (3, 4))
        own_mean, own_variance = per_image.mean, per_image.variance
        if support is None:
            spread, mean = torch.var_mean(own_mean, 1, correction=0, keepdim=True)
            support = Moments(mean, own_variance.mean(1, keepdim=True) + spread, x.shape[1])
        blend = torch.sigmoid(self.blend_slope * support.images + self.blend_offset).view(-1, 1, 1, 1, 1)
        mean = blend * support.mean + (1 - blend) * own_mean
        variance = blend * (support.variance + (support.mean - mean).square()) + (1 - blend) * (
            own_variance + (own_mean - mean).square()
        )
        return Moments(mean, variance, x.shape[1]), support


def _of_task(parameter: Tensor) -> Tensor:
    """``[channel, 1, 1]``, or ``[task, channel, 1, 1]``, to what multiplies the activations of tasks."""
    return parameter.unsqueeze(-4)


def _moments(x: Float[Tensor, "task point channel height width"], over: tuple[int, ...]) -> Moments:
    """Mean and population variance over some dimensions, which are kept with length 1; at least in float32."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    if x.device.type != "cpu":
        variance, mean = torch.var_mean(x, over, correction=0, keepdim=True)
    elif over == (1, 3, 4):
        merged = x.transpose(0, 1).flatten(1, 2)  # a view, of activations laid out as ConvBlock does
        moments: tuple[Tensor, Tensor] = _ChannelMoments.apply(merged)  # type: ignore[no-untyped-call]
        mean, variance = (m.view(x.shape[0], 1, -1, 1, 1) for m in moments)
    else:
        mean = x.mean(over, keepdim=True)
        variance = (x - mean).square().mean(over, keepdim=True)
    return Moments(mean, variance, x.shape[1])


class _ChannelMoments(torch.autograd.Function):
    """Mean and population variance of each channel of ``[point, channel, height, width]``, on a CPU.

    ``torch.var_mean`` gives the same and is 15 times slower there: its reduction over three dimensions is not
    vectorized, while the one inside batch norm is.
    """

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        mean, variance = torch.batch_norm_update_stats(x, None, None, 0.0)
        return mean, variance

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs, output[0])

    @staticmethod
    def backward(ctx: Any, mean_gradient: Tensor, variance_gradient: Tensor) -> Tensor:
        x, mean = ctx.saved_tensors
        slope = 2 * variance_gradient / (x.numel() / x.shape[1])
        offset = mean_gradient / (x.numel() / x.shape[1]) - mean * slope
        return torch.addcmul(offset.view(-1, 1, 1), x, slope.view(-1, 1, 1))
