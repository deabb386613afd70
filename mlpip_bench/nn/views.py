"""The generator of view reconstruction (paper, section 5.3 and appendix E); the encoder is a backbone."""

from __future__ import annotations

import itertools

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from mlpip_bench.nn.backbone import InputShape
from mlpip_bench.nn.layers import channels_innermost, mlp, truncated_xavier_

_DOUBLINGS, _LAST_FILTERS = 4, 32


class ViewGenerator(nn.Module):
    """Two fully connected layers, then transposed 3x3 convolutions that double the side (paper, table E.4).

    Each has half the filters of the one before, 256, 128, 64 and 32 for the paper's images; ReLU between
    them and a sigmoid at the end.

    Args:
        image_shape: of the images; square.
        inputs: dimension of psi and angle together.
    """

    def __init__(self, image_shape: InputShape, inputs: int) -> None:
        super().__init__()
        channel, side, _ = image_shape
        doublings = min(_DOUBLINGS, (side & -side).bit_length() - 1)  # as often as the side can be halved
        first = _LAST_FILTERS * 2 ** (doublings - 1)
        widths = [first // 2**i for i in range(doublings)] + [channel]
        self.shape = (first, side // 2**doublings, side // 2**doublings)
        outputs = first * self.shape[1] ** 2
        self.hidden, self.dense = mlp(inputs, outputs // 2), mlp(outputs // 2, outputs)
        self.deconvolutions = nn.ModuleList(
            nn.ConvTranspose2d(fan_in, fan_out, 3, stride=2, padding=1, output_padding=1)
            for fan_in, fan_out in itertools.pairwise(widths)
        )
        for deconvolution in self.deconvolutions:
            truncated_xavier_(deconvolution.weight)  # type: ignore[arg-type]

    def forward(self, inputs: Float[Tensor, "*batch psi_and_angle"]) -> Float[Tensor, "*batch channel height width"]:
        """Images in [0, 1]."""
        x = F.relu(self.dense(F.relu(self.hidden(inputs.flatten(0, -2))))).unflatten(1, self.shape)
        x = channels_innermost(x)
        for deconvolution in self.deconvolutions[:-1]:
            x = F.relu(deconvolution(x))
        images: Tensor = torch.sigmoid(self.deconvolutions[-1](x)).unflatten(0, inputs.shape[:-1])
        return images
