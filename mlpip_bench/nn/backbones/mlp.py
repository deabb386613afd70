"""MLP: fully connected layers with ELU between them, for vectors and small images."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from mlpip_bench.nn.backbone import Backbone, InputShape
from mlpip_bench.nn.layers import mlp
from mlpip_bench.nn.normalization import Statistics
from mlpip_bench.utils.choices import NormMode


@dataclass(frozen=True)
class MLPSettings:
    """Shape of the network.

    Attributes:
        layers: number of fully connected layers.
        features: outputs of each.
    """

    layers: int = 2
    features: int = 64

    def __post_init__(self) -> None:
        if min(self.layers, self.features) < 1:
            raise ValueError(f"layers and features must be at least 1; got {self.layers}, {self.features}")


class MLP(Backbone):
    """Fully connected layers with ELU between and behind them; nothing is normalized."""

    reference = "Clevert et al. 2016, Fast and Accurate Deep Network Learning by Exponential Linear Units (ICLR)"
    Settings = MLPSettings
    settings: MLPSettings

    def __init__(
        self, input_shape: InputShape, settings: MLPSettings, norm: NormMode, *, dropout: bool = False
    ) -> None:
        super().__init__(input_shape, settings, norm, dropout=dropout)
        self.features = settings.features
        self.layers = mlp(math.prod(input_shape), *[settings.features] * settings.layers)

    def forward(
        self,
        x: Float[Tensor, "task point channel height width"],
        support: Statistics | None = None,  # noqa: ARG002
    ) -> tuple[Float[Tensor, "task point feature"], Statistics]:
        """Features of each point alone."""
        return F.elu(self.layers(x.flatten(2))), ()
