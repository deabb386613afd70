"""The order of a support set's points, for methods that depend on it.

Support sets come sorted by class: a method that reads their points one after the other, and is trained on that order,
reads classes off positions.
"""

from __future__ import annotations

import functools

import numpy as np
import torch

from mlpip_bench.tasks.batch import Labeled

_SEED = 0


def ordered(support: Labeled, *, training: bool) -> Labeled:
    """The same points in another order.

    Args:
        support: points ``[task, point, ...]`` with their targets.
        training: whether each task's order is drawn, by torch's generator; else all have the one order that belongs to
            their number of points, the same in every evaluation.

    Returns:
        The points with their targets.
    """
    tasks, points = support.y.shape[:2]
    if training:
        order = torch.rand(tasks, points, device=support.y.device).argsort(-1)
    else:
        order = torch.tensor(_fixed(points), device=support.y.device).expand(tasks, points)
    rows = torch.arange(tasks, device=support.y.device).unsqueeze(-1)
    return Labeled(support.x[rows, order], support.y[rows, order], support.way)


@functools.cache
def _fixed(points: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng([_SEED, points]).permutation(points).tolist())
