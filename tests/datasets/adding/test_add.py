"""From a folder, a list or an array file to what a bench reads; and what is wrong with one is named."""

import json
import shutil
import struct
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from mlpip_bench.datasets import added
from mlpip_bench.datasets.adding.add import Choices, add
from mlpip_bench.datasets.base import SPLITS, ImageDataset
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.progress import Quiet
from pictures import FORMS, color_of, encoded, picture, write_classes

NAMES = [f"c{i}" for i in range(10)]


def made(source: Path, root: Path, **choices: Any) -> ImageDataset:
    add("mine", source, root, Choices(**({"image_size": 12} | choices)), Quiet())
    return added.read(root / "mine")


def all_classes(data: ImageDataset) -> dict[str, np.ndarray]:
    found = {}
    for part in data.splits.values():
        found |= dict(zip(part.class_names, np.split(part.images, np.cumsum(part.counts)[:-1]), strict=True))
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_classes(tmp_path / "pictures", NAMES)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


# -- what comes out --------------------------------------------------------------------------------------------------


def test_class_folders_are_split_by_class_and_decoded(folder: Path, root: Path) -> None:
    data = made(folder, root)
    assert {split: part.num_classes for split, part in data.splits.items()} == {"train": 6, "validation": 2, "test": 2}
    assert (data.name, data.source, data.image_shape) == ("mine", "real", (3, 12, 12))
    classes = all_classes(data)
    assert sorted(classes) == NAMES
    for number, name in enumerate(NAMES):
        expected = [np.asarray(picture(number, index)).transpose(2, 0, 1) for index in range(4)]
        np.testing.assert_array_equal(classes[name], expected)


def test_the_description_says_all(folder: Path, root: Path) -> None:
    (folder / "c3" / "notes.txt").write_text("x")
    shutil.copy(folder / "c3" / "00.png", folder / "c3" / "copy.png")
    data = made(folder, root, seed=3, license="CC0-1.0", citation="Me 2026")
    content = yaml.safe_load((root / "mine" / "dataset.yaml").read_text(encoding="utf-8"))
    assert content.pop("splits") == {
        split: dict(zip(part.class_names, part.counts.tolist(), strict=True)) for split, part in data.splits.items()
    }
    assert content == {
        "format": "data add 1",
        "name": "mine",
        "kind": "images",
        "image_shape": [3, 12, 12],
        "source": f"{folder}, class folders",
        "options": {"size": 12, "split": "60/20/20", "split_seed": 3},
        "license": "CC0-1.0",
        "citation": "Me 2026",
        "pretrained_on": "",
        "left_out": {".txt": 1, "repeated": 1},
        "fingerprint": data.fingerprint,
    }


def test_the_split_is_the_seeds(folder: Path, tmp_path: Path) -> None:
    tests = [
        made(folder, tmp_path / f"data{n}", seed=seed).splits["test"].class_names for n, seed in enumerate([0, 0, 1, 2])
    ]
    assert tests[0] == tests[1]
    assert len(set(tests)) > 1


def test_the_picture_folder_is_not_needed_again(folder: Path, root: Path) -> None:
    add("mine", folder, root, Choices(image_size=12), Quiet())
    shutil.rmtree(folder)
    assert sum(part.images.sum() for part in added.read(root / "mine").splits.values()) > 0


@pytest.mark.parametrize(("mode", "ending"), FORMS)
def test_every_form_of_picture_is_read(mode: str, ending: str, tmp_path: Path, root: Path) -> None:
    for number, name in enumerate(NAMES):
        (tmp_path / "p" / name).mkdir(parents=True)
        for index in range(2):
            content = encoded(picture(number, index, (30, 20)), mode, ending)
            (tmp_path / "p" / name / f"{index}.{ending.upper()}").write_bytes(content)
    data = made(tmp_path / "p", root)
    gray = mode in ("L", "I;16")
    assert data.image_shape == (1 if gray else 3, 12, 12)
    for name, images in all_classes(data).items():
        color = np.array(color_of(NAMES.index(name)))
        expected = [color @ [0.299, 0.587, 0.114]] if gray else color
        assert np.abs(images.mean((0, 2, 3)) - expected).max() < 8


