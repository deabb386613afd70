"""ResNet-12: four residual blocks of three convolutions, the field's usual network for images of 84x84."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mlpip_bench.nn.backbone import InputShape
from mlpip_bench.nn.network import NetworkBackbone
from mlpip_bench.nn.weights import NetworkSettings
from mlpip_bench.utils.errors import UserError

SLOPE = 0.1
"""Of the leaky ReLU below 0."""


@dataclass(frozen=True)
class ResNet12Settings(NetworkSettings):
    """Shape of the network.

    Attributes:
        channels: filters of each block.
        drop_block: probability that an activation lies in a square that is dropped (Ghiasi et al. 2018, DropBlock),
            behind the last two blocks, where a method trains with dropout.
        drop_side: of that square, in activations.
        pooled: whether features are means over positions, or all that the last block has.
    """

    channels: tuple[int, ...] = (64, 160, 320, 640)
    drop_block: float = 0.0
    drop_side: int = 5
    pooled: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.channels or min(*self.channels, self.drop_side, 1) < 1 or not 0 <= self.drop_block < 1:
            raise ValueError(f"channels and drop_side must be at least 1, drop_block from 0 to below 1; got {self}")


class ResNet12(NetworkBackbone):
    """Residual blocks, each with pooling that halves height and width; 640 features, their mean over positions."""

    reference = (
        "Oreshkin et al. 2018, TADAM (NeurIPS); widths of Lee et al. 2019, "
        "Meta-Learning with Differentiable Convex Optimization (CVPR)"
    )
    Settings = ResNet12Settings
    settings: ResNet12Settings

    @classmethod
    def check(cls, input_shape: InputShape, settings: ResNet12Settings) -> None:
        """Refuse more blocks than the images have halves."""
        if min(input_shape[1:]) >> len(settings.channels) < 1:
            raise UserError(
                f"each block of resnet12 halves height and width; {len(settings.channels)} blocks leave nothing of "
                f"{input_shape[1]}x{input_shape[2]}. Use fewer, or larger images."
            )

    def build_network(self) -> nn.Module:
        """Blocks, and the mean over positions."""
        settings = self.settings
        widths = itertools.pairwise((self.input_shape[0], *settings.channels))
        last = len(settings.channels) - 2  # DropBlock is behind the last two, as in Lee et al.'s code
        blocks = [
            Block(*pair, settings.drop_block if self.dropout and index >= last else 0.0, settings.drop_side)
            for index, pair in enumerate(widths)
        ]
        behind: list[nn.Module] = [nn.AdaptiveAvgPool2d(1)] if settings.pooled else []
        return nn.Sequential(*blocks, *behind, nn.Flatten())


class Block(nn.Module):
    """Three 3x3 convolutions with a 1x1 convolution past them, leaky ReLU, 2x2 max pooling.

    Args:
        fan_in: channels of the inputs.
        channels: filters.
        drop_block, drop_side: of DropBlock; a probability of 0 for none.
    """

    def __init__(self, fan_in: int, channels: int, drop_block: float, drop_side: int) -> None:
        super().__init__()
        pairs = (fan_in, channels), (channels, channels), (channels, channels)
        self.convolutions = nn.ModuleList(nn.Conv2d(*pair, 3, padding=1, bias=False) for pair in pairs)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in pairs)
        self.past = nn.Sequential(nn.Conv2d(fan_in, channels, 1, bias=False), nn.BatchNorm2d(channels))
        for layer in (*self.convolutions, self.past[0]):
            nn.init.kaiming_normal_(layer.weight, SLOPE, "fan_out", "leaky_relu")
        self.drop_block, self.drop_side = drop_block, drop_side

    def forward(self, x: Tensor) -> Tensor:
        """``[image, channel, height, width]`` to half the height and width."""
        y = x
        for index, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            y = norm(convolution(y))
            if index < len(self.norms) - 1:
                y = F.leaky_relu(y, SLOPE)
        y = F.max_pool2d(F.leaky_relu(y + self.past(x), SLOPE), 2)
        return dropped(y, self.drop_block, self.drop_side) if self.training and self.drop_block else y


def dropped(x: Tensor, probability: float, side: int) -> Tensor:
    """DropBlock: squares of activations become 0, and the rest is scaled to the same mean (Ghiasi et al., Alg. 1)."""
    height, width = x.shape[-2:]
    side = min(side, height, width)
    centers = (height - side + 1) * (width - side + 1)
    rate = probability * height * width / (side**2 * centers)
    corners = torch.rand(*x.shape[:2], height - side + 1, width - side + 1, dtype=x.dtype, device=x.device) < rate
    kept = 1 - F.max_pool2d(F.pad(corners.to(x.dtype), [side - 1] * 4), side, stride=1)
    return x * kept * (kept.numel() / kept.sum().clamp_min(1))
