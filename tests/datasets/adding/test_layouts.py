"""Forms in which researchers have data sets, each made small here, are recognized and hold what was put there."""

import gzip
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mlpip_bench.datasets import added
from mlpip_bench.datasets.adding.add import Choices, add
from mlpip_bench.datasets.base import SPLITS, ImageDataset
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.progress import Quiet
from pictures import encoded, picture, write_classes

NAMES = [f"class{number}" for number in range(9)]
WORDS = ("train", "val", "test")
GIVEN = {split: set(NAMES[3 * i : 3 * i + 3]) for i, split in enumerate(SPLITS)}
"""The classes of splits, where a form says them."""


def pixels(number: int, index: int) -> np.ndarray:
    return np.asarray(picture(number, index))


def arrays_of(split: int) -> tuple[np.ndarray, list[int]]:
    """Three pictures of each of three classes, out of order, and their labels."""
    rows = [(3 * split + row % 3, row // 3) for row in range(9)]
    return np.stack([pixels(*row) for row in rows]), [number for number, _ in rows]


def pickled(path: Path, content: object) -> None:
    path.write_bytes(pickle.dumps(content))


def fc100(top: Path) -> None:
    for split, word in enumerate(WORDS):
        data, labels = arrays_of(split)
        pickled(top / f"FC100_{word}.pickle", {b"data": data, b"labels": labels})


def mini_cache(top: Path) -> None:
    for split, word in enumerate(WORDS):
        data, labels = arrays_of(split)
        rows = {NAMES[label]: np.flatnonzero(np.array(labels) == label).tolist() for label in set(labels)}
        pickled(top / f"mini-imagenet-cache-{word}.pkl", {"image_data": data, "class_dict": rows})


def five_files(top: Path) -> None:
    for split, word in enumerate(("train_phase_train", "val", "test")):
        data, labels = arrays_of(split)
        pickled(top / f"miniImageNet_category_split_{word}.pickle", {"data": data, "labels": labels})
    pickled(top / "miniImageNet_category_split_train_phase_test.pickle", {"data": data[:0], "labels": []})


def tiered(top: Path) -> None:
    for split, word in enumerate(WORDS):
        data, labels = arrays_of(split)
        images = [
            np.frombuffer(encoded(picture(label, row // 3), "RGB", "png"), np.uint8) for row, label in enumerate(labels)
        ]
        pickled(top / f"{word}_images_png.pkl", images)
        specific = {"label_specific": np.array(labels), "label_general": np.zeros(len(labels), int)}
        pickled(top / f"{word}_labels.pkl", specific)
        assert len(data) == len(images)


def cifar_fs(top: Path) -> None:
    write_classes(top / "cifar100" / "data", NAMES, 3)
    (top / "cifar100" / "splits" / "bertinetto").mkdir(parents=True)
    for split, word in zip(SPLITS, WORDS, strict=True):
        (top / "cifar100" / "splits" / "bertinetto" / f"{word}.txt").write_text("\n".join(sorted(GIVEN[split])))


def cub(top: Path) -> None:
    write_classes(top / "images", NAMES, 3)
    (top / "attributes").mkdir()
    (top / "images.txt").write_text("1 class0/00.png\n")


def cub_with_splits(top: Path) -> None:
    cub(top)
    for split, name in zip(SPLITS, ("base", "val", "novel"), strict=True):
        names = [f"/home/somebody/CUB_200_2011/images/{each}/00.png" for each in sorted(GIVEN[split])]
        (top / f"{name}.json").write_text(json.dumps({"label_names": NAMES, "image_names": names}))


def meta_album(top: Path) -> None:
    (top / "images").mkdir()
    rows = ["FILE_NAME,CATEGORY,SUPER_CATEGORY"]
    for number, name in enumerate(NAMES):
        for index in range(3):
            picture(number, index).save(top / "images" / f"{number}_{index}.png")
            rows.append(f"{number}_{index}.png,{name},x")
    (top / "labels.csv").write_text("\n".join(rows))
    (top / "info.json").write_text(json.dumps({"dataset_name": "BRD", "license": "CC0", "citation": "Ullah 2022"}))


def domains(top: Path) -> None:
    for index, domain in enumerate(("art", "photo", "sketch")):
        for number, name in enumerate(NAMES):
            (top / domain / name).mkdir(parents=True)
            picture(number, index).save(top / domain / name / "0.png")


def tiny_imagenet(top: Path) -> None:
    top = top / "tiny-imagenet-200"
    for number, name in enumerate(NAMES):
        (top / "train" / name / "images").mkdir(parents=True)
        (top / "train" / name / f"{name}_boxes.txt").write_text("x")
        for index in range(2):
            picture(number, index).save(top / "train" / name / "images" / f"{index}.png")
    for folder in ("val", "test"):
        (top / folder / "images").mkdir(parents=True)
        for number in range(len(NAMES)):
            picture(number, 2 if folder == "val" else 3).save(top / folder / "images" / f"{number}.png")
    rows = [f"{number}.png\t{name}\t0\t0\t9\t9" for number, name in enumerate(NAMES)]
    (top / "val" / "val_annotations.txt").write_text("\n".join(rows))
    (top / "wnids.txt").write_text("\n".join(NAMES))


def lists(top: Path) -> None:
    write_classes(top / "images", NAMES, 3)
    for split, word in zip(SPLITS, WORDS, strict=True):
        rows = [f"{index:02d}.png;{name}" for name in sorted(GIVEN[split]) for index in range(3)]
        (top / f"{word}.csv").write_text("filename;label\n" + "\n".join(rows), encoding="utf-16")


def made(top: Path, root: Path, **choices: bool) -> ImageDataset:
    add("mine", top, root, Choices(image_size=12, **choices), Quiet())
    return added.read(root / "mine")


FORMS = {
    fc100: (True, "pickles of arrays"),
    mini_cache: (True, "pickles of arrays"),
    five_files: (True, "pickles of arrays"),
    tiered: (True, "pickles of encoded pictures"),
    cifar_fs: (True, "CIFAR-FS in folders"),
    cub: (False, "CUB-200-2011"),
    cub_with_splits: (True, "CUB-200-2011"),
    meta_album: (False, "Meta-Album"),
    domains: (False, "domains art, photo, sketch"),
    tiny_imagenet: (False, "Tiny ImageNet"),
    lists: (True, "lists of the splits"),
}


@pytest.mark.parametrize("write", FORMS, ids=lambda form: form.__name__)
def test_a_form_is_recognized(write: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "top").mkdir()
    write(tmp_path / "top")
    data = made(tmp_path / "top", tmp_path / "data")
    splits_are_given, layout = FORMS[write]
    assert added.describe(tmp_path / "data" / "mine").source == f"{tmp_path / 'top'}, {layout}"
    numbers = {}
    for split, part in data.splits.items():
        classes = np.split(part.images, np.cumsum(part.counts)[:-1])
        for name, images in zip(part.class_names, classes, strict=True):
            number = int(name[-1])
            numbers[number] = split
            assert {image.tobytes() for image in images} == {
                np.ascontiguousarray(pixels(number, index).transpose(2, 0, 1)).tobytes() for index in range(3)
            }
    assert sorted(numbers) == list(range(9))
    if splits_are_given:
        assert all(NAMES[number] in GIVEN[split] for number, split in numbers.items())
        assert data.options["split"] == "as given"


def test_what_meta_album_says_of_itself_is_kept(tmp_path: Path) -> None:
    meta_album(tmp_path)
    made(tmp_path, tmp_path / "data")
    description = added.describe(tmp_path / "data" / "mine")
    assert (description.license, description.citation) == ("CC0", "Ullah 2022")


def test_alphabets_are_no_domains(tmp_path: Path) -> None:
    names = ["Greek/char1", "Greek/char2", "Latin/char1", *(f"Thai/char{number}" for number in range(7))]
    write_classes(tmp_path / "top", names, 2)
    with pytest.raises(
        UserError, match=r"'char1' is in several, and 'char0' is in Thai and not in Greek, Latin\. Pass --domains"
    ):
        made(tmp_path / "top", tmp_path / "data")
    data = made(tmp_path / "top", tmp_path / "data", domains=False)
    assert sorted(name for part in data.splits.values() for name in part.class_names) == names


def test_a_domain_may_lack_a_class(tmp_path: Path) -> None:
    names = [f"{domain}/c{number}" for domain in ("art", "photo") for number in range(9)]
    write_classes(tmp_path / "top", [name for name in names if name != "art/c3"], 2)
    with pytest.raises(UserError, match="'c3' is in photo and not in art"):
        made(tmp_path / "top", tmp_path / "data")
    data = made(tmp_path / "top", tmp_path / "data", domains=True)
    counts = {
        n: c for part in data.splits.values() for n, c in zip(part.class_names, part.counts.tolist(), strict=True)
    }
    assert counts == {f"c{number}": 2 if number == 3 else 4 for number in range(9)}


def test_parquet_of_a_hub(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (tmp_path / "top" / "data").mkdir(parents=True)
    label = {"names": [f"name {number}" for number in range(9)], "_type": "ClassLabel"}
    metadata = {"huggingface": json.dumps({"info": {"features": {"image": {}, "label": label}}})}
    for part, indices in (("train", (0, 1)), ("test", (2,))):
        rows = [(number, index) for index in indices for number in range(9)]
        images = [{"bytes": encoded(picture(*row), "RGB", "png"), "path": None} for row in rows]
        table = arrow.table({"image": images, "label": [number for number, _ in rows], "other": [0.5] * len(rows)})
        table = table.replace_schema_metadata(metadata)
        parquet.write_table(table, tmp_path / "top" / "data" / f"{part}-00000-of-00001.parquet")
    with pytest.raises(UserError, match="has 9 in both test and train: name 0"):  # as of folders of splits
        made(tmp_path / "top", tmp_path / "data")
    data = made(tmp_path / "top", tmp_path / "data", split="60/20/20")
    found = {}
    for part in data.splits.values():
        found |= dict(zip(part.class_names, np.split(part.images, np.cumsum(part.counts)[:-1]), strict=True))
    assert sorted(found) == [f"name {number}" for number in range(9)]
    for number in range(9):
        expected = [pixels(number, index).transpose(2, 0, 1) for index in range(3)]
        assert {x.tobytes() for x in found[f"name {number}"]} == {x.tobytes() for x in expected}
    file = tmp_path / "top" / "data" / "test-00000-of-00001.parquet"
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(UserError, match=r"test-00000-of-00001\.parquet must be a Parquet file; it is damaged"):
        made(tmp_path / "top", tmp_path / "other")
    parquet.write_table(arrow.table({"picture": [b"x"], "score": [0.5]}), file)
    with pytest.raises(UserError, match=r"must have a column label or .*it has picture, score"):
        made(file, tmp_path / "other")


def test_parquet_files_of_classes_of_their_own_are_the_splits(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    for part, labels in (("train", (0, 1)), ("validation", (2, 3)), ("test", (4, 5))):
        images = [encoded(picture(label, index), "RGB", "png") for label in labels for index in range(2)]
        table = arrow.table({"image": images, "label": [label for label in labels for _ in range(2)]})
        parquet.write_table(table, tmp_path / f"{part}.parquet")
    data = made(tmp_path, tmp_path / "data")
    assert {split: part.class_names for split, part in data.splits.items()} == {
        "train": ("0000", "0001"),
        "validation": ("0002", "0003"),
        "test": ("0004", "0005"),
    }
    rows = arrow.table({"image": [{"bytes": None, "path": "x.png"}] * 4, "label": [0, 0, 1, 1]})
    parquet.write_table(rows, tmp_path / "train.parquet")
    with pytest.raises(UserError, match=r"row 0 of .*train\.parquet holds the path 'x\.png' alone"):
        made(tmp_path, tmp_path / "other")


def write_idx(path: Path, values: np.ndarray) -> None:
    head = b"\0\0\x08" + bytes([values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    content = head + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.mark.parametrize(("stem", "end"), [("", ""), ("emnist-letters-", ".gz")])
def test_idx_files(stem: str, end: str, tmp_path: Path) -> None:
    (tmp_path / "top").mkdir()
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2, 20, 12, 12))
    for part, images_of in zip(("train", "test"), images, strict=True):
        write_idx(tmp_path / "top" / f"{stem}{part}-images-idx3-ubyte{end}", images_of)
        write_idx(tmp_path / "top" / f"{stem}{part}-labels-idx1-ubyte{end}", np.arange(20) % 10)
    if stem:
        (tmp_path / "top" / f"{stem}mapping.txt").write_text("\n".join(f"{i} {65 + i}" for i in range(10)))
    data = made(tmp_path / "top", tmp_path / "data")
    assert sum(part.num_classes for part in data.splits.values()) == 10
    for part in data.splits.values():
        for name, found in zip(part.class_names, np.split(part.images, np.cumsum(part.counts)[:-1]), strict=True):
            label = int(name[:3])
            assert name == (f"{label:03d} {'ABCDEFGHIJ'[label]}" if stem else f"{label:03d}")
            expected = images[:, label::10].reshape(4, 12, 12)
            expected = expected.transpose(0, 2, 1) if stem else expected
            assert {x.tobytes() for x in found} == {x.astype(np.uint8).tobytes() for x in expected}


def spoil_labels(top: Path) -> None:
    (top / "FC100_val.pickle").unlink()


def spoil_code(top: Path) -> None:
    (top / "FC100_val.pickle").write_bytes(b"cos\nsystem\n(S'echo'\ntR.")


def spoil_rows(top: Path) -> None:
    data, labels = arrays_of(1)
    pickled(top / "FC100_val.pickle", {"data": data, "labels": labels[:-1]})


def spoil_images(top: Path) -> None:
    pickled(top / "FC100_val.pickle", {"data": arrays_of(1)[0] / 255, "labels": arrays_of(1)[1]})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_labels, "one pickle for each split; for validation it has none"),
        (spoil_code, r"anything else could run code; .*FC100_val\.pickle asks for os\.system"),
        (spoil_rows, "one for each of the 9 images"),
        (spoil_images, r"must hold uint8 images .* it holds an array float64"),
    ],
    ids=range(4),
)
def test_what_is_wrong_with_pickles_is_named(spoil: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    fc100(tmp_path)
    spoil(tmp_path)
    with pytest.raises(UserError, match=message):
        made(tmp_path, tmp_path / "data")


@pytest.mark.parametrize(
    ("write", "missing", "message"),
    [
        (cifar_fs, "cifar100/data/class4", "it lacks class4"),
        (cub_with_splits, "images/class4", r"must hold the classes of val\.json; it lacks class4"),
        (meta_album, "images/4_0.png", r"1 of 27 are missing: 4_0\.png"),
        (tiny_imagenet, "tiny-imagenet-200/val/images/4.png", r"must hold what val_annotations\.txt lists; 4\.png"),
    ],
    ids=range(4),
)
def test_what_a_list_names_must_be_there(
    write: Callable[[Path], None], missing: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "top").mkdir()
    write(tmp_path / "top")
    (tmp_path / "top" / missing).rename(tmp_path / "gone")
    with pytest.raises(UserError, match=message):
        made(tmp_path / "top", tmp_path / "data")


def test_a_damaged_idx_file_is_named(tmp_path: Path) -> None:
    write_idx(tmp_path / "train-images-idx3-ubyte", np.zeros((3, 4, 4)))
    with pytest.raises(UserError, match=r"train-labels-idx1-ubyte is not there"):
        made(tmp_path, tmp_path / "data")
    labels = tmp_path / "train-labels-idx1-ubyte"
    for content, message in {
        b"\0\0\x08\1" + struct.pack(">I", 4) + b"\0\0\0": "it has 3",
        b"\0\0\x08\1" + struct.pack(">I", 2) + b"\0\0\0": "goes on after its values",
        b"\0\0\x0d\1": "it begins with 00 00 0d 01",
        b"\0\0\x08\1\0": "damaged",
        b"\0\0\x08\1" + struct.pack(">I", 2) + b"\0\0": r"is \(3, 4, 4\) and .*\(2,\)",
    }.items():
        labels.write_bytes(content)
        with pytest.raises(UserError, match=message):
            made(tmp_path, tmp_path / "data")