def test_the_middle_of_a_long_picture_is_taken(tmp_path: Path, root: Path) -> None:
    write_classes(tmp_path / "p", NAMES, 2)
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 255
    Image.fromarray(wide).save(tmp_path / "p" / "c0" / "wide.png")
    assert all_classes(made(tmp_path / "p", root, image_size=10))["c0"][-1].min() == 255


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("images", [False, True])
def test_folders_of_splits_are_kept(nested: bool, images: bool, tmp_path: Path, root: Path) -> None:
    top = tmp_path / "p" / "birds" if nested else tmp_path / "p"
    for number, name in enumerate(NAMES):
        place = top / ("train", "val", "test")[number % 3] / name / ("images" if images else "")
        place.mkdir(parents=True)
        for index in range(3):
            picture(number, index).save(place / f"{index}.png")
    (top / "__MACOSX").mkdir()
    (top / ".DS_Store").write_bytes(b"x")
    data = made(tmp_path / "p", root)
    expected = {split: tuple(NAMES[number::3]) for number, split in enumerate(SPLITS)}
    assert {split: part.class_names for split, part in data.splits.items()} == expected
    assert data.options == {"size": 12, "split": "as given"}
    again = made(tmp_path / "p", tmp_path / "other", split="40/30/30")
    assert {split: part.num_classes for split, part in again.splits.items()} == {"train": 4, "validation": 3, "test": 3}


def test_folders_of_splits_with_the_same_classes_are_pooled_on_request(tmp_path: Path, root: Path) -> None:
    for split in ("train", "test"):
        for number, name in enumerate(NAMES):
            (tmp_path / "p" / split / name).mkdir(parents=True)
            for index in range(2):
                picture(number, index + 2 * (split == "test")).save(tmp_path / "p" / split / name / f"{index}.png")
    with pytest.raises(UserError, match=r"10 in both test and train: c0, .*--split 60/20/20 to put the pictures"):
        made(tmp_path / "p", root)
    assert {len(images) for images in all_classes(made(tmp_path / "p", root, split="60/20/20")).values()} == {4}


@pytest.mark.parametrize("splits", [False, True])
def test_a_list(splits: bool, folder: Path, root: Path) -> None:
    rows = ["FILE;ignored;label;split".lower() if splits else "filename;label"]
    for number, name in enumerate(NAMES):
        for index in range(4):
            word = ("train", "valid", "TEST")[number % 3]
            rows.append(f"pictures\\{name}\\{index:02d}.png" + (f";x;{name};{word}" if splits else f";{name}"))
    (folder.parent / "list.csv").write_text("\n".join(rows), encoding="utf-8-sig")
    data = made(folder.parent / "list.csv", root)
    assert sorted(all_classes(data)) == NAMES
    if splits:
        assert data.splits["validation"].class_names == tuple(NAMES[1::3])
    np.testing.assert_array_equal(all_classes(data)["c4"][2], np.asarray(picture(4, 2)).transpose(2, 0, 1))


def test_a_list_of_classes_splits(folder: Path, root: Path) -> None:
    rows = [f"{name},{('train', 'val', 'test')[number % 3]}" for number, name in enumerate(NAMES[:9])]
    (folder.parent / "split.csv").write_text("class,split\n" + "\n".join(rows))
    shutil.copy(folder / "c3" / "00.png", folder / "loose.png")
    data = made(folder, root, split=str(folder.parent / "split.csv"))
    assert data.splits["test"].class_names == ("c2", "c5", "c8")
    assert data.options["split"] == "by list"
    assert added.describe(root / "mine").left_out == {".png": 1, "classes in no split": len(NAMES) - 9}


@pytest.mark.parametrize(
    ("classes", "split", "expected"), [(8, None, [4, 2, 2]), (6, None, [2, 2, 2]), (10, "80/10/10", [6, 2, 2])]
)
def test_few_classes_leave_each_split_two(classes, split, expected, tmp_path: Path, root: Path) -> None:
    folder = write_classes(tmp_path / "few", [f"k{number}" for number in range(classes)])
    data = made(folder, root, split=split)
    assert [part.num_classes for part in data.splits.values()] == expected


def test_a_list_names_classes_by_their_numbers(tmp_path: Path, root: Path) -> None:
    labels = np.arange(36) % 12
    np.savez(
        tmp_path / "a.npz",
        images=np.random.default_rng(0).integers(0, 256, (36, 12, 12), dtype=np.uint8),
        labels=labels,
    )
    rows = [f"{number},{('train', 'val', 'test')[number % 3]}" for number in range(12)]
    (tmp_path / "split.csv").write_text("class,split\n" + "\n".join(rows))
    data = made(tmp_path / "a.npz", root, split=str(tmp_path / "split.csv"))
    assert data.splits["test"].class_names == ("02", "05", "08", "11")


