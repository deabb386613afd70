"""Minibatches of all classes, and random changes of their images."""

import numpy as np
import pytest
import torch

from builders import make_pool
from mlpip_bench.tasks.minibatches import Augmentation, ImageBatches

COUNTS = (5, 5, 5, 5)
IMAGES = np.arange(20, dtype=np.uint8).reshape(4, 5, 1, 1, 1) * np.ones((1, 1, 1, 3, 3), np.uint8)
"""Four classes of five images, each of one gray value, which tells it."""


def values(batch) -> list[int]:
    return (batch.support.x[..., 0, 0, 0] * 255).round().int().flatten().tolist()


def test_each_image_comes_once_an_epoch_with_its_class():
    stream = ImageBatches(make_pool(IMAGES), 4, Augmentation(), "name", 0)
    epochs = [[stream.batch(5 * epoch + i, 1) for i in range(5)] for epoch in range(2)]
    orders = [[value for batch in epoch for value in values(batch)] for epoch in epochs]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(20))
    assert orders[0] != orders[1]
    for batch in epochs[0]:
        assert [value // 5 for value in values(batch)] == batch.support.y.flatten().tolist()
        assert batch.support.way == 4
        assert not batch.query.x.numel()


def test_a_minibatch_is_a_function_of_its_number():
    augmentation = Augmentation(crop=2, flip=True, jitter=0.4)
    pool = make_pool(np.random.default_rng(0).integers(0, 255, (3, 4, 3, 6, 6)).astype(np.uint8))
    one, other = (ImageBatches(pool, 5, augmentation, "name", 0) for _ in range(2))
    together = one.batch(2, 3)
    assert torch.equal(together.support.x[1], other.batch(3, 1).support.x[0])
    assert not torch.equal(together.support.x[1], ImageBatches(pool, 5, augmentation, "other").batch(3, 1).support.x[0])


def test_a_crop_is_a_shifted_image_with_zeros_around():
    images = torch.rand(200, 2, 5, 4)
    found = Augmentation(crop=1).apply(images, np.random.default_rng(0))
    shifts = set()
    for before, after in zip(images, found, strict=True):
        padded = torch.nn.functional.pad(before, [1] * 4)
        fits = [(i, j) for i in range(3) for j in range(3) if torch.equal(padded[:, i : i + 5, j : j + 4], after)]
        assert len(fits) == 1
        shifts |= set(fits)
    assert len(shifts) == 9


def test_a_flip_mirrors_about_half_of_the_images():
    images = torch.rand(400, 1, 3, 3)
    found = Augmentation(flip=True).apply(images, np.random.default_rng(0))
    kept = [torch.equal(a, b) for a, b in zip(images, found, strict=True)]
    mirrored = [torch.equal(a.flip(-1), b) for a, b in zip(images, found, strict=True)]
    assert all(k != m for k, m in zip(kept, mirrored, strict=True))
    assert 150 < sum(kept) < 250


def test_jitter_changes_brightness_contrast_and_saturation_within_bounds():
    gray = torch.full((300, 1, 2, 2), 0.5)
    found = Augmentation(jitter=0.2).apply(gray, np.random.default_rng(0))
    assert found.flatten(1).std(1).max() < 1e-6  # one gray value has no contrast to change
    assert 0.4 <= found.min() < 0.42
    assert 0.58 < found.max() <= 0.6
    colors = torch.rand(50, 3, 4, 4) * 0.4 + 0.3
    found = Augmentation(jitter=0.1).apply(colors, np.random.default_rng(0))

    def spread_of_colors(images: torch.Tensor) -> torch.Tensor:
        return (images - images.mean(1, keepdim=True)).flatten(1).norm(dim=1)

    ratio = spread_of_colors(found) / spread_of_colors(colors)  # all three factors in turn
    assert 0.9**3 <= ratio.min() < ratio.max() <= 1.1**3


@pytest.mark.parametrize("augmentation", [Augmentation(crop=1, flip=True, jitter=0.5)])
def test_vectors_are_left_as_they_are(augmentation):
    pool = make_pool(np.random.default_rng(0).integers(0, 255, (3, 4, 7, 1, 1)).astype(np.uint8))
    stream, plain = (ImageBatches(pool, 4, a, "name") for a in (augmentation, Augmentation()))
    assert torch.equal(stream.batch(0, 2).support.x, plain.batch(0, 2).support.x)
