"""MLP: fully connected layers with ELU or ReLU between them, for vectors and small images."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from mlpip_bench.nn.backbone import Backbone, InputShape
from mlpip_bench.nn.layers import Linear, mlp
from mlpip_bench.nn.normalization import Statistics
from mlpip_bench.nn.weights import NetworkSettings
from mlpip_bench.utils.choices import NormMode


@dataclass(frozen=True)
class MLPSettings(NetworkSettings):
    """Shape of the network.

    Attributes:
        layers: number of fully connected layers.
        features: outputs of each.
        activation: ``elu``, with initial biases near 0; or ``relu``, with initial parameters as torch has them, whose
            biases spread the kinks over the inputs.
    """

    layers: int = 2
    features: int = 64
    activation: Literal["elu", "relu"] = "elu"

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.layers, self.features) < 1:
            raise ValueError(f"layers and features must be at least 1; got {self.layers}, {self.features}")


class MLP(Backbone):
    """Fully connected layers with ELU or ReLU between and behind them; nothing is normalized."""

    reference = "Clevert et al. 2016, Fast and Accurate Deep Network Learning by Exponential Linear Units (ICLR)"
    normalizes = False
    Settings = MLPSettings
    settings: MLPSettings

    def __init__(
        self, input_shape: InputShape, settings: MLPSettings, norm: NormMode, *, dropout: bool = False
    ) -> None:
        super().__init__(input_shape, settings, norm, dropout=dropout)
        self.features = settings.features
        sizes = math.prod(input_shape), *[settings.features] * settings.layers
        self.layers = mlp(*sizes) if settings.activation == "elu" else _relu(*sizes)

    def forward(
        self,
        x: Float[Tensor, "task point channel height width"],
        support: Statistics | None = None,  # noqa: ARG002
    ) -> tuple[Float[Tensor, "task point feature"], Statistics]:
        """Features of each point alone."""
        outputs = self.layers(x.flatten(2))
        return F.elu(outputs) if self.settings.activation == "elu" else F.relu(outputs), ()


def _relu(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = [Linear(*pair) for pair in itertools.pairwise(sizes)]
    return nn.Sequential(*itertools.chain.from_iterable((layer, nn.ReLU()) for layer in layers[:-1]), layers[-1])