def split_of(number: int) -> str:
    return ("train", "val", "test")[number % 3]


def test_a_seed_without_a_random_split_is_refused(folder: Path, root: Path, tmp_path: Path) -> None:
    (tmp_path / "split.csv").write_text(
        "class,split\n" + "\n".join(f"{name},{split_of(i)}" for i, name in enumerate(NAMES))
    )
    with pytest.raises(UserError, match="--seed is of a random split"):
        made(folder, root, split=str(tmp_path / "split.csv"), seed=7)


@pytest.mark.parametrize("words", [("base", "val", "novel"), ("training", "validation", "testing")])
def test_folders_of_splits_have_the_names_that_users_give_them(words, tmp_path: Path, root: Path) -> None:
    names = [f"{word}/{word}{i}" for number, word in enumerate(words) for i in range(2 + number)]
    write_classes(tmp_path / "top", names)
    assert [part.num_classes for part in made(tmp_path / "top", root).splits.values()] == [2, 3, 4]


@pytest.mark.parametrize("form", ["hw", "hwc", "chw"])
def test_an_array_file_of_images(form: str, tmp_path: Path, root: Path) -> None:
    rng = np.random.default_rng(0)
    shape = {"hw": (40, 14, 14), "hwc": (40, 14, 14, 3), "chw": (40, 3, 14, 14)}[form]
    images = rng.integers(0, 256, shape, dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(40) % 10)
    data = made(tmp_path / "a.npz", root, image_size=None)
    expected = {"hw": images[:, None], "hwc": images.transpose(0, 3, 1, 2) if form == "hwc" else None, "chw": images}
    for name, found in all_classes(data).items():
        np.testing.assert_array_equal(found, expected[form][int(name) :: 10])


def test_an_array_file_of_features(tmp_path: Path, root: Path) -> None:
    features = np.random.default_rng(0).normal(size=(40, 7))
    labels = np.array([f"klasse {i % 10}" for i in range(40)])
    np.savez(tmp_path / "a.npz", features=features, labels=labels)
    with pytest.raises(UserError, match="--pretrained-on"):
        made(tmp_path / "a.npz", root, image_size=None)
    data = made(tmp_path / "a.npz", root, image_size=None, pretrained_on="ImageNet-1k")
    assert (data.image_shape, data.options["pretrained_on"]) == ((7, 1, 1), "ImageNet-1k")
    for name, found in all_classes(data).items():
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found[:, :, 0, 0], features[int(name[-1]) :: 10].astype(np.float32))


def test_names_may_have_spaces_and_letters_of_any_language(tmp_path: Path, root: Path) -> None:
    names = ["Blåmeis", "великая синица", "白頭翁", "a b", "c'd", "0", "01", "x#y", "Ü", "ü"]
    write_classes(tmp_path / "mine og dine", names, 2)
    assert sorted(all_classes(made(tmp_path / "mine og dine", root))) == sorted(names)


# -- what is wrong with it -------------------------------------------------------------------------------------------


def empty(folder: Path) -> None:
    shutil.rmtree(folder / "c5")
    (folder / "c5").mkdir()
    (folder / "c5" / "readme.txt").write_text("soon")


def one_class(folder: Path) -> None:
    for name in NAMES[1:]:
        shutil.rmtree(folder / name)


def no_class(folder: Path) -> None:
    for path in folder.glob("c*"):
        shutil.rmtree(path)
    picture(0, 0).save(folder / "lonely.png")


def deeper(folder: Path) -> None:
    for path in sorted(folder.glob("c*")):
        inner = folder / "outer" / "inner" / f"{path.name}0"
        inner.parent.mkdir(parents=True, exist_ok=True)
        path.rename(inner)
    (folder / "other" / "inner").mkdir(parents=True)
    (folder / "outer" / "inner" / "c00").rename(folder / "other" / "inner" / "c00")


def text(folder: Path) -> None:
    (folder / "c5" / "05.jpg").write_text("no picture")


def several(folder: Path) -> None:
    content = (folder / "c5" / "00.png").read_bytes()
    (folder / "c5" / "00.png").write_bytes(content[:-40])
    (folder / "c6" / "zero.png").write_bytes(b"")


