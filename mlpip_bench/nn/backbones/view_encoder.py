"""View encoder: convolutions and a fully connected layer, for images of objects (paper, appendix E, table E.2)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from mlpip_bench.nn.backbone import Backbone, InputShape
from mlpip_bench.nn.layers import channels_innermost, mlp, truncated_xavier_
from mlpip_bench.nn.normalization import Statistics
from mlpip_bench.nn.weights import NetworkSettings
from mlpip_bench.utils.choices import NormMode


@dataclass(frozen=True)
class ViewEncoderSettings(NetworkSettings):
    """Shape of the network.

    Attributes:
        blocks: number of convolutions, each followed by pooling.
        channels: filters of each.
    """

    blocks: int = 4
    channels: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.blocks, self.channels) < 1:
            raise ValueError(f"blocks and channels must be at least 1; got {self.blocks}, {self.channels}")


class ViewEncoder(Backbone):
    """3x3 convolution, ReLU, 2x2 max pooling, four times; then a fully connected layer. Nothing is normalized."""

    reference = "Gordon et al. 2019, Meta-Learning Probabilistic Inference for Prediction (ICLR), appendix E"
    normalizes = False
    Settings = ViewEncoderSettings
    settings: ViewEncoderSettings

    def __init__(
        self, input_shape: InputShape, settings: ViewEncoderSettings, norm: NormMode, *, dropout: bool = False
    ) -> None:
        super().__init__(input_shape, settings, norm, dropout=dropout)
        channel, height, width = input_shape
        widths = [channel] + [settings.channels] * settings.blocks
        self.convolutions = nn.ModuleList(
            nn.Conv2d(fan_in, fan_out, 3, padding=1) for fan_in, fan_out in itertools.pairwise(widths)
        )
        for convolution in self.convolutions:
            truncated_xavier_(convolution.weight)  # type: ignore[arg-type]
        self.features = settings.channels * (height >> settings.blocks) * (width >> settings.blocks)
        self.dense = mlp(self.features, self.features)

    def forward(
        self,
        x: Float[Tensor, "task point channel height width"],
        support: Statistics | None = None,  # noqa: ARG002
    ) -> tuple[Float[Tensor, "task point feature"], Statistics]:
        """Features of images in [0, 1]."""
        images = channels_innermost(x.flatten(0, 1))
        for convolution in self.convolutions:
            images = F.relu(F.max_pool2d(convolution(images), 2))  # pooled first, ReLU has a quarter of the work
        return F.relu(self.dense(images.flatten(1))).unflatten(0, x.shape[:2]), ()
