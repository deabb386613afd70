"""Networks of view reconstruction (paper, section 5.3 and appendix E)."""

from __future__ import annotations

import itertools

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from mlpip_bench.nn.backbones import ExtractorSpec
from mlpip_bench.nn.layers import channels_innermost, mlp, truncated_xavier_


class ViewEncoder(nn.Module):
    """3x3 convolution, ReLU, 2x2 max pooling, four times; then a fully connected layer (paper, table E.2)."""

    def __init__(self, spec: ExtractorSpec) -> None:
        super().__init__()
        widths = [spec.image_shape[0]] + [spec.channels] * spec.blocks
        self.convolutions = nn.ModuleList(
            nn.Conv2d(fan_in, fan_out, 3, padding=1) for fan_in, fan_out in itertools.pairwise(widths)
        )
        for convolution in self.convolutions:
            truncated_xavier_(convolution.weight)  # type: ignore[arg-type]
        self.dense = mlp(spec.flattened, spec.features)

    def forward(self, images: Float[Tensor, "task point channel height width"]) -> Float[Tensor, "task point feature"]:
        """Features of images in [0, 1]."""
        x = channels_innermost(images.flatten(0, 1))
        for convolution in self.convolutions:
            x = F.relu(F.max_pool2d(convolution(x), 2))  # pooled first, ReLU has a quarter of the work
        features: Tensor = F.relu(self.dense(x.flatten(1))).unflatten(0, images.shape[:2])
        return features


class ViewGenerator(nn.Module):
    """Two fully connected layers, then transposed 3x3 convolutions that double the side (paper, table E.4).

    Each has half the filters of the one before, 256, 128, 64 and 32 for the paper's spec; ReLU between
    them and a sigmoid at the end.
    """

    def __init__(self, spec: ExtractorSpec, inputs: int) -> None:
        super().__init__()
        channel, side, _ = spec.image_shape
        first = spec.channels * 2 ** (spec.blocks - 2)
        widths = [first // 2**i for i in range(spec.blocks)] + [channel]
        self.shape = (first, side // 2**spec.blocks, side // 2**spec.blocks)
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