def huge(folder: Path) -> None:
    Image.new("L", (8000, 5000)).save(folder / "c5" / "huge.png")


def real_numbers(folder: Path) -> None:
    Image.fromarray(np.ones((4, 4), np.float32)).save(folder / "c5" / "real.tiff")


def copy(folder: Path) -> None:
    Image.open(folder / "c5" / "00.png").save(folder / "c6" / "same.bmp")


def few(folder: Path) -> None:
    for path in sorted((folder / "c5").iterdir())[1:]:
        path.unlink()


def enormous(folder: Path) -> None:
    """A PNG whose header claims more pixels than Pillow looks at."""
    head = struct.pack(">4sIIBBBBB", b"IHDR", 60_000, 60_000, 8, 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    data = b"IDAT" + zlib.compress(b"")
    content += struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))
    (folder / "c5" / "enormous.png").write_bytes(content)


def twice_in_other_letters(folder: Path) -> None:
    (folder / "c5").rename(folder / "gr\u00fcn")
    (folder / "c6").rename(folder / "gru\u0308n")


def circle(folder: Path) -> None:
    (folder / "c99").symlink_to(folder)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (empty, r"a JPEG, PNG, .* file; .*c5 has none, it holds readme\.txt\. Fill the folder, convert"),
        (one_class, r"splits of at least 2 classes take 6, .* has 1: c0\. Add classes"),
        (
            deeper,
            r"one level below, as domain/class or train/class; .*inner has no picture, and the folders c00\. Pass",
        ),
        (no_class, r"each class must be a folder of its pictures; .*pictures has no such folder, it holds lonely\.png"),
        (text, r"a whole JPEG, PNG, BMP, WebP or TIFF; .*c5.05\.jpg is not: it is none of them"),
        (several, r"c5.00\.png is not: .* 1 more cannot be read: .*c6.zero\.png"),
        (huge, r"34 million pixels; .*c5.huge\.png has 40 \(8000x5000\)\. Scale it down"),
        (enormous, r"34 million pixels; .*c5.enormous\.png claims to have many more\. Scale it down"),
        (twice_in_other_letters, r"two classes may not have one name; .*composed as '.*' and as '.*'\. Put"),
        (real_numbers, r"c5.real\.tiff is not: its values are real numbers"),
        (copy, r"in one class may be in no other; .*c6.same\.bmp \(class 'c6' of \w+\) is the same as .*c5.00\.png"),
        (few, r"at least 2 different items.*'c5' of \w+ has 1\. Add some"),
        (circle, r"folders may not go in a circle; .*c99 is a link"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_wrong_with_a_folder_is_named(spoil: Any, message: str, folder: Path, root: Path) -> None:
    spoil(folder)
    with pytest.raises(UserError, match=message):
        made(folder, root)
    assert not (root / "mine").exists()
    assert not list(root.glob(".mine.adding*"))


@pytest.mark.parametrize(("number", "counts"), [(12, [7, 2, 3]), (11, [6, 2, 3]), (8, [4, 2, 2]), (25, [15, 5, 5])])
def test_what_shares_leave_over_is_for_the_test(number: int, counts: list[int], tmp_path: Path, root: Path) -> None:
    data = made(write_classes(tmp_path / "pictures", [f"c{i:02d}" for i in range(number)], 2), root)
    assert [data.splits[split].num_classes for split in SPLITS] == counts


def test_the_data_root_is_no_folder_of_pictures_and_no_file(folder: Path) -> None:
    with pytest.raises(UserError, match="pictures is the data root itself"):
        made(folder, folder)
    with pytest.raises(UserError, match=r"the data root must be a folder; .*00\.png is a file"):
        made(folder, folder / "c0" / "00.png")


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"split": "60/20/30"}, "add up to 100"),
        ({"split": ""}, "a path needs a name"),
        ({"split": "no.csv"}, "no such file"),
        ({"image_size": 4}, "from 8 to 1024"),
        ({"pretrained_on": "x"}, "is for feature vectors"),
    ],
)
def test_choices_that_do_not_fit_are_refused(choices: dict[str, Any], message: str, folder: Path, root: Path) -> None:
    with pytest.raises(UserError, match=message):
        made(folder, root, **choices)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": np.arange(40.0)}, "names or whole numbers; in .* they are float64"),
        ({"labels": np.arange(39) % 10}, r"for each of its 40 features; labels is \(39,\)"),
        ({"features": np.where(np.arange(280).reshape(40, 7) == 16, np.nan, 1)}, "1 of 40 vectors .*rows 2"),
        ({"features": np.array([np.ones(3), np.ones(4)], dtype=object)}, "features of .* Python objects.*equal length"),
        ({"labels": np.array(["a", "b"], dtype=object)}, r"labels of .* holds Python objects.*astype\(str\)"),
        ({"features": np.ones((40, 7)) * 1j}, "features of .* holds complex numbers"),
        ({"features": np.full((40, 7), 1e300)}, "finite numbers of 32 bits; in .* 40 of 40 vectors have others"),
        ({"features": np.ones(40)}, r"numbers \[vector, dimension\]; in .* float64 \(40,\)"),
        ({"images": np.ones((40, 4, 4))}, "one of the arrays images and features"),
    ],
    ids=range(9),
)
def test_what_is_wrong_with_an_array_file_is_named(
    arrays: dict[str, Any], message: str, tmp_path: Path, root: Path
) -> None:
    whole = {"features": np.random.default_rng(0).normal(size=(40, 7)), "labels": np.arange(40) % 10}
    np.savez(tmp_path / "a.npz", **(whole | arrays))
    with pytest.raises(UserError, match=message):
        made(tmp_path / "a.npz", root, image_size=None, pretrained_on="none")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["file,label", "c0/00.png,0.5", "c1/00.png,1.0"], r"they are real numbers, 0\.5, 1\.0"),
        (["file,label", "c0/00.png,"], "must have a label; 1 have none"),
        (["file,label", "c0/00.png,", "c0/00.png,a"], "must have a label; 1 have none"),
        (["file,label", "c0/77.png,a", "c0/00.png,b"], r"1 of 2 are missing: c0/77\.png"),
        (["file,label,split", "c0/00.png,a,dev"], "train, val or test; c0/00.png is in 'dev'"),
        (["file,label,split", "c0/00.png,a,", "c0/01.png,a,test"], "1 have none"),
        (["file,label,split", "c0/00.png,a,train", "c0/01.png,b,test"], "has no validation"),
        (["picture,label", "c0/00.png,a"], "lacks file"),
    ],
    ids=range(8),
)
def test_what_is_wrong_with_a_list_is_named(rows: list[str], message: str, folder: Path, root: Path) -> None:
    (folder / "list.csv").write_text("\n".join(rows))
    with pytest.raises(UserError, match=message):
        made(folder / "list.csv", root)


