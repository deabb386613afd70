"""How a backbone may be trained before meta-training: by classification of all training classes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Pretraining:
    """Classification of all training classes at once, by a backbone with a head that is then thrown away.

    The network has ordinary batch norm: statistics of a batch in training, running averages afterward.

    Attributes:
        head: a linear classifier; or one of the cosines between features and weights (Chen et al. 2019, baseline++).
        scale: factor on the cosines.
        iterations: optimizer steps.
        batch_size: images of each step.
        learning_rate: at the first iteration.
        optimizer: of ``torch.optim``.
        momentum: of SGD.
        weight_decay: as the optimizer has it.
        schedule: of the learning rate, in ``torch.optim.lr_scheduler``: to 0 by a cosine; times ``gamma`` after each
            third of the iterations; or none.
        gamma: of StepLR.
        crop: pixels that an image is padded by before a crop of its own size; 0 for none.
        flip: whether images are mirrored at random.
        jitter: largest relative change of brightness, contrast and, of colors, saturation; 0 for none.
    """

    head: Literal["linear", "cosine"] = "linear"
    scale: float = 10.0
    iterations: int = 4000
    batch_size: int = 64
    learning_rate: float = 0.05
    optimizer: Literal["SGD", "Adam"] = "SGD"
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: Literal["constant", "CosineAnnealingLR", "StepLR"] = "CosineAnnealingLR"
    gamma: float = 0.1
    crop: int = 4
    flip: bool = False
    jitter: float = 0.0

    def __post_init__(self) -> None:
        positive = ("scale", "iterations", "batch_size", "learning_rate", "gamma")
        for name in (*positive, "momentum", "weight_decay", "crop", "jitter"):
            value = getattr(self, name)
            if not 0 <= value < math.inf or (value == 0 and name in positive):
                raise ValueError(f"{name} must be {'positive' if name in positive else '0 or more'}; got {value}")
        if self.jitter >= 1:
            raise ValueError(f"jitter must be below 1; got {self.jitter}")
        if self.batch_size < 2:
            raise ValueError("batch norm needs at least 2 images of a batch; got a batch_size of 1")
