"""Layers and initializations that networks share."""

from __future__ import annotations

import itertools
import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


def truncated_xavier_(weight: Tensor) -> None:
    """Xavier initialization with a normal truncated at two deviations, as the reference code has it.

    The factor 1.3 makes up for the variance that truncation takes away.
    """
    fan_in, fan_out = nn.init._calculate_fan_in_and_fan_out(weight)
    std = math.sqrt(1.3 * 2 / (fan_in + fan_out))
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def channels_innermost(images: Tensor) -> Tensor:
    """The same images with the channels innermost on a CPU, where convolution and pooling are then faster.

    Of images with one channel torch can distinguish the two layouts by the strides alone.
    """
    if images.device.type != "cpu":
        return images
    if images.shape[1] > 1:
        return images.contiguous(memory_format=torch.channels_last)
    points, _, height, width = images.shape
    return images.reshape(points, height, width, 1).permute(0, 3, 1, 2)


NARROWEST = 64
"""Width of hidden layers behind fewer features, such as the inputs of a linear regression."""


class Linear(nn.Linear):
    """A fully connected layer whose parameters may have a leading task dimension, for a layer of each task's own."""

    def reset_parameters(self) -> None:
        """As torch does, which warns of a layer without inputs: that is a bias."""
        if self.in_features:
            super().reset_parameters()
        else:
            nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "task point feature"]) -> Float[Tensor, "task point output"]:
        """``x W' + b``."""
        if self.weight.dim() == 2:
            return super().forward(x)
        return torch.baddbmm(self.bias.unsqueeze(1), x, self.weight.mT)


class Convolution(nn.Conv2d):
    """A 3x3 convolution with filters that are given, such as its own that were changed; hooks see it as any other."""

    def forward(  # type: ignore[override]
        self,
        images: Float[Tensor, "point group_and_channel height width"],
        weight: Float[Tensor, "group_and_filter channel side side"],
        groups: int,
    ) -> Float[Tensor, "point group_and_filter height width"]:
        """Each group of channels with filters of its own."""
        return F.conv2d(images, weight, padding=1, groups=groups)

    @property
    def watched(self) -> bool:
        """Whether there are forward hooks, which must not be passed by."""
        return bool(self._forward_hooks)


def mlp(*sizes: int, last_bias: bool = True) -> nn.Sequential:
    """Fully connected layers with ELU between them (paper, table D.3).

    Args:
        sizes: of the input and of each layer's output.
        last_bias: whether the last layer has a bias; one that all classes share is nothing to a softmax.
    """
    layers: list[nn.Module] = []
    for index, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        linear = Linear(fan_in, fan_out, bias=last_bias or index < len(sizes) - 2)
        truncated_xavier_(linear.weight)
        if linear.bias is not None:
            nn.init.normal_(linear.bias, std=1e-3)
        layers += [nn.ELU(), linear] if index else [linear]
    return nn.Sequential(*layers)


def last_bias(network: nn.Sequential) -> Tensor:
    """The bias of the last layer of :func:`mlp`."""
    last = network[-1]
    assert isinstance(last, nn.Linear)
    return last.bias


def std_from_log_variance(log_variance: Tensor) -> Tensor:
    """Standard deviation; the clamp to [-20, 10] keeps it finite, and above 0, whatever training does."""
    return (log_variance.clamp(-20.0, 10.0) / 2).exp()
