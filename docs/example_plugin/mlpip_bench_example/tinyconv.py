"""TinyConv: a convolution over patches that do not overlap, normalization and ReLU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from mlpip_bench.nn.backbone import Backbone, InputShape
from mlpip_bench.nn.normalization import Normalization, Statistics
from mlpip_bench.utils.choices import NormMode
from mlpip_bench.utils.errors import UserError


@dataclass(frozen=True)
class TinyConvSettings:
    """Shape of the network.

    Attributes:
        side: of a patch, in pixels.
        channels: filters.
    """

    side: int = 4
    channels: int = 8


class TinyConv(Backbone):
    """One layer; its weight may have a leading task dimension, for methods that adapt it."""

    reference = "none: an example"
    Settings = TinyConvSettings
    settings: TinyConvSettings

    def __init__(
        self, input_shape: InputShape, settings: TinyConvSettings, norm: NormMode, *, dropout: bool = False
    ) -> None:
        super().__init__(input_shape, settings, norm, dropout=dropout)
        channels, height, width = input_shape
        self.weight = nn.Parameter(torch.empty(channels * settings.side**2, settings.channels))
        nn.init.xavier_normal_(self.weight)
        self.norm = Normalization(settings.channels, norm)
        self.features = settings.channels * (height // settings.side) * (width // settings.side)

    @classmethod
    def check(cls, input_shape: InputShape, settings: TinyConvSettings) -> None:
        """Refuse patches that are larger than the images."""
        if not 1 <= settings.side <= min(input_shape[1:]):
            raise UserError(
                f"a patch must fit into {input_shape[1]}x{input_shape[2]}; got side {settings.side}. "
                "Use another (--backbone tinyconv,side=N)."
            )

    def forward(
        self,
        x: Float[Tensor, "task point channel height width"],
        support: Statistics | None = None,
    ) -> tuple[Float[Tensor, "task point feature"], Statistics]:
        """Features, and the moments that normalize the queries."""
        tasks, points = x.shape[:2]
        patches = F.unfold(x.flatten(0, 1), self.settings.side, stride=self.settings.side)  # image value patch
        filtered = patches.mT.reshape(tasks, -1, patches.shape[1]) @ self.weight
        activations = filtered.unflatten(1, (points, -1)).mT.unsqueeze(-1)  # task point channel patch 1
        normalized, moments = self.norm(activations, None if support is None else support[0])
        return F.relu(normalized).flatten(2), (moments,)
