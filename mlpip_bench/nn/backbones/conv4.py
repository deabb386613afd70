"""Conv4: the convolutional network of the paper (appendix D, tables D.1 and D.2), and one with wider blocks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mlpip_bench.nn import dropout, fused
from mlpip_bench.nn.backbone import Backbone, InputShape
from mlpip_bench.nn.conv_block import ConvBlock
from mlpip_bench.nn.layers import mlp
from mlpip_bench.nn.normalization import Moments, Statistics, cat_statistics, task_statistics
from mlpip_bench.nn.weights import NetworkSettings
from mlpip_bench.utils.choices import OWN_NORM, NormMode
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.numerics import backbone_autocast


@dataclass(frozen=True)
class Conv4Settings(NetworkSettings):
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
        super().__post_init__()
        if (
            min(self.blocks, self.channels) < 1
            or not 0 <= self.dropout < 1
            or (self.last is not None and self.last < 1)
        ):
            raise ValueError(f"blocks, channels and last must be at least 1, dropout from 0 to below 1; got {self}")

    @property
    def widths(self) -> tuple[int, ...]:
        """Filters of each block."""
        return (self.channels,) * self.blocks


@dataclass(frozen=True)
class Conv4x512Settings(NetworkSettings):
    """Shape of the network with wider blocks.

    Attributes:
        widths: filters of each block.
        ceil_mode, dropout, last: as of :class:`Conv4Settings`.
    """

    widths: tuple[int, ...] = (96, 192, 384, 512)
    ceil_mode: bool = False
    dropout: float = 0.0
    last: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.widths or min(self.widths) < 1 or not 0 <= self.dropout < 1 or (self.last or 1) < 1:
            raise ValueError(f"widths and last must be at least 1, dropout from 0 to below 1; got {self}")


MOST_AT_ONCE = 2**23
"""Bytes of a block's inputs, of all tasks of a batch, up to which they go through it at once on a CPU."""


class Conv4(Backbone):
    """Blocks of convolution, normalization, ReLU and pooling; 256 features for the paper's data sets."""

    reference = "Gordon et al. 2019, Meta-Learning Probabilistic Inference for Prediction (ICLR), appendix D"
    Settings: ClassVar[type] = Conv4Settings
    own_norm = True
    settings: Conv4Settings | Conv4x512Settings

    def __init__(
        self,
        input_shape: InputShape,
        settings: Conv4Settings | Conv4x512Settings,
        norm: NormMode,
        *,
        dropout: bool = False,
    ) -> None:
        super().__init__(input_shape, settings, norm, dropout=dropout)
        flattened = _outputs(input_shape, settings)
        widths = (input_shape[0], *settings.widths)
        rate = settings.dropout if dropout else 0.0
        mode: NormMode = "running" if norm == OWN_NORM else norm
        self.blocks = nn.ModuleList(
            ConvBlock(*pair, mode, ceil_mode=settings.ceil_mode, dropout=rate, last=index == len(widths) - 2)
            for index, pair in enumerate(itertools.pairwise(widths))
        )
        self.last = nn.Identity() if settings.last is None else mlp(flattened, settings.last)
        self.features = settings.last or flattened

    @classmethod
    def check(cls, input_shape: InputShape, settings: Conv4Settings | Conv4x512Settings) -> None:
        """Refuse more blocks than the images have halves."""
        if not _outputs(input_shape, settings):
            raise UserError(
                f"each block of conv4 halves height and width; {len(settings.widths)} blocks leave nothing of "
                f"{input_shape[1]}x{input_shape[2]}. Use fewer (--backbone conv4,blocks=N)."
            )

    def prepare(self, device: torch.device) -> None:
        """Have the loops of a CPU compiled."""
        if fused.usable(torch.zeros(1, device=device)):
            with backbone_autocast(device):
                dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
            fused.prepare(dtype, drops=any(block.dropout for block in self.blocks))

    def forward(
        self,
        x: Float[Tensor, "task point channel height width"],
        support: Statistics | None = None,
    ) -> tuple[Float[Tensor, "task point feature"], Statistics]:
        """Features of each task's images, and the moments of each block."""
        begin = self._blocks_task_by_task(x)
        moments: list[Moments] = []
        drops = x.device.type == "cpu" and any(block.drops for block in self.blocks)
        seeds = dropout.draw_seeds(len(self.blocks), x.shape[0]) if drops else [None] * len(self.blocks)
        if begin:
            x, moments = self._task_by_task(x, support, seeds[:begin])
        for index, block in enumerate(list(self.blocks)[begin:], begin):  # a list: higher cannot slice its own
            x, own = block(x, None if support is None else support[index], seeds[index])
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
            return len(self.blocks)
        narrow = torch.is_autocast_enabled("cpu")
        channel = tasks * points * (torch.get_autocast_dtype("cpu") if narrow else x.dtype).itemsize
        large = [
            blocks
            for blocks, width in enumerate(self.settings.widths[:-1], 1)
            if channel * width * math.prod(_halved(sides, self.settings, blocks)) > MOST_AT_ONCE
        ]
        return max(large) + 1 if large else 0

    def _task_by_task(
        self, x: Tensor, support: Statistics | None, seeds: Sequence[Sequence[int] | None]
    ) -> tuple[Tensor, list[Moments]]:
        """Through as many blocks as there are seeds of dropout."""
        outputs, per_task, blocks = [], [], len(seeds)
        for task in range(x.shape[0]):
            here = slice(task, task + 1)
            own = None if support is None else task_statistics(support[:blocks], here)
            images, moments = x[here], []
            for index, (block, noise) in enumerate(zip(list(self.blocks)[:blocks], seeds, strict=True)):
                images, found = block(images, None if own is None else own[index], noise and noise[here])
                moments.append(found)
            outputs.append(images)
            per_task.append(tuple(moments))
        # In the order of their memory, channels innermost, which torch would change.
        x = torch.cat([images.permute(0, 1, 3, 4, 2) for images in outputs]).permute(0, 1, 4, 2, 3)
        return x, list(cat_statistics(per_task))


class Conv4x512(Conv4):
    """The same blocks with 96, 192, 384 and 512 filters."""

    reference = "Gidaris et al. 2019, Boosting Few-Shot Visual Learning with Self-Supervision (ICCV)"
    Settings = Conv4x512Settings


def _halved(sides: Sequence[int], settings: Conv4Settings | Conv4x512Settings, blocks: int) -> list[int]:
    """Height and width behind so many blocks."""
    factor = 2**blocks
    return [math.ceil(side / factor) if settings.ceil_mode else side // factor for side in sides]


def _outputs(input_shape: InputShape, settings: Conv4Settings | Conv4x512Settings) -> int:
    """Of the last block."""
    return settings.widths[-1] * math.prod(_halved(input_shape[1:], settings, len(settings.widths)))
