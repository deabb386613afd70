import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mlpip_bench.datasets import tiny_imagenet
from mlpip_bench.datasets.base import ImageDataset
from mlpip_bench.utils.errors import UserError


def jpeg(value: int, size: int = 32, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (size, size), value if mode == "L" else (value, 0, 255 - value)).save(buffer, "JPEG")
    return buffer.getvalue()


def write(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i, split in enumerate(("train", "val", "test")):
        write(
            tmp_path / f"{split}.tar",
            {f"n{i}{c}/n{i}{c}_{k}.JPEG": jpeg(100 * i + 10 * c + k) for c in (1, 0) for k in (2, 0)},
        )
    return tmp_path


def read(folder: Path) -> ImageDataset:
    found = tiny_imagenet.find(folder)
    assert found is not None
    return found.read()


def test_the_real_archives(data_root: Path) -> None:
    source = data_root / "tiny-imagenet-32"
    dataset = read(source)
    assert (dataset.name, dataset.source, dataset.image_shape) == ("tiny-imagenet-32", "real", (3, 32, 32))
    with (source / "classes.csv").open() as file:
        listed = [line.split(",")[:2] for line in file.read().splitlines()[1:]]
    for split, word in (("train", "train"), ("validation", "val"), ("test", "test")):
        data = dataset.splits[split]
        assert data.class_names == tuple(sorted(wnid for wnid, where in listed if where == word))
        assert set(data.counts) == {300}
        with tarfile.open(source / f"{word}.tar") as archive:
            names = sorted(name for name in archive.getnames() if name.endswith(".JPEG"))
            for row in (0, 299, 300, len(names) - 1):
                file = archive.extractfile(names[row])
                assert file is not None
                image = np.asarray(Image.open(file).convert("RGB"))
                np.testing.assert_array_equal(data.images[row], np.moveaxis(image, 2, 0))


def test_made_archives_are_sorted_and_partial(folder: Path) -> None:
    dataset = read(folder)
    assert dataset.name == "tiny-imagenet-32-partial"
    assert dataset.options == {"size": 32, "classes": 6, "images": 12}
    assert dataset.splits["train"].class_names == ("n00", "n01")
    assert dataset.splits["test"].class_names == ("n20", "n21")
    np.testing.assert_allclose(dataset.splits["test"].images[:, 0].mean((1, 2)), [200, 202, 210, 212], atol=2)


def test_classes_may_differ_in_size_and_pictures_in_mode(folder: Path) -> None:
    write(folder / "test.tar", {"n9/1.JPEG": jpeg(77, mode="L"), "n9/2.JPEG": jpeg(1), "n8/1.JPEG": jpeg(2)})
    data = read(folder).splits["test"]
    assert data.counts.tolist() == [1, 2]
    np.testing.assert_array_equal(data.images[1], np.full((3, 32, 32), 77))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"n9/1.JPEG": jpeg(1), "n9/2.JPEG": b"no picture"}, r"test\.tar:n9/2\.JPEG is not: it is none of them"),
        ({"n9/1.JPEG": jpeg(1)[:-300]}, r"test\.tar:n9/1\.JPEG is not: .*(?i:truncated)"),
        ({"n9/1.JPEG": jpeg(1, size=64)}, r"32x32; .*test\.tar:n9/1\.JPEG is 64x64"),
        ({"n9/readme.txt": b"x"}, r"test\.tar must hold"),
        ({}, r"test\.tar must hold"),
        ({"1.JPEG": jpeg(1)}, r"test\.tar has '1\.JPEG'"),
        ({"n00/1.JPEG": jpeg(1)}, "'n00' in train and test"),
    ],
)
def test_bad_archives_are_named(folder: Path, members: dict[str, bytes], message: str) -> None:
    write(folder / "test.tar", members)
    with pytest.raises(UserError, match=message):
        read(folder)


def test_a_picture_that_claims_to_be_huge(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in (700, 400):  # Pillow warns above its limit and refuses above twice that
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(UserError, match=r"train\.tar:n00/n00_0\.JPEG.*many more"):
            read(folder)


def test_missing_archives(folder: Path) -> None:
    (folder / "val.tar").unlink()
    with pytest.raises(UserError, match=r"val\.tar is missing"):
        tiny_imagenet.find(folder)
    (folder / "train.tar").unlink()
    (folder / "test.tar").unlink()
    assert tiny_imagenet.find(folder) is None