@pytest.mark.parametrize("name", ["Birds", "5birds", "b", "birds-", "my birds", "../x", "vögel", "x" * 41])
def test_names_that_no_bench_can_have_are_refused(name: str, folder: Path, root: Path) -> None:
    with pytest.raises(UserError, match="the name of a data set has"):
        add(name, folder, root, Choices(), Quiet())


# -- below the data root ---------------------------------------------------------------------------------------------


def test_what_is_there_is_replaced_on_request_alone(folder: Path, root: Path) -> None:
    before = made(folder, root)
    with pytest.raises(UserError, match=r"is there already.*--replace"):
        made(folder, root)
    assert made(folder, root, image_size=8, replace=True).fingerprint != before.fingerprint
    assert sorted(path.name for path in root.iterdir()) == [".adding.lock", "mine"]
    assert sorted(path.name for path in (root / "mine").iterdir()) == ["arrays.npz", "dataset.yaml"]


def test_a_users_own_folder_is_never_touched(folder: Path) -> None:
    with pytest.raises(UserError, match="data add has not made it"):
        add("pictures", folder, folder.parent, Choices(replace=True), Quiet())
    assert sorted(path.name for path in folder.iterdir()) == NAMES


def test_a_command_that_was_killed_leaves_nothing_that_counts(
    folder: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "rmtree", lambda *_a, **_k: None)  # the process is gone before it can clean up
    monkeypatch.setattr(yaml, "safe_dump", lambda *_a, **_k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        made(folder, root)
    monkeypatch.undo()
    assert list(root.glob(".mine.adding*/arrays.npz"))
    assert added.folders_below(root) == {}
    made(folder, root)
    assert list(added.folders_below(root)) == ["mine"]
    assert not list(root.glob(".mine.adding*"))


def test_two_commands_for_one_name_do_not_meet(folder: Path, root: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> Any:
        begun.set()
        go_on.wait(60)
        raise UserError("enough")

    def first() -> None:
        with pytest.raises(UserError, match="enough"):
            added.write(root, "mine", slow)

    thread = threading.Thread(target=first)
    thread.start()
    begun.wait(60)
    with pytest.raises(UserError, match="another command is adding data"):
        made(folder, root)
    go_on.set()
    thread.join()


def test_damaged_files_are_named(folder: Path, root: Path) -> None:
    made(folder, root)
    arrays, description = root / "mine" / "arrays.npz", root / "mine" / "dataset.yaml"
    content, text = arrays.read_bytes(), description.read_text()
    changed = bytearray(content)
    changed[len(content) // 3] ^= 1
    arrays.write_bytes(changed)
    with pytest.raises(UserError, match=r"arrays\.npz must be as data add wrote it; it is damaged"):
        [part.images for part in added.read(root / "mine").splits.values()]
    arrays.unlink()
    with pytest.raises(UserError, match=r"arrays\.npz must be"):
        added.read(root / "mine")
    arrays.write_bytes(content)
    description.write_text(text.replace(added.describe(root / "mine").fingerprint, "f" * 64))
    with pytest.raises(UserError, match="another fingerprint"):
        added.read(root / "mine")
    for damaged in ("", "x: [", json.dumps({"format": "data add 1"}), text.replace("data add 1", "data add 7")):
        description.write_text(damaged)
        with pytest.raises(UserError, match=r"dataset\.yaml must be"):
            added.describe(root / "mine")
    description.write_text(text)
    (root / "mine").rename(root / "other")
    with pytest.raises(UserError, match="has its name"):
        added.describe(root / "other")


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"pretrained_on": np.array(["a", "b"])}, "pretrained_on of .* must be a text without line breaks"),
        ({"pretrained_on": np.array("a\nb")}, "pretrained_on of .* must be a text"),
        ({"pretrained_on": np.array(3)}, "pretrained_on of .* must be a text"),
        ({"pretrained_on": np.array("a"), "source": np.array("reel")}, "one of real, procedural, bundled, synthetic"),
        ({"source": np.array("procedural")}, "Name it with --pretrained-on"),
    ],
)
def test_what_a_file_of_features_says_of_itself_is_checked(said, says, tmp_path, root):
    vectors = np.random.default_rng(0).normal(size=(40, 3))
    np.savez(tmp_path / "f.npz", features=vectors, labels=np.arange(40) % 10, **said)
    with pytest.raises(UserError, match=says):
        add("mine", tmp_path / "f.npz", root, Choices(), Quiet())
    assert not (root / "mine").exists()


