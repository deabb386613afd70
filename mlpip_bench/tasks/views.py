"""Tasks that ask for views of an object, given some of them (paper, section 5.3)."""

from __future__ import annotations

import functools
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mlpip_bench.datasets.views import VIEWS
from mlpip_bench.tasks.batch import TaskBatch, TaskShape
from mlpip_bench.tasks.images import ImagePool
from mlpip_bench.tasks.stream import BLOCK, block_generator, blocks
from mlpip_bench.utils.errors import UserError

Angles = Literal["sincos", "degrees"]


class ViewStream:
    """Tasks that ask for views of one object, given some of them; x is a view's angle and y its image.

    The order of points says nothing that their angles do not say.

    Args:
        pool: objects as classes, each with ``VIEWS`` images in the order of their azimuth.
        shape: of way 1; its shots are the given views.
        angles: what x holds: sine and cosine of the azimuth, or degrees before them (as the reference code).
        seed: components of the stream's name.
        every_object: whether task ``i`` is object ``i`` and asks for all ``VIEWS`` views in order, the given
            ones too, as a test does; else objects are drawn at random, and none of the given views is asked for.
    """

    def __init__(
        self, pool: ImagePool, shape: TaskShape, angles: Angles, *seed: str | int, every_object: bool = False
    ) -> None:
        given = shape.shots_per_class[0]
        if given + (0 if every_object else shape.queries) > VIEWS:
            others = "" if every_object else f" and {shape.queries} to reconstruct in training"
            raise UserError(
                f"an object has {VIEWS} views; got {given} given ones{others}. Use views{VIEWS - 1}s at most."
            )
        self.pool, self.shape, self.seed, self.device = pool, shape, seed, pool.device
        self._every_object = every_object
        azimuth = torch.arange(VIEWS, dtype=torch.float64) * (2 * torch.pi / VIEWS)
        columns = [azimuth.sin(), azimuth.cos()]
        if angles == "degrees":
            columns.insert(0, azimuth.rad2deg())
        self._angles = torch.stack(columns, -1).to(torch.float32)
        self._block = functools.lru_cache(maxsize=2)(self._draw)

    def _draw(self, block: int) -> tuple[Tensor, Tensor]:
        """Objects ``[task]``, and their views ``[task, point]``, the given ones first."""
        rng = block_generator(self.seed, block)
        given = self.shape.shots_per_class[0]
        objects = rng.integers(self.pool.data.num_classes, size=BLOCK)
        views = rng.permuted(np.tile(np.arange(VIEWS), (BLOCK, 1)), axis=1)[:, : given + self.shape.queries]
        if self._every_object:
            objects = (block * BLOCK + np.arange(BLOCK)) % self.pool.data.num_classes
            views = np.concatenate([views[:, :given], np.tile(np.arange(VIEWS), (BLOCK, 1))], 1)
        return torch.from_numpy(objects), torch.from_numpy(views)

    def batch(self, first: int, tasks: int) -> TaskBatch:
        """Tasks ``first .. first+tasks-1`` as tensors on the pool's device."""
        objects, views = (
            torch.cat(column)
            for column in zip(*([a[rows] for a in self._block(b)] for b, rows in blocks(first, tasks)), strict=True)
        )
        images = self.pool.gather_images(self.pool.starts[objects].unsqueeze(1) + views)
        return TaskBatch.parted(self._angles[views].to(self.device), images, self.shape.shots_per_class[0])
