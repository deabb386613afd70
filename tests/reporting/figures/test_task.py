"""A figure of one task has its images, each in the row of its class."""

import numpy as np
import pytest

from mlpip_bench.reporting.figures.task import task


@pytest.mark.parametrize("channels", [1, 3])
def test_each_image_is_in_the_row_of_its_class(channels):
    rng = np.random.default_rng(0)
    images, labels = rng.random((6, channels, 10, 8)), np.array([2, 0, 1, 2, 2, 0])
    figure = task("a task", {"support": (images[:3], labels[:3]), "queries": (images, labels)})
    assert figure.get_suptitle() == "a task"
    support, queries = figure.axes
    assert (support.get_title(), queries.get_title()) == ("support", "queries")
    (mosaic,) = (image.get_array() for image in queries.images)
    assert mosaic.shape == (3 * 11 - 1, 3 * 9 - 1, 3)
    for label, members in {0: [1, 5], 1: [2], 2: [0, 3, 4]}.items():
        for column in range(3):
            shown = mosaic[11 * label :, 9 * column :][:10, :8]
            expected = images[members[column]].transpose(1, 2, 0) if column < len(members) else 1.0
            np.testing.assert_array_equal(shown, np.broadcast_to(expected, shown.shape))
