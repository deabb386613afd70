"""Minibatches of images of all classes of a split, as classifiers are trained on, with random changes of the images."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from mlpip_bench.tasks.batch import Labeled, TaskBatch, TaskShape
from mlpip_bench.tasks.images import ImagePool
from mlpip_bench.tasks.stream import block_generator


@dataclass(frozen=True)
class Augmentation:
    """Random changes of images, each image's its own.

    Attributes:
        crop: pixels of padding around an image, before a crop of its own size.
        flip: whether every other image is mirrored.
        jitter: largest relative change of brightness, contrast and, of three channels, saturation.
    """

    crop: int = 0
    flip: bool = False
    jitter: float = 0.0

    def apply(
        self, images: Float[Tensor, "image channel height width"], rng: np.random.Generator
    ) -> Float[Tensor, "image channel height width"]:
        """Changed images, in [0, 1]."""
        if self.crop:
            images = _cropped(images, self.crop, rng)
        if self.flip:
            mirrored = torch.from_numpy(rng.random(len(images)) < 0.5).to(images.device)
            images = torch.where(mirrored.view(-1, 1, 1, 1), images.flip(-1), images)
        if self.jitter:
            images = _jittered(images, self.jitter, rng)
        return images


def _cropped(images: Tensor, padding: int, rng: np.random.Generator) -> Tensor:
    many, channels, height, width = images.shape
    padded = torch.nn.functional.pad(images, [padding] * 4)
    top, left = (torch.from_numpy(rng.integers(2 * padding, size=(2, many), endpoint=True))).to(images.device)
    rows, columns = (
        start.view(-1, 1) + torch.arange(side, device=images.device) for start, side in ((top, height), (left, width))
    )
    of_image = torch.arange(many, device=images.device).view(-1, 1, 1, 1)
    channel = torch.arange(channels, device=images.device).view(1, -1, 1, 1)
    return padded[of_image, channel, rows.view(many, 1, -1, 1), columns.view(many, 1, 1, -1)]


def _jittered(images: Tensor, most: float, rng: np.random.Generator) -> Tensor:
    factors = torch.from_numpy(rng.uniform(1 - most, 1 + most, size=(3, len(images), 1, 1, 1))).to(images)
    brightness, contrast, saturation = factors
    images = images * brightness
    mean = images.mean((1, 2, 3), keepdim=True)
    images = mean + contrast * (images - mean)
    if images.shape[1] == 3:
        gray = images.mean(1, keepdim=True)
        images = gray + saturation * (images - gray)
    return images.clamp(0, 1)


class ImageBatches:
    """A stream whose tasks are minibatches: images of all classes with these as labels, and no queries.

    Each image comes once an epoch, in an order of the epoch's own.

    Args:
        pool: a split's images.
        size: of a minibatch.
        augmentation: of images; vectors are left as they are.
        seed: components of the name of its seed.
    """

    def __init__(self, pool: ImagePool, size: int, augmentation: Augmentation, *seed: str | int) -> None:
        self.pool, self.size, self.augmentation, self.seed = pool, size, augmentation, seed
        self.device = pool.device
        self.way = pool.data.num_classes
        self.shape = TaskShape(self.way, 1, 1)
        self._labels = torch.arange(self.way).repeat_interleave(pool.counts)
        self._order = functools.lru_cache(maxsize=2)(self._draw_order)

    def batch(self, first: int, tasks: int) -> TaskBatch:
        """The minibatches ``first .. first+tasks-1``."""
        index = torch.from_numpy(np.stack([self._indices(number) for number in range(first, first + tasks)]))
        x = self.pool.gather_images(index)
        if x.shape[-2:] != (1, 1):
            changed = [
                self.augmentation.apply(images, block_generator((*self.seed, "augmentation"), number))
                for number, images in enumerate(x, first)
            ]
            x = torch.stack(changed)
        y = self._labels[index].to(self.device)
        # Of another shape than images, so that nobody takes them through a network.
        nothing = Labeled(x.new_zeros(tasks, 0, 1), y[:, :0], self.way)
        return TaskBatch(Labeled(x, y, self.way), nothing)

    def _indices(self, number: int) -> NDArray[np.int64]:
        places = np.arange(number * self.size, (number + 1) * self.size)
        epochs, places = np.divmod(places, len(self._labels))
        return np.array([self._order(int(e))[p] for e, p in zip(epochs, places, strict=True)])

    def _draw_order(self, epoch: int) -> NDArray[np.int64]:
        return block_generator((*self.seed, "order"), epoch).permutation(len(self._labels))
