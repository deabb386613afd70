import gzip
import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from mlpip_bench.datasets import mnist
from mlpip_bench.datasets.base import SPLITS, ImageDataset
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.provenance import STAND_INS

IMAGES, LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
OF_10_000 = struct.pack(">4I", 2051, 10_000, 28, 28), struct.pack(">2I", 2049, 10_000)


@pytest.fixture(scope="module")
def real(data_root: Path) -> ImageDataset:
    return read(data_root / "mnist")


@pytest.fixture(scope="module")
def digits() -> ImageDataset:
    return mnist.build_digits()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A MNIST whose image n has the number n in its first two pixels, and the label n % 10."""
    images = np.zeros((10_000, 28, 28), np.uint8)
    images[:, 0, 0], images[:, 0, 1] = np.divmod(np.arange(10_000), 256)
    (tmp_path / IMAGES).write_bytes(OF_10_000[0] + images.tobytes())
    (tmp_path / LABELS).write_bytes(OF_10_000[1] + bytes(n % 10 for n in range(10_000)))
    return tmp_path


def read(folder: Path) -> ImageDataset:
    found = mnist.find(folder)
    assert found is not None
    return found.read()


def pairs(dataset: ImageDataset, split: str) -> Counter[tuple[int, bytes]]:
    """Each digit and image of a split, and how often it occurs."""
    data = dataset.splits[split]
    digit = [int(name) for name, count in zip(data.class_names, data.counts, strict=True) for _ in range(count)]
    return Counter((d, image.tobytes()) for d, image in zip(digit, data.images, strict=True))


def test_the_real_digits(data_root: Path, real: ImageDataset) -> None:
    images = gzip.decompress((data_root / "mnist" / f"{IMAGES}.gz").read_bytes())[16:]
    labels = gzip.decompress((data_root / "mnist" / f"{LABELS}.gz").read_bytes())[8:]
    expected = Counter((labels[n], images[784 * n : 784 * (n + 1)]) for n in range(10_000))
    assert (real.name, real.source, real.image_shape) == ("mnist", "real", (1, 28, 28))
    assert sum((pairs(real, split) for split in SPLITS), Counter()) == expected
    assert len(expected) == 10_000  # no image occurs twice, so none can be in two splits


def test_the_stand_in_is_scikit_learns(digits: ImageDataset) -> None:
    assert (digits.name, digits.source, digits.image_shape) == ("digits", "bundled", (1, 28, 28))
    assert digits.source in STAND_INS
    total = np.zeros(10)
    for data in digits.splits.values():
        total += data.counts
        assert data.images.max() == 255  # strokes are white
        assert np.median(data.images) < 64
    assert total.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]

    # Bilinear at the middles of 28 pixels over 8; the border repeats.
    at = np.clip((np.arange(28) + 0.5) * 8 / 28 - 0.5, 0, 7)
    low = np.minimum(at.astype(int), 6)
    weights: NDArray[np.float64] = np.zeros((28, 8))
    weights[np.arange(28), low], weights[np.arange(28), low + 1] = 1 - (at - low), at - low
    source = load_digits()
    large = weights @ (source.images * 255 / 16) @ weights.T
    for digit in range(10):
        wanted = large[source.target == digit]
        for data in digits.splits.values():
            start, end = data.counts[:digit].sum(), data.counts[: digit + 1].sum()
            ours = data.images[start:end, 0].astype(float)
            distance = np.abs(ours[:, None] - wanted).max(axis=(2, 3)).min(axis=1)
            assert distance.max() <= 1.5  # rounded three times


def test_the_stand_in_is_pinned(digits: ImageDataset) -> None:
    assert digits.options == {"version": 1, "split": "images"}
    assert digits.fingerprint == "801dd342fea688801fdb1fd460945ba72d8d9dbd46e508f531cca972d0be17bd"


@pytest.mark.parametrize("name", ["real", "digits"])
def test_same_digits_in_each_split_and_other_images(name: str, request: pytest.FixtureRequest) -> None:
    dataset = request.getfixturevalue(name)
    every = [pairs(dataset, split) for split in SPLITS]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert not {image for _, image in every[a]} & {image for _, image in every[b]}
    counts = np.stack([dataset.splits[split].counts for split in SPLITS])
    assert {dataset.splits[split].class_names for split in SPLITS} == {tuple("0123456789")}
    np.testing.assert_allclose(counts / counts.sum(axis=0), np.tile([[0.6], [0.1], [0.3]], 10), atol=0.005)


def test_made_digits_are_drawn_at_random_once_and_for_all(folder: Path) -> None:
    first, again = read(folder), read(folder)
    assert first.fingerprint == again.fingerprint
    numbers = {}
    for split, count in (("train", 600), ("validation", 100), ("test", 300)):
        data = first.splits[split]
        assert data.counts.tolist() == [count] * 10
        numbers[split] = data.images[:, 0, 0, 0].astype(int) * 256 + data.images[:, 0, 0, 1]
        np.testing.assert_array_equal(numbers[split] % 10, np.repeat(np.arange(10), count))
    assert sorted(np.concatenate(list(numbers.values())).tolist()) == list(range(10_000))
    for chosen in numbers.values():  # neither the first nor the last of the file
        assert abs(chosen.mean() - 4999.5) < 5 * 2887 / len(chosen) ** 0.5
    of_digit = numbers["train"].reshape(10, 600)
    assert len({tuple(row - d) for d, row in enumerate(of_digit)}) == 10  # each digit in an order of its own


def test_where_and_how_the_files_may_lie(folder: Path) -> None:
    plain = read(folder).fingerprint
    (folder / "raw").mkdir()
    for name in (IMAGES, LABELS):
        (folder / name).rename(folder / "raw" / name)
    assert read(folder).fingerprint == plain
    (folder / f"{IMAGES}.gz").write_bytes(gzip.compress((folder / "raw" / IMAGES).read_bytes(), 1))
    (folder / "raw" / LABELS).rename(folder / LABELS)
    assert read(folder).fingerprint == plain
    (folder / LABELS).unlink()
    with pytest.raises(UserError, match=rf"{LABELS}\(\.gz\) is missing"):
        mnist.find(folder)
    (folder / f"{IMAGES}.gz").unlink()
    (folder / "raw" / IMAGES).unlink()
    assert mnist.find(folder) is None


def test_the_training_digits_alone_are_not_taken(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"")
    assert mnist.find(tmp_path) is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (IMAGES, b"", "empty"),
        (IMAGES, b"<!DOCTYPE html><html>", "web page"),
        (IMAGES, OF_10_000[0][:7], "begins with"),
        (IMAGES, OF_10_000[1] + bytes(7_840_008), "begins with 00000801 00002710 0.* not with 00000803"),
        (IMAGES, struct.pack(">4I", 2051, 60_000, 28, 28) + bytes(60_000), "begins with 00000803 0000ea60"),
        (IMAGES, struct.pack(">4I", 2051, 10_000, 32, 32) + bytes(7_840_000), "begins with .*00000020 00000020, not"),
        (IMAGES, OF_10_000[0] + bytes(7_839_999), "10000x28x28 values .*it has 7839999"),
        (IMAGES, OF_10_000[0] + bytes(7_840_001), "goes on"),
        (LABELS, struct.pack(">2I", 2049, 9_999) + bytes(9_999), "begins with"),
        (LABELS, OF_10_000[1] + bytes(range(10)) * 999, "10000 values .*it has 9990"),
        (LABELS, OF_10_000[1] + bytes(range(10)) * 999 + bytes([0, 1, 2, 3, 4, 5, 6, 7, 8, 200]), "and 1 others"),
        (LABELS, OF_10_000[1] + bytes(10_000), r"\[10000, 0, 0"),
        (f"{IMAGES}.gz", b"", "empty"),
        (f"{IMAGES}.gz", OF_10_000[0] + bytes(7_840_000), "Not a gzipped file"),
        (f"{IMAGES}.gz", gzip.compress(OF_10_000[0] + bytes(7_840_000))[:-9], "in gzip .* ended before"),
        (f"{LABELS}.gz", gzip.compress(OF_10_000[1] + bytes(range(10)) * 1000)[:-8] + bytes(8), "CRC"),
        (f"{LABELS}.gz", gzip.compress(OF_10_000[1])[:10] + b"\xff" * 40, "invalid"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)} bytes",
)
def test_damaged_files(folder: Path, name: str, content: bytes, message: str) -> None:
    (folder / name).write_bytes(content)  # where there are both, .gz is read
    with pytest.raises(UserError, match=message) as caught:
        read(folder)
    assert str(folder / name) in str(caught.value)


def test_a_file_that_unpacks_to_too_much_is_not_unpacked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / f"{IMAGES}.gz").write_bytes(gzip.compress(OF_10_000[0] + bytes(50_000_000)))
    taken = []
    plain = gzip.GzipFile.read
    monkeypatch.setattr(gzip.GzipFile, "read", lambda self, size=-1: taken.append(size) or plain(self, size))
    with pytest.raises(UserError, match="goes on"):
        read(folder)
    assert min(taken) >= 0
    assert sum(taken) < 8_000_000 + 10_100
