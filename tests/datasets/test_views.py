import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from mlpip_bench.datasets import coil100, shapenet
from mlpip_bench.datasets.base import SPLITS, ImageDataset
from mlpip_bench.datasets.reading import shortfall
from mlpip_bench.utils.errors import UserError

CHAIR, BOAT, OTHER = "03001627", "04530566", "02747177"  # the last, trash bin, is not among the paper's


def read(reader: Any, folder: Path) -> ImageDataset:
    found = reader.find(folder)
    assert found is not None
    dataset = found.read()
    assert isinstance(dataset, ImageDataset)
    return dataset


def by_object(dataset: ImageDataset) -> dict[str, NDArray[np.uint8]]:
    """The views of each object, over all splits."""
    return {
        name: views[:, 0]
        for data in dataset.splits.values()
        for name, views in zip(data.class_names, data.images.reshape(-1, 36, 1, 32, 32), strict=True)
    }


# COIL-100.


def test_the_real_coil100(data_root: Path) -> None:
    dataset = read(coil100, data_root / "coil100")
    assert (dataset.name, dataset.source, dataset.image_shape) == ("coil100", "real", (1, 32, 32))
    with np.load(data_root / "coil100" / "coil100_32.npz") as file:
        images, objects = file["images"], file["objects"]
    assert [dataset.splits[split].num_classes for split in SPLITS] == [62, 9, 17]
    assert all(set(dataset.splits[split].counts) == {36} for split in SPLITS)
    ours = by_object(dataset)
    assert sorted(ours) == sorted(f"obj{number}" for number in objects)  # 88 names: no object is in two splits
    for number, views in zip(objects, images, strict=True):
        np.testing.assert_array_equal(ours[f"obj{number}"], views)
    assert [shortfall(dataset.splits[split], *coil100.COMPLETE[split]) for split in SPLITS] == ["", "", ""]


def coil(count: int = 4, **change: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    arrays = {
        "images": rng.integers(0, 256, (count, 36, 32, 32), np.uint8),
        "objects": np.arange(count) + 7,
        "azimuth_degrees": np.arange(36) * 10,
    }
    return {name: array for name, array in {**arrays, **change}.items() if array is not None}


def test_part_of_coil100_does_not_get_its_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "coil100_32.npz", **coil())
    dataset = read(coil100, tmp_path)
    assert (dataset.name, dataset.options["classes"], dataset.options["images"]) == ("coil100-partial", 4, 144)
    assert [dataset.splits[split].num_classes for split in SPLITS] == [2, 1, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": None}, "must have the arrays.*lacks images"),
        ({"azimuth_degrees": None}, "must have the arrays.*lacks azimuth_degrees"),
        ({"images": np.zeros((4, 36, 32, 32))}, "must be uint8 .*float64"),
        ({"images": np.zeros((4, 72, 32, 32), np.uint8)}, r"must be uint8 .*\(4, 72, 32, 32\)"),
        ({"images": np.zeros((36, 32, 32), np.uint8)}, "must be uint8"),
        ({"images": np.array([{}], dtype=object)}, "holds Python objects"),
        ({"azimuth_degrees": np.arange(36) * 5}, "steps of 10 degrees.* 175"),
        ({"azimuth_degrees": np.arange(36)[::-1] * 10}, "steps of 10 degrees.*350, 340"),
        ({"azimuth_degrees": np.arange(35) * 10}, "steps of 10 degrees"),
        ({"objects": np.arange(3)}, r"one number for each of the 4.*\(3,\)"),
        ({"objects": np.array([1, 2, 2, 3])}, "no two the same.* 3 values"),
        ({"objects": np.array([1.0, 2.0, 3.0, 4.0])}, "float64"),
        (coil(2), "2 objects"),
    ],
)
def test_broken_coil100(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "coil100_32.npz", **coil(**change))
    with pytest.raises(UserError, match=message) as caught:
        read(coil100, tmp_path)
    assert "coil100_32.npz" in str(caught.value)


@pytest.mark.parametrize("damage", [lambda b: b[:5000], lambda b: b"<html>", lambda b: b"", lambda b: b[:-4000]])
def test_damaged_coil100(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    np.savez(tmp_path / "coil100_32.npz", **coil())
    (tmp_path / "coil100_32.npz").write_bytes(damage((tmp_path / "coil100_32.npz").read_bytes()))
    with pytest.raises(UserError, match=r"coil100_32\.npz must be an npz file"):
        read(coil100, tmp_path)


def test_a_flipped_bit_in_coil100_is_seen(tmp_path: Path) -> None:
    np.savez(tmp_path / "coil100_32.npz", **coil())
    content = bytearray((tmp_path / "coil100_32.npz").read_bytes())
    content[50_000] ^= 1
    (tmp_path / "coil100_32.npz").write_bytes(content)
    with pytest.raises(UserError, match="CRC"):
        read(coil100, tmp_path)


# ShapeNet.


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def write(folder: Path, image: Callable[[int], Image.Image], views: int = 36) -> None:
    folder.mkdir(parents=True)
    for view in range(views):
        (folder / f"{view:02d}.png").write_bytes(png(image(view)))


def flat(value: int, size: int = 32) -> Callable[[int], Image.Image]:
    return lambda view: Image.new("L", (size, size), value + view)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i, name in enumerate((f"{CHAIR}/b", f"{CHAIR}/a", f"{BOAT}/c", f"{BOAT}/d")):
        write(tmp_path / name, flat(50 * i))
    return tmp_path


def test_made_views(folder: Path) -> None:
    write(folder / OTHER / "bin", flat(200))
    (folder / CHAIR / "only a mesh" / "models").mkdir(parents=True)
    (folder / CHAIR / ".DS_Store").write_bytes(b"")
    (folder / CHAIR / "a" / "camera.txt").write_text("x")
    (folder / CHAIR / "a" / "._00.png").write_bytes(b"")
    (folder / "taxonomy.json").write_text("[]")
    found = shapenet.find(folder)
    assert found is not None
    assert len(found.files) == 4 * 36
    dataset = found.read()
    assert (dataset.name, dataset.source, dataset.image_shape) == ("shapenet-partial", "real", (1, 32, 32))
    assert dataset.options == {"size": 32, "classes": 4, "images": 144}
    ours = by_object(dataset)
    assert sorted(ours) == [f"{CHAIR}/a", f"{CHAIR}/b", f"{BOAT}/c", f"{BOAT}/d"]
    for name, value in ((f"{CHAIR}/b", 0), (f"{CHAIR}/a", 50), (f"{BOAT}/c", 100), (f"{BOAT}/d", 150)):
        expected = np.broadcast_to((value + np.arange(36))[:, None, None], (36, 32, 32))
        np.testing.assert_array_equal(ours[name], expected)


def test_the_order_of_the_file_system_does_not_matter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_order(*, reverse: bool) -> str:
        plain = sorted(folder.rglob("*"), reverse=reverse)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "iterdir", lambda self: (path for path in plain if path.parent == self))
            return read(shapenet, folder).fingerprint

    assert in_order(reverse=False) == in_order(reverse=True)


