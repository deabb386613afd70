"""Conv4: the convolutional network of the paper (appendix D, tables D.1 and D.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from mlpip_bench.nn import accelerator, fused
from mlpip_bench.nn.backbone import Backbone, InputShape
from mlpip_bench.nn.layers import channels_innermost, mlp, truncated_xavier_
from mlpip_bench.nn.normalization import EPSILON, Moments, Normalization, Statistics, cat_statistics, task_statistics
from mlpip_bench.utils.choices import NormMode
from mlpip_bench.utils.errors import UserError


@dataclass(frozen=True)
class Conv4Settings:
    """Shape of the network.

    Attributes:
        blocks: number of convolutional blocks.
        channels: filters of each block.
        ceil_mode: whether pooling rounds sizes up (the paper's SAME) or down (VALID).
        dropout: probability of dropping an activation where a method trains with dropout.
        last: outputs of a linear layer behind the blocks; None for no such layer.
    """

    blocks: int = 4
    channels: int = 64
    ceil_mode: bool = False
    dropout: float = 0.0
    last: int | None = None

    def __post_init__(self) -> None:
        if (
            min(self.blocks, self.channels) < 1
            or not 0 <= self.dropout < 1
            or (self.last is not None and self.last < 1)
        ):
            raise ValueError(f"blocks, channels and last must be at least 1, dropout from 0 to below 1; got {self}")


FEW_CHANNELS = 3
"""Channels of images up to which their convolution takes less time than to keep its result."""


MOST_AT_ONCE = 2**23
"""Bytes of a block's inputs, of all tasks of a batch, up to which they go through it at once on a CPU."""


class ConvBlock(nn.Module):
    """3x3 convolution, normalization, ReLU, dropout, 2x2 max pooling (paper, tables D.1 and D.2).

    Args:
        in_channels: of the inputs.
        settings: of the network.
        norm: normalization mode.
        dropout: probability of dropping an activation in training.
        last: whether no other block follows.
    """

    def __init__(
        self, in_channels: int, settings: Conv4Settings, norm: NormMode, dropout: float, *, last: bool = True
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, settings.channels, 3, padding=1, bias=False)
        truncated_xavier_(self.conv.weight)
        self.norm = Normalization(settings.channels, norm)
        self.dropout, self.last = dropout, last
        self.ceil_mode = settings.ceil_mode

    def forward(self, x: Tensor, support: Moments | None) -> tuple[Tensor, Moments]:
        """``[task, point, channel, height, width]`` to half the height and width."""
        norm, tasks, weight = self.norm, x.shape[0], self.conv.weight
        if norm.mode in ("layer", "running") or self._drops:
            y = self._tasks(self._convolve(self._images(x), weight, tasks), tasks)
            by, moments = norm.statistics(y, support)
            return self._normalized_first(y, by), moments
        if self.has_filters_of_tasks and norm.own_moments(support) and accelerator.usable(x):
            return self._with_filters_of_tasks(self._images(x), tasks)
        # The same with a quarter of the work behind the convolution: a maximum passes through ReLU and through a
        # factor that is not negative. So filters whose scale is negative are negated, and their statistics with them.
        weight = weight * torch.where(norm.scale < 0, -1.0, 1.0).to(weight).unsqueeze(-1)
        if fused.usable(x):
            return self._fused(x, weight, support)
        images = self._convolve(self._images(x), weight, tasks)
        by, moments = norm.statistics(self._tasks(images, tasks), support)
        factor, offset = norm.folded(by, norm.scale.abs())
        return F.relu(torch.addcmul(offset, self._tasks(self._pool(images), tasks), factor)), moments

    def _fused(self, x: Tensor, weight: Tensor, support: Moments | None) -> tuple[Tensor, Moments]:
        """The same in few passes."""
        norm, tasks, own = self.norm, x.shape[0], self.has_filters_of_tasks
        ways: dict[str, Any] = {"ceil_mode": self.ceil_mode, "dtype": self._dtype(weight)}
        few_channels = x.shape[2] <= FEW_CHANNELS and not x.requires_grad
        known = support if norm.mode == "metabn" else None
        if few_channels and norm.own_moments(support):
            known = _moments(x, *fused.moments_of_convolution(x, weight if own else weight.unsqueeze(0)))
        if known is not None and (few_channels or own or tasks == 1):
            # Statistics that are known before the convolution go into its filters.
            factor, offset = norm.folded(known, norm.scale.abs())
            filters, offset = weight * factor.transpose(1, 2), offset.flatten(1)
            if few_channels:
                images = x.transpose(0, 1) if own else x.flatten(0, 1).unsqueeze(1)  # [point, group, ...]
                rows = [part.unsqueeze(0 if own else 1) for part in (filters, offset)]
                return self._tasks(fused.conv_pool_relu(images, *rows, **ways), tasks), known
            images = self._convolve(self._images(x), filters, tasks)
            return self._tasks(fused.pool_relu(images, offset.view(1, -1), **ways), tasks), known
        images = self._convolve(self._images(x), weight, tasks)
        if norm.own_moments(support):
            pooled, *moments = fused.pool_with_moments(images, 1 if own else tasks, ceil_mode=self.ceil_mode)
            by = support = _moments(x, *moments)
        else:
            pooled = fused.pool(images, ceil_mode=self.ceil_mode)
            by, support = norm.statistics(self._tasks(images, tasks), support)
        rows = [self._rows(part) for part in norm.folded(by, norm.scale.abs())]
        return self._tasks(fused.affine_relu(pooled, *rows, dtype=ways["dtype"]), tasks), support

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
        if norm.mode in ("metabn", "transductive") and not self._drops:
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
        if norm.mode in ("layer", "running") or self._drops:
            return activations, of_support, of_queries
        return activations, self._of_negated(of_support), self._of_negated(of_queries)

    def _of_negated(self, moments: Moments) -> Moments:
        """As :meth:`forward` has them, whose filters are negated where their scale is negative."""
        return Moments(moments.mean * self.norm.scale.detach().sign().unsqueeze(-4), moments.variance, moments.images)

    @property
    def _drops(self) -> bool:
        return self.training and self.dropout > 0

    def _normalized_first(self, y: Tensor, by: Moments) -> Tensor:
        """What is behind the convolution, one after the other."""
        y = F.dropout(F.relu(self.norm.affine(y, by)), self.dropout, self.training)
        return self._tasks(self._pool(self._images(y)), len(y))

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
        convolved: Tensor = F.conv2d(images, weight.flatten(0, -4), padding=1, groups=groups)
        return convolved

    def _pool(self, images: Tensor) -> Tensor:
        pooled: Tensor = F.max_pool2d(images, 2, ceil_mode=self.ceil_mode)
        return pooled


def _moments(x: Tensor, mean: Tensor, variance: Tensor) -> Moments:
    """Those of the channels of each task."""
    tasks = x.shape[0]
    return Moments(mean.view(tasks, 1, -1, 1, 1), variance.view(tasks, 1, -1, 1, 1), x.shape[1])


class Conv4(Backbone):
    """Blocks of convolution, normalization, ReLU and pooling; 256 features for the paper's data sets."""

    reference = "Gordon et al. 2019, Meta-Learning Probabilistic Inference for Prediction (ICLR), appendix D"
    Settings = Conv4Settings
    settings: Conv4Settings

    def __init__(
        self, input_shape: InputShape, settings: Conv4Settings, norm: NormMode, *, dropout: bool = False
    ) -> None:
        super().__init__(input_shape, settings, norm, dropout=dropout)
        flattened = _outputs(input_shape, settings)
        widths = [input_shape[0]] + [settings.channels] * settings.blocks
        rate = settings.dropout if dropout else 0.0
        self.blocks = nn.ModuleList(
            ConvBlock(width, settings, norm, rate, last=index == settings.blocks - 1)
            for index, width in enumerate(widths[:-1])
        )
        self.last = nn.Identity() if settings.last is None else mlp(flattened, settings.last)
        self.features = settings.last or flattened

    @classmethod
    def check(cls, input_shape: InputShape, settings: Conv4Settings) -> None:
        """Refuse more blocks than the images have halves."""
        if not _outputs(input_shape, settings):
            raise UserError(
                f"each block of conv4 halves height and width; {settings.blocks} blocks leave nothing of "
                f"{input_shape[1]}x{input_shape[2]}. Use fewer (--backbone conv4,blocks=N)."
            )

    def forward(
        self,
        x: Float[Tensor, "task point channel height width"],
        support: Statistics | None = None,
    ) -> tuple[Float[Tensor, "task point feature"], Statistics]:
        """Features of each task's images, and the moments of each block."""
        begin = self._blocks_task_by_task(x)
        moments: list[Moments] = []
        if begin:
            x, moments = self._task_by_task(x, support, begin)
        for index, block in enumerate(self.blocks[begin:], begin):
            x, own = block(x, None if support is None else support[index])
            moments.append(own)
        return self.last(x.flatten(2)), tuple(moments)

    def forward_both(
        self, support_x: Tensor, query_x: Tensor
    ) -> tuple[tuple[Tensor, Statistics], tuple[Tensor, Statistics]]:
        """Each convolution over support sets and queries at once; dropout draws for both at once."""
        x, support = torch.cat([support_x, query_x], 1), support_x.shape[1]
        statistics, moments = [], []
        for block in self.blocks:
            assert isinstance(block, ConvBlock)
            x, of_support, of_queries = block.forward_both(x, support)
            statistics.append(of_support)
            moments.append(of_queries)
        features = self.last(x.flatten(2)).split([support, query_x.shape[1]], 1)
        return (features[0], tuple(statistics)), (features[1], tuple(moments))

    def _blocks_task_by_task(self, x: Tensor) -> int:
        """How many blocks are better off with a task at a time, on a CPU: its activations stay in the cache."""
        tasks, points, _, *sides = x.shape
        if x.device.type != "cpu" or tasks == 1 or any(block.has_filters_of_tasks for block in self.blocks):
            return 0
        if not fused.usable(x):
            return self.settings.blocks
        narrow = torch.is_autocast_enabled("cpu")
        channel = tasks * points * (torch.get_autocast_dtype("cpu") if narrow else x.dtype).itemsize
        large = [
            blocks
            for blocks in range(1, self.settings.blocks)
            if channel * self.settings.channels * math.prod(_halved(sides, self.settings, blocks)) > MOST_AT_ONCE
        ]
        return max(large) + 1 if large else 0

    def _task_by_task(self, x: Tensor, support: Statistics | None, blocks: int) -> tuple[Tensor, list[Moments]]:
        outputs, per_task = [], []
        for task in range(x.shape[0]):
            own = None if support is None else task_statistics(support[:blocks], slice(task, task + 1))
            images, moments = x[task : task + 1], []
            for index, block in enumerate(self.blocks[:blocks]):
                images, found = block(images, None if own is None else own[index])
                moments.append(found)
            outputs.append(images)
            per_task.append(tuple(moments))
        return torch.cat(outputs), list(cat_statistics(per_task))


def _halved(sides: Sequence[int], settings: Conv4Settings, blocks: int) -> list[int]:
    """Height and width behind so many blocks."""
    factor = 2**blocks
    return [math.ceil(side / factor) if settings.ceil_mode else side // factor for side in sides]


def _outputs(input_shape: InputShape, settings: Conv4Settings) -> int:
    """Of the last block."""
    return settings.channels * math.prod(_halved(input_shape[1:], settings, settings.blocks))
