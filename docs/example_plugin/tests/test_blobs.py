"""Blobs: what the suite relies on holds, and classes differ."""

import numpy as np

from mlpip_bench import registry
from mlpip_bench.benches.family import DataRequest
from mlpip_bench.testing import assert_family_conforms

BLOBS = registry.family("blobs")


def test_they_conform():
    assert_family_conforms(BLOBS)


def test_the_nearest_class_mean_is_mostly_the_right_one():
    part = BLOBS(BLOBS.Options()).load(DataRequest()).splits["test"]
    images = part.images.reshape(part.num_classes, -1, 16 * 16) / 255
    means = images[:, :10].mean(1)
    nearest = np.square(images[:, 10:, None] - means).sum(-1).argmin(-1)
    assert (nearest == np.arange(part.num_classes)[:, None]).mean() > 0.9
