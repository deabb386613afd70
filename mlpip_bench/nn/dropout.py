"""Dropout before 2x2 pooling, on a CPU: whole windows of random bits at once, from numpy's generators.

Its noise is the same by each way through a block and on each machine. That of torch depends on the library that it was
built with, and can take longer to draw than the convolution does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

_VALUES = 2**16
"""Of the integer that decides about an activation: a rate is kept to within 1/131072."""


def draw_seeds(blocks: int, tasks: int) -> list[list[int]]:
    """A seed for each block and task, from torch's generator of the CPU."""
    seeds: list[list[int]] = torch.randint(2**62, (blocks, tasks), device="cpu").tolist()
    return seeds


def kept(seeds: Sequence[int], rate: float, size: tuple[int, int, int, int], *, groups: bool) -> Any:
    """Which activations of each window are kept.

    Args:
        seeds: of each task.
        rate: probability of dropping one.
        size: points of a task, windows in height and width, channels.
        groups: whether the channels of the tasks lie side by side, and not their points behind each other.

    Returns:
        Booleans, ``[place in the window, point, height, width, channel]``.
    """
    points, height, width, channels = size
    tasks = len(seeds)
    shape = (points, height, width, tasks, channels) if groups else (tasks, points, height, width, channels)
    found = np.empty((4, *shape), bool)
    least = np.uint16(round(rate * _VALUES))
    for task, seed in enumerate(seeds):
        # Of bit generators the numbers are promised to stay; a 64-bit integer is four of 16 bits.
        bits = np.random.SFC64(seed).random_raw(points * height * width * channels).astype("<u8", copy=False)
        own = found[..., task, :] if groups else found[:, task]
        np.greater_equal(bits.view("<u2").reshape(4, *size), least, out=own)
    return found.reshape(4, *((points, height, width, tasks * channels) if groups else (-1, height, width, channels)))


def drop(
    x: Float[Tensor, "point channel height width"], windows: Any, rate: float
) -> Float[Tensor, "point channel height width"]:
    """Activations before pooling, 0 where they are not kept, and so much larger elsewhere.

    Args:
        x: activations.
        windows: as of :func:`kept`.
        rate: likewise.
    """
    _, _, rows, columns, _ = windows.shape
    # [two, two, point, row, column, channel] to whole images; what pooling that rounds down leaves out is kept.
    mask = torch.from_numpy(windows).unflatten(0, (2, 2)).permute(2, 5, 3, 0, 4, 1).flatten(4, 5).flatten(2, 3)
    height, width = x.shape[2:]
    mask = F.pad(mask, (0, max(width - 2 * columns, 0), 0, max(height - 2 * rows, 0)), value=True)
    return x * mask[..., :height, :width] / (1 - rate)
