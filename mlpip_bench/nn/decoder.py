"""A decoder of vectors to images of any size."""

from __future__ import annotations

import math

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from mlpip_bench.nn.backbone import InputShape
from mlpip_bench.nn.layers import channels_innermost, mlp, truncated_xavier_

_LARGEST_START, _CHANNELS = 7, 64


class ImageDecoder(nn.Module):
    """A fully connected layer to small maps, transposed 3x3 convolutions that double their sides, and a last one.

    Maps begin with at most 7 pixels a side; what doubling leaves beyond the image is cut off: 28 is 7 doubled twice, 32
    is 4 three times, and 84 is cut out of 6 doubled four times. ELU between layers, and nothing behind the last.

    Args:
        image_shape: of what is decoded; of a vector, which has one pixel, too.
        inputs: dimension of the vector.
    """

    def __init__(self, image_shape: InputShape, inputs: int) -> None:
        super().__init__()
        channel, *self.sides = image_shape
        doublings = max(0, math.ceil(math.log2(max(self.sides) / _LARGEST_START)))
        self.start = (_CHANNELS, *(math.ceil(side / 2**doublings) for side in self.sides))
        self.dense = mlp(inputs, math.prod(self.start))
        self.doublings = nn.ModuleList(
            nn.ConvTranspose2d(_CHANNELS, _CHANNELS, 3, stride=2, padding=1, output_padding=1) for _ in range(doublings)
        )
        self.last = nn.Conv2d(_CHANNELS, channel, 3, padding=1)
        for layer in (*self.doublings, self.last):
            truncated_xavier_(layer.weight)

    def forward(self, inputs: Float[Tensor, "*batch input"]) -> Float[Tensor, "*batch channel height width"]:
        """Real numbers, a pixel and channel each."""
        x = F.elu(self.dense(inputs.flatten(0, -2))).unflatten(1, self.start)
        x = channels_innermost(x)
        for doubling in self.doublings:
            x = F.elu(doubling(x))
        height, width = self.sides
        images: Tensor = self.last(x)[..., :height, :width].unflatten(0, inputs.shape[:-1])
        return images
