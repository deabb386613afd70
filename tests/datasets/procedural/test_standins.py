"""The embedded stand-ins: well-formed, reproducible, and neither trivial nor hopeless."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from mlpip_bench.datasets.base import SPLITS, ClassImages, ImageDataset
from mlpip_bench.datasets.procedural import glyphs, patches
from mlpip_bench.datasets.procedural.glyphs import build_glyphs
from mlpip_bench.datasets.procedural.patches import build_patches, draw_class

BUILDERS: dict[str, Callable[[], ImageDataset]] = {"glyphs": build_glyphs, "patches": build_patches}
SHAPES = {"glyphs": (1, 28, 28), "patches": (3, 84, 84)}
CLASSES = {"glyphs": (440 * 4, 80 * 4, 160 * 4), "patches": (64, 16, 20)}
PER_CLASS = {"glyphs": 20, "patches": 60}
# Of version 1; numpy 1.26 and 2.4 agree, and so does numpy without its processor-specific code.
FINGERPRINTS = {"glyphs": glyphs.FINGERPRINT, "patches": patches.FINGERPRINT}
TURNS = {90: 1, 180: 2, 270: 3}


@pytest.fixture(scope="module")
def datasets() -> dict[str, ImageDataset]:
    return {name: build() for name, build in BUILDERS.items()}


@pytest.fixture(params=list(BUILDERS))
def dataset(request: pytest.FixtureRequest, datasets: dict[str, ImageDataset]) -> ImageDataset:
    return datasets[request.param]


def by_class(data: ClassImages) -> NDArray[np.uint8]:
    """``[class, image, channel, height, width]``, for classes of one size."""
    return data.images.reshape(data.num_classes, -1, *data.image_shape)


def nearest_mean_accuracy(features: NDArray[np.float32], shots: int, tasks: int = 200, way: int = 5) -> float:
    """Mean accuracy over fixed tasks of the class whose mean support feature is nearest; 15 queries a class at most."""
    rng = np.random.default_rng(3)
    correct = []
    for _ in range(tasks):
        classes = rng.choice(len(features), way, replace=False)
        picked = np.stack([features[c, rng.permutation(features.shape[1])[: shots + 15]] for c in classes])
        means = picked[:, :shots].mean(axis=1)
        queries = picked[:, shots:]
        products = np.einsum("cqf,mf->cqm", queries, means, optimize=True)
        nearest = ((means**2).sum(axis=-1) - 2 * products).argmin(axis=-1)
        correct.append(np.mean(nearest == np.arange(way)[:, None]))
    return float(np.mean(correct))


def raw_pixels(data: ClassImages, step: int = 1) -> NDArray[np.float32]:
    images = by_class(data)[..., ::step, ::step]
    return (images.reshape(*images.shape[:2], -1) / 255).astype(np.float32)


def test_says_what_it_is(dataset: ImageDataset) -> None:
    assert dataset.source == "procedural"
    assert dataset.name in BUILDERS
    assert dataset.options["version"] == 1


def test_what_is_drawn_changes_only_with_the_version(dataset: ImageDataset) -> None:
    message = "what is drawn has changed: raise VERSION of the data set, and pin the new FINGERPRINT"
    assert dataset.fingerprint == FINGERPRINTS[dataset.name], message


def test_shapes_and_counts(dataset: ImageDataset) -> None:
    assert dataset.image_shape == SHAPES[dataset.name]
    assert tuple(dataset.splits[split].num_classes for split in SPLITS) == CLASSES[dataset.name]
    for data in dataset.splits.values():
        assert data.images.dtype == np.uint8
        assert data.image_shape == SHAPES[dataset.name]
        assert np.all(data.counts == PER_CLASS[dataset.name])


def test_class_names_are_unique_over_all_splits(dataset: ImageDataset) -> None:
    names = [name for data in dataset.splits.values() for name in data.class_names]
    assert len(set(names)) == len(names)


def test_no_image_occurs_twice(dataset: ImageDataset) -> None:
    # Turned glyphs may meet by chance (a cross is its own rotation), upright ones may not.
    upright = [
        image.tobytes()
        for data in dataset.splits.values()
        for name, images in zip(data.class_names, by_class(data), strict=True)
        if "@" not in name
        for image in images
    ]
    assert len(set(upright)) == len(upright)


def test_second_build_of_glyphs_has_the_same_fingerprint(datasets: dict[str, ImageDataset]) -> None:
    assert build_glyphs().fingerprint == datasets["glyphs"].fingerprint


@pytest.mark.slow
def test_second_build_of_patches_has_the_same_fingerprint(datasets: dict[str, ImageDataset]) -> None:
    assert build_patches().fingerprint == datasets["patches"].fingerprint


def test_a_class_of_patches_depends_on_its_number_alone(datasets: dict[str, ImageDataset]) -> None:
    # The quick form of the test above: some classes again, in another order.
    for split, index, number in (("test", 19, 100), ("train", 0, 1), ("validation", 3, 68), ("train", 63, 64)):
        np.testing.assert_array_equal(draw_class(number), by_class(datasets["patches"].splits[split])[index])


def test_intensities_use_the_range(dataset: ImageDataset) -> None:
    for data in dataset.splits.values():
        sample = data.images[::17]
        assert sample.min() == 0
        assert sample.max() == 255
        if dataset.name == "glyphs":
            assert set(np.unique(sample)) == {0, 255}
            assert 0.04 < (sample == 255).mean() < 0.2
            assert np.all((data.images == 255).any(axis=(1, 2, 3))), "an empty drawing"
        else:
            low, high = np.quantile(sample, [0.05, 0.95])
            assert low < 60
            assert high > 180
            assert np.all(sample.std(axis=(1, 2, 3)) > 8), "a flat picture"


@pytest.mark.parametrize("split", SPLITS)
def test_a_rotated_glyph_is_its_base_class_turned(split: str, datasets: dict[str, ImageDataset]) -> None:
    data = datasets["glyphs"].splits[split]
    images = dict(zip(data.class_names, by_class(data), strict=True))
    base = [name for name in data.class_names if "@" not in name]
    assert len(base) * 4 == data.num_classes
    for name in base:
        for degrees, turns in TURNS.items():
            np.testing.assert_array_equal(images[f"{name}@{degrees}"], np.rot90(images[name], turns, axes=(2, 3)))


# Chance is 0.2. Real Omniglot, brought down to 28 x 28 in the same way, gives 0.37 and 0.66.
@pytest.mark.parametrize(
    ("name", "shots", "low", "high"),
    [
        ("glyphs", 1, 0.35, 0.50),  # measured: 0.408
        ("glyphs", 5, 0.65, 0.80),  # 0.729
        ("patches", 1, 0.21, 0.30),  # 0.228
        ("patches", 5, 0.25, 0.38),  # 0.278
    ],
)
def test_raw_pixels_are_neither_hopeless_nor_enough(
    name: str, shots: int, low: float, high: float, datasets: dict[str, ImageDataset]
) -> None:
    pixels = raw_pixels(datasets[name].splits["test"], step=1 if name == "glyphs" else 3)
    assert low < nearest_mean_accuracy(pixels, shots) < high


def test_mean_color_does_not_distinguish_patches(datasets: dict[str, ImageDataset]) -> None:
    images = by_class(datasets["patches"].splits["test"])
    whole = (images.mean(axis=(3, 4)) / 255).astype(np.float32)
    middle = (images[..., 28:56, 28:56].mean(axis=(3, 4)) / 255).astype(np.float32)
    assert nearest_mean_accuracy(whole, shots=5) < 0.30  # measured: 0.231
    assert nearest_mean_accuracy(middle, shots=5) < 0.60  # 0.473