def test_the_complete_shapenet_keeps_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapenet, "COMPLETE", {"train": (2, 36), "validation": (1, 36), "test": (1, 36)})
    assert read(shapenet, folder).name == "shapenet"
    assert sum(n for n, _ in {"train": (25976, 36), "validation": (3711, 36), "test": (7421, 36)}.values()) == 37108


def test_the_papers_categories() -> None:
    paper = (
        "02691156 02828884 02933112 02958343 02992529 03001627 03211117 03636649 03691459 04256520 04379243 04530566"
    )
    assert sorted(shapenet.SYNSETS) == paper.split()


def test_size_color_and_transparency(folder: Path) -> None:
    rng = np.random.default_rng(1)
    gray = Image.fromarray(rng.integers(0, 256, (128, 128), np.uint8))
    half = np.zeros((64, 64, 4), np.uint8)
    half[:, 32:] = (10, 20, 30, 255)
    palette = Image.new("P", (40, 40), 1)
    palette.putpalette([0, 0, 0, 255, 0, 0])
    pictures = [
        gray,
        gray.convert("RGB"),
        Image.merge("RGBA", [gray, gray, gray, Image.new("L", gray.size, 255)]),
        Image.fromarray(half),
        Image.new("RGBA", (32, 32), (0, 0, 0, 51)),
        Image.new("LA", (16, 16), (100, 0)),
        Image.new("RGB", (32, 32), (255, 0, 0)),
        palette,
        Image.new("1", (64, 64), 1),
    ]
    for view, picture in enumerate(pictures):
        (folder / CHAIR / "a" / f"{view:02d}.png").write_bytes(png(picture))
    views = by_object(read(shapenet, folder))[f"{CHAIR}/a"].astype(int)
    np.testing.assert_array_equal(views[1], views[0])
    np.testing.assert_array_equal(views[2], views[0])

    # Lanczos: a windowed sinc of three lobes, widened by the scale.
    x = (np.arange(128) + 0.5)[None] / 4 - (np.arange(32) + 0.5)[:, None]
    weights = np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)
    weights /= weights.sum(axis=1, keepdims=True)
    expected = np.clip(weights @ np.asarray(gray).astype(float) @ weights.T, 0, 255)
    assert np.abs(views[0] - expected).max() < 2

    dark = round(0.299 * 10 + 0.587 * 20 + 0.114 * 30)
    assert set(views[3, :, :12].ravel()) == {255}
    assert set(views[3, :, -12:].ravel()) == {dark}
    for view, value in ((4, 204), (5, 255), (6, 76), (7, 76), (8, 255)):
        assert np.unique(views[view]).tolist() == [value]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "whole JPEG, PNG, BMP, WebP or TIFF"),
        (png(Image.new("L", (64, 64)))[:-30], "whole JPEG, PNG, BMP, WebP or TIFF"),
        (b"GIF89a" + bytes(30), "none of them"),
        (png(Image.new("L", (32, 64))), "square; .* is 32x64"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)} bytes",
)
def test_a_damaged_view_is_named(folder: Path, content: bytes, message: str) -> None:
    (folder / BOAT / "d" / "17.png").write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        read(shapenet, folder)
    assert str(folder / BOAT / "d" / "17.png") in str(caught.value)


def test_an_object_has_36_views(folder: Path) -> None:
    write(folder / CHAIR / "e", flat(0), views=34)
    with pytest.raises(UserError, match=r"03001627/e lacks 34\.png, 35\.png\."):
        shapenet.find(folder)
    for view in range(34, 40):  # in steps of 9 degrees
        (folder / CHAIR / "e" / f"{view:02d}.png").write_bytes(png(Image.new("L", (32, 32))))
    with pytest.raises(UserError, match=r"03001627/e also has 36\.png, 37\.png"):
        shapenet.find(folder)


def test_too_few_objects_or_none(tmp_path: Path) -> None:
    assert shapenet.find(tmp_path) is None
    (tmp_path / CHAIR / "a" / "models").mkdir(parents=True)
    write(tmp_path / OTHER / "bin", flat(0))
    assert shapenet.find(tmp_path) is None
    write(tmp_path / CHAIR / "b", flat(0))
    write(tmp_path / CHAIR / "c", flat(0))
    with pytest.raises(UserError, match="has 2 objects with views"):
        read(shapenet, tmp_path)
