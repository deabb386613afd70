"""A convolutional block for the images of tasks, with the way through it that is fastest on the device at hand.

Four ways compute the same: plainly; with pooling before normalization; in few passes over memory, on a CPU
(:mod:`mlpip_bench.nn.fused`); and in few operations, elsewhere (:mod:`mlpip_bench.nn.accelerator`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mlpip_bench.nn import accelerator, dropout, fused
from mlpip_bench.nn.layers import Convolution, channels_innermost, truncated_xavier_
from mlpip_bench.nn.normalization import EPSILON, Moments, Normalization
from mlpip_bench.utils.choices import NormMode

FEW_CHANNELS = 3
"""Channels of images up to which their convolution takes less time than to keep its result."""
_LEAST_FACTOR = 1e-20
"""Of normalization where activations are dropped: 0 times their -1e30 would let a window pass that keeps none."""


class ConvBlock(nn.Module):
    """3x3 convolution, normalization, ReLU, dropout, 2x2 max pooling (paper, tables D.1 and D.2).

    Args:
        in_channels: of the inputs.
        channels: filters.
        norm: normalization mode.
        ceil_mode: whether pooling rounds sizes up.
        dropout: probability of dropping an activation in training.
        last: whether no other block follows.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        norm: NormMode,
        *,
        ceil_mode: bool = False,
        dropout: float = 0.0,
        last: bool = True,
    ) -> None:
        super().__init__()
        self.conv = Convolution(in_channels, channels, 3, padding=1, bias=False)
        truncated_xavier_(self.conv.weight)
        self.norm = Normalization(channels, norm)
        self.ceil_mode, self.dropout, self.last = ceil_mode, dropout, last

    def forward(self, x: Tensor, support: Moments | None, seeds: Sequence[int] | None = None) -> tuple[Tensor, Moments]:
        """``[task, point, channel, height, width]`` to half the height and width.

        Args:
            x: images, or the activations of the block before.
            support: moments of the support set, None where this is one.
            seeds: of dropout's noise for each task, on a CPU; None where torch's generator is to make it.
        """
        norm, tasks, weight = self.norm, x.shape[0], self.conv.weight
        if norm.mode in ("layer", "running") or (self.drops and not fused.usable(x)):
            y = self._tasks(self._convolve(self._images(x), weight, tasks), tasks)
            by, moments = norm.statistics(y, support)
            return self._normalized_first(y, by, seeds), moments
        in_few = accelerator.usable(x) and not self.conv.watched
        if self.has_filters_of_tasks and norm.own_moments(support) and in_few:
            return self._with_filters_of_tasks(self._images(x), tasks)
        # The same with a quarter of the work behind the convolution: a maximum passes through ReLU and through a
        # factor that is not negative. So filters whose scale is negative are negated, and their statistics with them.
        weight = weight * torch.where(norm.scale < 0, -1.0, 1.0).to(weight).unsqueeze(-1)
        if fused.usable(x):
            return self._fused(x, weight, support, seeds)
        images = self._convolve(self._images(x), weight, tasks)
        by, moments = norm.statistics(self._tasks(images, tasks), support)
        factor, offset = norm.folded(by, norm.scale.abs())
        return F.relu(torch.addcmul(offset, self._tasks(self._pool(images), tasks), factor)), moments

    def _fused(
        self, x: Tensor, weight: Tensor, support: Moments | None, seeds: Sequence[int] | None
    ) -> tuple[Tensor, Moments]:
        """The same in few passes."""
        norm, tasks, own = self.norm, x.shape[0], self.has_filters_of_tasks
        pooling: dict[str, Any] = {"ceil_mode": self.ceil_mode, "kept": self._kept(x, seeds)}
        dtype = self._dtype(weight)
        few_channels = x.shape[2] <= FEW_CHANNELS and not x.requires_grad
        known = support if norm.mode == "metabn" else None
        if few_channels and norm.own_moments(support):
            known = _moments(x, *fused.moments_of_convolution(x, weight if own else weight.unsqueeze(0)))
        if known is not None and (few_channels or own or tasks == 1):
            # Statistics that are known before the convolution go into its filters.
            factor, offset = self._folded(known)
            filters, offset = weight * factor.transpose(1, 2), offset.flatten(1)
            if few_channels:
                images = x.transpose(0, 1) if own else x.flatten(0, 1).unsqueeze(1)  # [point, group, ...]
                rows = [part.unsqueeze(0 if own else 1) for part in (filters, offset)]
                return self._tasks(fused.conv_pool_relu(images, *rows, dtype=dtype, **pooling), tasks), known
            images = self._convolve(self._images(x), filters, tasks)
            return self._tasks(fused.pool_relu(images, offset.view(1, -1), dtype=dtype, **pooling), tasks), known
        images = self._convolve(self._images(x), weight, tasks)
        if norm.own_moments(support):
            pooled, *moments = fused.pool_with_moments(images, 1 if own else tasks, **pooling)
            by = support = _moments(x, *moments)
        else:
            pooled = fused.pool(images, **pooling)
            by, support = norm.statistics(self._tasks(images, tasks), support)
        rows = [self._rows(part) for part in self._folded(by)]
        return self._tasks(fused.affine_relu(pooled, *rows, dtype=dtype), tasks), support

    def _folded(self, by: Moments) -> tuple[Tensor, Tensor]:
        """Factor and offset of normalization, with what makes up for dropped activations in both."""
        factor, offset = self.norm.folded(by, self.norm.scale.abs())
        if not self.drops:
            return factor, offset
        return factor.clamp_min(_LEAST_FACTOR) / (1 - self.dropout), offset / (1 - self.dropout)

    def _kept(self, x: Tensor, seeds: Sequence[int] | None) -> Any:
        """Windows of activations that dropout keeps; None for all."""
        if not self.drops:
            return None
        assert seeds is not None  # drawn for each block on a CPU
        height, width = ((side + self.ceil_mode) // 2 for side in x.shape[3:])
        size = (x.shape[1], height, width, self.conv.weight.shape[-4])
        return dropout.kept(seeds, self.dropout, size, groups=self.has_filters_of_tasks)

    def _rows(self, x: Tensor) -> Tensor:
        """``[task, 1 or point, channel, 1, 1]`` to a row for equally many of :meth:`_images`."""
        return (x.transpose(0, 1).flatten(1, 2) if self.has_filters_of_tasks else x.flatten(0, 1)).flatten(1)

    def _dtype(self, weight: Tensor) -> torch.dtype:
        """Of the result; what goes into another convolution need not be in more than that computes in."""
        narrow = torch.is_autocast_enabled("cpu") and not self.last
        return torch.get_autocast_dtype("cpu") if narrow else weight.dtype

    def forward_both(self, x: Tensor, support: int) -> tuple[Tensor, Moments, Moments]:
        """The same of tasks whose first images are the support set, all others queries.

        Returns:
            The activations, and the moments of the support set and of the queries.
        """
        norm, tasks, sizes = self.norm, x.shape[0], (support, x.shape[1] - support)
        y = self._tasks(self._convolve(self._images(x), self.conv.weight, tasks), tasks)
        if norm.mode in ("metabn", "transductive") and not self.drops:
            # Groups of images, each with as many at its head as its statistics are of.
            groups = [(y, support)] if norm.mode == "metabn" else zip(y.split(sizes, 1), sizes, strict=True)
            pooled, moments = [], []
            for group, size in groups:
                out, mean, variance = accelerator.pooled_by_support(
                    group, size, norm.scale, norm.shift, EPSILON, ceil_mode=self.ceil_mode
                )
                pooled.append(out)
                moments.append(self._of_negated(Moments(mean, variance, size)))
            return torch.cat(pooled, 1) if len(pooled) > 1 else pooled[0], moments[0], moments[-1]
        by_support, of_support = norm.statistics(y[:, :support], None)
        by_queries, of_queries = norm.statistics(y[:, support:], of_support)

        def of_each(first: Tensor, second: Tensor) -> Tensor:
            rows = [m.expand(-1, n, -1, -1, -1) for m, n in zip((first, second), sizes, strict=True)]
            return torch.cat(rows, 1)

        by = Moments(
            of_each(by_support.mean, by_queries.mean), of_each(by_support.variance, by_queries.variance), support
        )
        activations = self._normalized_first(y, by)
        if norm.mode in ("layer", "running") or self.drops:
            return activations, of_support, of_queries
        return activations, self._of_negated(of_support), self._of_negated(of_queries)

    def _of_negated(self, moments: Moments) -> Moments:
        """As :meth:`forward` has them, whose filters are negated where their scale is negative."""
        return Moments(moments.mean * self.norm.scale.detach().sign().unsqueeze(-4), moments.variance, moments.images)

    @property
    def drops(self) -> bool:
        """Whether there is dropout now."""
        return self.training and self.dropout > 0

    def _normalized_first(self, y: Tensor, by: Moments, seeds: Sequence[int] | None = None) -> Tensor:
        """What is behind the convolution, one after the other."""
        images = self._images(F.relu(self.norm.affine(y, by)))
        if self.drops and seeds is not None:
            images = dropout.drop(images, self._kept(y, seeds), self.dropout)
        else:
            images = F.dropout(images, self.dropout, self.training)
        return self._tasks(self._pool(images), len(y))

    def _with_filters_of_tasks(self, images: Tensor, tasks: int) -> tuple[Tensor, Moments]:
        """Where a step of MAML is made of few operations."""
        norm = self.norm
        images = accelerator.convolve(images, self.conv.weight.flatten(0, 1), tasks)
        _, moments = norm.statistics(self._tasks(images, tasks), None)
        images = accelerator.batch_norm(images, norm.scale.flatten(), norm.shift.flatten(), EPSILON)
        return self._tasks(self._pool(F.relu(images)), tasks), self._of_negated(moments)

    @property
    def has_filters_of_tasks(self) -> bool:
        """Whether the parameters have a leading task dimension, for a network of each task's own."""
        return self.conv.weight.dim() == 5

    def _images(self, x: Tensor) -> Tensor:
        """Images of all tasks; where each task has its filters, its channels are a group of their own."""
        return channels_innermost(x.transpose(0, 1).flatten(1, 2) if self.has_filters_of_tasks else x.flatten(0, 1))

    def _tasks(self, images: Tensor, tasks: int) -> Tensor:
        """The inverse of :meth:`_images`; either is a view of what the other gives."""
        if self.has_filters_of_tasks:
            images = images.unflatten(1, (tasks, -1)).transpose(0, 1)
        else:
            images = images.unflatten(0, (tasks, -1))
        return images

    def _convolve(self, images: Tensor, weight: Tensor, tasks: int) -> Tensor:
        groups = tasks if self.has_filters_of_tasks else 1
        convolved: Tensor = self.conv(images, weight.flatten(0, -4), groups)
        return convolved

    def _pool(self, images: Tensor) -> Tensor:
        pooled: Tensor = F.max_pool2d(images, 2, ceil_mode=self.ceil_mode)
        return pooled


def _moments(x: Tensor, mean: Tensor, variance: Tensor) -> Moments:
    """Those of the channels of each task."""
    tasks = x.shape[0]
    return Moments(mean.view(tasks, 1, -1, 1, 1), variance.view(tasks, 1, -1, 1, 1), x.shape[1])