def test_a_file_of_features_may_say_what_its_network_saw(tmp_path, root):
    vectors = np.random.default_rng(0).normal(size=(40, 3))
    texts = {"pretrained_on": np.array("noise"), "source": np.array("bundled"), "features_by": np.array("net")}
    np.savez(tmp_path / "f.npz", features=vectors, labels=np.arange(40) % 10, **texts)
    for choices, expected in ((Choices(), "noise"), (Choices(pretrained_on="more noise", replace=True), "more noise")):
        said = add("mine", tmp_path / "f.npz", root, choices, Quiet())
        assert said.pretrained_on == said.options["pretrained_on"] == expected
        assert said.options["features_by"] == "net"
        assert added.read(root / "mine").source == "bundled"


def test_features_of_a_data_set_stay_as_they_are_where_two_are_equal(tmp_path, root):
    vectors = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    vectors[10], vectors[11] = vectors[0], vectors[2]  # of the same class, and of another
    given = {"features": vectors, "labels": np.arange(40) % 10, "pretrained_on": np.array("noise")}
    np.savez(tmp_path / "f.npz", **given)
    with pytest.raises(UserError, match="what is in one class may be in no other"):
        add("mine", tmp_path / "f.npz", root, Choices(), Quiet())
    np.savez(tmp_path / "f.npz", **given, features_of=np.array("omniglot"))
    add("mine", tmp_path / "f.npz", root, Choices(), Quiet())
    classes = all_classes(added.read(root / "mine"))
    for name, found in classes.items():
        np.testing.assert_array_equal(found[..., 0, 0], vectors[int(name) :: 10])
