"""Identity: no network, the features are the inputs."""

from __future__ import annotations

import math

from jaxtyping import Float
from torch import Tensor

from mlpip_bench.nn.backbone import Backbone, InputShape
from mlpip_bench.nn.normalization import Statistics
from mlpip_bench.utils.choices import NormMode
from mlpip_bench.utils.settings import NoSettings


class Identity(Backbone):
    """Inputs as they are, flattened; nothing is normalized."""

    reference = "none: the identity"
    Settings = NoSettings
    learns = False
    normalizes = False

    def __init__(self, input_shape: InputShape, settings: NoSettings, norm: NormMode, *, dropout: bool = False) -> None:
        super().__init__(input_shape, settings, norm, dropout=dropout)
        self.features = math.prod(input_shape)

    def forward(
        self,
        x: Float[Tensor, "task point channel height width"],
        support: Statistics | None = None,  # noqa: ARG002
    ) -> tuple[Float[Tensor, "task point feature"], Statistics]:
        """The inputs themselves."""
        return x.flatten(2), ()
