"""Backbones: images to features (paper, appendix D), shared by all methods of a bench."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from mlpip_bench.nn.layers import channels_innermost, mlp, truncated_xavier_
from mlpip_bench.nn.normalization import Moments, Normalization, NormMode, Statistics, cat_statistics, task_statistics


@dataclass(frozen=True)
class ExtractorSpec:
    """Shape of a feature extractor.

    Attributes:
        image_shape: ``(channel, height, width)`` of the input; ``(dimension, 1, 1)`` for vectors.
        blocks: number of convolutional blocks; without any, the features are the inputs.
        channels: filters of each block.
        ceil_mode: whether pooling rounds sizes up (the paper's SAME) or down (VALID).
        dropout: probability of dropping an activation where a method trains with dropout.
        last: outputs of a linear layer behind the blocks; None for no such layer.
    """

    image_shape: tuple[int, int, int]
    blocks: int
    channels: int = 64
    ceil_mode: bool = False
    dropout: float = 0.0
    last: int | None = None

    @property
    def features(self) -> int:
        """Dimension of h(x); 256 for the paper's data sets."""
        return self.last or self.flattened

    @property
    def flattened(self) -> int:
        """Outputs of the last block; the inputs' dimension where there is none."""
        channels, height, width = self.image_shape
        for _ in range(self.blocks):
            height, width = (math.ceil(s / 2) if self.ceil_mode else s // 2 for s in (height, width))
        return (self.channels if self.blocks else channels) * height * width


class ConvBlock(nn.Module):
    """3x3 convolution, normalization, ReLU, dropout, 2x2 max pooling (paper, tables D.1 and D.2)."""

    def __init__(self, in_channels: int, spec: ExtractorSpec, norm: NormMode, dropout: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, spec.channels, 3, padding=1, bias=False)
        truncated_xavier_(self.conv.weight)
        self.norm = Normalization(spec.channels, norm)
        self.dropout = dropout
        self.ceil_mode = spec.ceil_mode

    def forward(self, x: Tensor, support: Moments | None, *, track: bool) -> tuple[Tensor, Moments]:
        """``[task, point, channel, height, width]`` to half the height and width."""
        norm, tasks = self.norm, x.shape[0]
        images, weight = self._images(x), self.conv.weight
        if norm.mode in ("layer", "running") or (self.training and self.dropout):
            y = self._tasks(self._convolve(images, weight, tasks), tasks)
            by, moments = norm.statistics(y, support, track=track)
            y = F.dropout(F.relu(norm.affine(y, by)), self.dropout, self.training)
            return self._tasks(self._pool(self._images(y)), tasks), moments
        # The same with a quarter of the work behind the convolution: a maximum passes through ReLU and through a
        # factor that is not negative. So filters whose scale is negative are negated, and their statistics with them.
        sign = torch.where(norm.scale < 0, -1.0, 1.0).to(weight)
        images = self._convolve(images, weight * sign.unsqueeze(-1), tasks)
        by, moments = norm.statistics(self._tasks(images, tasks), support, track=track)
        return F.relu(norm.affine(self._tasks(self._pool(images), tasks), by, norm.scale.abs())), moments

    @property
    def has_filters_of_tasks(self) -> bool:
        """Whether the parameters have a leading task dimension, for a network of each task's own."""
        return self.conv.weight.dim() == 5

    def _images(self, x: Tensor) -> Tensor:
        """Images of all tasks; where each task has its filters, its channels are a group beside those of the others."""
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


_Features: TypeAlias = tuple[Tensor, Statistics]


class FeatureExtractor(nn.Module):
    """h_theta(x): images to features.

    Args:
        spec: its shape.
        norm: normalization mode.
        dropout: whether training drops activations, at the rate of ``spec.dropout``.
    """

    def __init__(self, spec: ExtractorSpec, norm: NormMode, *, dropout: bool = False) -> None:
        super().__init__()
        widths = [spec.image_shape[0]] + [spec.channels] * spec.blocks
        self.blocks = nn.ModuleList(
            ConvBlock(width, spec, norm, spec.dropout if dropout else 0.0) for width in widths[:-1]
        )
        self.last = nn.Identity() if spec.last is None else mlp(spec.flattened, spec.last)
        self.kept: dict[tuple[int, ...], tuple[_Features, tuple[object, ...]]] | None = None  # see features_once

    def forward(
        self,
        x: Float[Tensor, "task point channel height width"],
        support: Statistics | None = None,
        *,
        track: bool = True,
    ) -> tuple[Float[Tensor, "task point feature"], Statistics]:
        """Features of each task's images.

        Args:
            x: images in [0, 1].
            support: statistics of the support set; None where ``x`` is the support set.
            track: whether running averages may be updated while training.

        Returns:
            Features, and the support statistics.
        """
        if self.kept is None or torch.is_grad_enabled():
            return self._features(x, support, track)
        made_of = (x, support, *self.parameters())
        key = tuple(map(id, made_of))  # the objects are kept, so that no other gets the name of one
        if key not in self.kept:
            self.kept[key] = (self._features(x, support, track), made_of)
        return self.kept[key][0]

    def _features(self, x: Tensor, support: Statistics | None, track: bool) -> _Features:
        shared = not any(block.has_filters_of_tasks for block in self.blocks)
        if x.device.type == "cpu" and x.shape[0] > 1 and self.blocks and shared:
            # A task at a time: its activations stay in the cache, about twice as fast as a flat batch.
            return self._task_by_task(x, support, track)
        moments: list[Moments] = []
        for index, block in enumerate(self.blocks):
            x, own = block(x, None if support is None else support[index], track=track)
            moments.append(own)
        return self.last(x.flatten(2)), tuple(moments)

    def _task_by_task(self, x: Tensor, support: Statistics | None, track: bool) -> _Features:
        outputs, per_task = [], []
        for task in range(x.shape[0]):
            own = None if support is None else task_statistics(support, slice(task, task + 1))
            features, statistics = self._features(x[task : task + 1], own, track)
            outputs.append(features)
            per_task.append(statistics)
        return torch.cat(outputs), cat_statistics(per_task)


@contextlib.contextmanager
def features_once(module: nn.Module) -> Iterator[None]:
    """Within, and without autograd, features of one tensor of images under the same parameters are computed once."""
    extractors = [part for part in module.modules() if isinstance(part, FeatureExtractor)]
    for extractor in extractors:
        extractor.kept = {}
    try:
        yield
    finally:
        for extractor in extractors:
            extractor.kept = None
