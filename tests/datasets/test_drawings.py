"""Folders of drawings that the tests write themselves."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlpip_bench.datasets import drawings
from mlpip_bench.datasets.base import SPLITS, ImageDataset
from mlpip_bench.utils.errors import UserError

DRAWERS = 44  # 22 of training, 22 of the test
CLASSES = {"ant": "train", "bee": "train", "cat": "validation", "dog": "test", "eel": "test"}


def about(**change: Any) -> dict[str, Any]:
    drawers = [[f"set{i}", "test" if i % 2 else "train"] for i in range(DRAWERS)]
    return {"name": "icons", "made_from": "abc", "classes": list(CLASSES.items()), "drawers": drawers} | change


def write(folder: Path, text: Any = None, **change: Any) -> Path:
    """Each class by each drawer, in a shuffled order; a drawing's first pixels are its class and its drawer."""
    pairs = np.array([(c, d) for c in range(len(CLASSES)) for d in range(DRAWERS)])
    np.random.default_rng(0).shuffle(pairs)
    images = np.zeros((len(pairs), 28, 28), dtype=np.uint8)
    images[:, 0, :2] = pairs
    content = json.dumps(about() if text is None else text).encode()
    arrays = {"images": images, "classes": pairs[:, 0], "drawers": pairs[:, 1]} | change
    np.savez(folder / "drawings.npz", **arrays, about=np.frombuffer(content, dtype=np.uint8))
    return folder


def read(folder: Path, split: drawings.SplitBy = "classes", name: str = "icons") -> ImageDataset:
    found = drawings.find(folder, name, split)
    assert found is not None
    return found.read()


def test_no_drawings_are_not_found(tmp_path):
    assert drawings.find(tmp_path, "icons", "classes") is None


@pytest.mark.parametrize("split", ["classes", "drawers"])
def test_classes_are_disjoint_and_by_drawers_so_are_those_who_draw(tmp_path, split):
    dataset = read(write(tmp_path), split)
    assert (dataset.name, dataset.source, dataset.image_shape) == ("icons", "real", (1, 28, 28))
    for number, part in enumerate(SPLITS):
        data = dataset.splits[part]
        assert data.class_names == tuple(name for name, where in CLASSES.items() if where == part)
        expected = range(DRAWERS) if split == "classes" else range(number // 2, DRAWERS, 2)  # 0, 0, 1
        rows = iter(data.images[:, 0, 0, :2].tolist())
        for name in data.class_names:
            for drawer in expected:
                assert next(rows) == [list(CLASSES).index(name), drawer]
        assert set(data.counts) == {len(expected)}


def test_the_two_splits_have_fingerprints_of_their_own(tmp_path):
    write(tmp_path)
    assert read(tmp_path).fingerprint == read(tmp_path).fingerprint != read(tmp_path, "drawers").fingerprint


def test_classes_with_too_few_drawings_are_left_out(tmp_path):
    drawers = [[f"set{i}", "test" if i < 20 else "train"] for i in range(DRAWERS)]
    # Class 3 by 16 test drawers, class 4 by 15; 0 and 2 by 22 of training.
    classes = np.repeat([3, 4, 0, 2], [16, 15, 22, 22])
    numbers = np.concatenate([np.arange(16), np.arange(15), np.arange(20, 42), np.arange(20, 42)])
    images = np.zeros((len(classes), 28, 28), dtype=np.uint8)
    write(tmp_path, about(drawers=drawers), images=images, classes=classes, drawers=numbers)
    data = read(tmp_path, "drawers")
    assert [data.splits[part].class_names for part in SPLITS] == [("ant",), ("cat",), ("dog",)]
    with pytest.raises(UserError, match=r"a class with 20 drawings; in .* the test split by classes has none"):
        read(tmp_path)
    few = about(drawers=[[f"set{i}", "train"] for i in range(DRAWERS)])
    write(tmp_path, few)
    with pytest.raises(UserError, match=r"the test split by drawers has none\. Make it again"):
        read(tmp_path, "drawers")


@pytest.mark.parametrize(
    ("text", "change", "message"),
    [
        (["no object"], {}, "damaged"),
        (about(classes=[["ant", "train"], ["ant", "test"]]), {}, "a name twice"),
        (about(classes=[["ant", "trian"]]), {}, "unknown split"),
        (about(name="kanji"), {}, "has the drawings of 'kanji', not of 'icons'"),
        (about(classes=[["ant", "train"]]), {}, "a number beyond the 1 names"),
        (None, {"classes": np.full(220, -1)}, "a number beyond the 5 names"),
        (None, {"drawers": np.zeros(7, dtype=int)}, "numbers int64"),
        (None, {"drawers": np.zeros(220)}, "numbers float64"),
        (None, {"images": np.zeros((220, 9, 9), dtype=np.uint8)}, r"uint8 \(220, 9, 9\)"),
    ],
)
def test_damaged_drawings_are_refused_with_the_reason(tmp_path, text, change, message):
    write(tmp_path, text, **change)
    with pytest.raises(UserError, match=message):
        read(tmp_path)
