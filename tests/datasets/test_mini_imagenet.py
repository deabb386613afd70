import io
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mlpip_bench.datasets import mini_imagenet
from mlpip_bench.datasets.base import ImageDataset
from mlpip_bench.utils.errors import UserError

WNIDS = {"train": ("n00000001", "n00000002", "n00000003"), "val": ("n00000004",), "test": ("n00000005", "n00000006")}
EACH = 3

Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def arrays() -> Arrays:
    """For each class a few pictures, uint8 [image, 84, 84, 3]; smooth, so that JPEG keeps them."""
    rng = np.random.default_rng(3)
    corners = rng.integers(0, 256, (6, EACH, 2, 2, 3), dtype=np.uint8)
    wnids = [wnid for chosen in WNIDS.values() for wnid in chosen]
    return {
        wnid: np.stack([np.asarray(Image.fromarray(image).resize((84, 84))) for image in images])
        for wnid, images in zip(wnids, corners, strict=True)
    }


def png(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


# The writers give pictures PNG content, so that the arrays come back exactly; names are as users have them.


def write_lists(folder: Path, arrays: Arrays, *, images: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for split, wnids in WNIDS.items():
        rows = [(f"{wnid}{i + 1:08d}.jpg", wnid, i) for wnid in wnids for i in range(EACH)]
        (folder / f"{split}.csv").write_text("filename,label\n" + "".join(f"{n},{w}\n" for n, w, _ in rows[::-1]))
        for name, wnid, i in rows if images else []:
            put(folder / "images" / name, png(arrays[wnid][i]))


def write_class_folders(folder: Path, arrays: Arrays) -> None:
    for split, wnids in WNIDS.items():
        for wnid in wnids[::-1]:
            for i in reversed(range(EACH)):
                put(folder / split / wnid / f"{wnid}_{i}.jpg", png(arrays[wnid][i]))


def write_cache_pickles(folder: Path, arrays: Arrays, protocol: int = 2) -> None:
    rng = np.random.default_rng(0)
    for split, wnids in WNIDS.items():
        order = rng.permutation(len(wnids) * EACH)
        data = np.concatenate([arrays[wnid] for wnid in wnids])
        mixed = np.empty_like(data)
        mixed[order] = data
        rows = {wnid: order[c * EACH : (c + 1) * EACH].tolist() for c, wnid in enumerate(wnids)}
        content = {"image_data": mixed, "class_dict": dict(reversed(rows.items()))}
        put(folder / f"mini-imagenet-cache-{split}.pkl", pickle.dumps(content, protocol=protocol))


def write_array_pickles(folder: Path, arrays: Arrays) -> None:
    for split, wnids in WNIDS.items():
        put(folder / f"mini_imagenet_{split}.pkl", pickle.dumps(np.stack([arrays[wnid] for wnid in wnids])))


def write_labeled_pickles(folder: Path, arrays: Arrays) -> None:
    """The five files of public few-shot code; two of them hold other pictures of the training classes."""
    first = 0
    for split, wnids in WNIDS.items():
        data = np.concatenate([arrays[wnid] for wnid in wnids])
        labels = np.repeat(np.arange(first, first + len(wnids)), EACH).tolist()
        first += len(wnids)
        for phase in ("train", "val", "test") if split == "train" else ("",):
            name = "miniImageNet_category_split_" + (f"train_phase_{phase}" if phase else split)
            shown = data if phase in ("train", "") else data[::-1]
            put(folder / f"{name}.pickle", pickle.dumps({"data": shown, "labels": labels}, protocol=2))


def write_bytes_pickles(folder: Path, arrays: Arrays) -> None:
    """As Python 2 leaves them where text was read as bytes."""
    for split, wnids in WNIDS.items():
        rows = {wnid.encode(): list(range(c * EACH, (c + 1) * EACH)) for c, wnid in enumerate(wnids)}
        content = {b"image_data": np.concatenate([arrays[wnid] for wnid in wnids]), b"class_dict": rows}
        put(folder / f"mini-imagenet-cache-{split}.pkl", pickle.dumps(content, protocol=2))


def write_nested_class_folders(folder: Path, arrays: Arrays) -> None:
    for split, wnids in WNIDS.items():
        for wnid in wnids:
            for i in range(EACH):
                put(folder / split / wnid / "images" / f"{i}.jpg", png(arrays[wnid][i]))
            put(folder / split / wnid / f"{wnid}_boxes.txt", b"0 0 84 84")


def write_lists_of_folders(folder: Path, arrays: Arrays, form: str = "{name}") -> None:
    """Lists next to ``images/<wnid>/``, where names of two classes are the same."""
    for split, wnids in WNIDS.items():
        rows = [(wnid, i) for wnid in wnids for i in range(EACH)]
        lines = [f"{form.format(name=f'{i}.jpg', wnid=wnid)},{wnid}" for wnid, i in rows]
        put(folder / f"{split}.csv", "\n".join(["filename,label", *lines]).encode())
        for wnid, i in rows:
            put(folder / "images" / wnid / f"{i}.jpg", png(arrays[wnid][i]))


def write_spreadsheet_lists(folder: Path, arrays: Arrays) -> None:
    """Lists with an index, semicolons and the line ends and bytes of another system."""
    write_lists(folder, arrays)
    for split in WNIDS:
        path = folder / f"{split}.csv"
        lines = [f"{i};{line.replace(',', ';')}" for i, line in enumerate(path.read_text().splitlines())]
        text = "\r\n".join([lines[0].removeprefix("0"), *lines[1:]])
        path.write_bytes(text.encode({"train": "utf-16", "val": "utf-8-sig", "test": "utf-8"}[split]))


def write_bitmaps(folder: Path, arrays: Arrays) -> None:
    for split, wnids in WNIDS.items():
        for wnid in wnids:
            for i in range(EACH):
                buffer = io.BytesIO()
                Image.fromarray(arrays[wnid][i]).save(buffer, "BMP")
                put(folder / split / wnid / f"{i}.bmp", buffer.getvalue())


def write_npy(folder: Path, arrays: Arrays) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for split, wnids in WNIDS.items():
        np.save(folder / f"{split.replace('val', 'validation')}.npy", np.stack([arrays[wnid] for wnid in wnids]))


def write_imagenet(folder: Path, arrays: Arrays, wnid_folder: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(f"{wnid},{split}\n" for split, wnids in WNIDS.items() for wnid in wnids)
    (folder / "ravi_splits.csv").write_text("wnid,split\n" + rows)
    for wnid, images in arrays.items():
        for i in range(EACH):
            put(folder / wnid_folder / wnid / f"{wnid}_{i}.JPEG", png(images[i]))
    put(folder / wnid_folder / "n99999999" / "n99999999_1.JPEG", b"a class of ImageNet that is not wanted")


WRITERS: dict[str, Callable[[Path, Arrays], None]] = {
    "lists": write_lists,
    "class folders": write_class_folders,
    "pickled dicts": write_cache_pickles,
    "pickled arrays": write_array_pickles,
    "npy arrays": write_npy,
    "labels and arrays": write_labeled_pickles,
    "pickles with bytes for keys": write_bytes_pickles,
    "nested class folders": write_nested_class_folders,
    "lists by class": write_lists_of_folders,
    "lists with folders": lambda folder, arrays: write_lists_of_folders(folder, arrays, "images/{wnid}/{name}"),
    "lists with backslashes": lambda folder, arrays: write_lists_of_folders(folder, arrays, "images\\{wnid}\\{name}"),
    "lists with absolute paths": lambda folder, arrays: write_lists_of_folders(
        folder, arrays, "/home/somebody/mini/images/{wnid}/{name}"
    ),
    "lists of spreadsheets": write_spreadsheet_lists,
    "bitmaps": write_bitmaps,
    "ImageNet": write_imagenet,
    "ImageNet below train": lambda folder, arrays: write_imagenet(folder, arrays, "train"),
}


def read(folder: Path) -> ImageDataset:
    found = mini_imagenet.find(folder)
    assert found is not None
    return found.read()


@pytest.mark.parametrize("layout", WRITERS)
def test_every_layout_gives_the_arrays_back(tmp_path: Path, arrays: Arrays, layout: str) -> None:
    folder = tmp_path / "my data"
    WRITERS[layout](folder, arrays)
    dataset = read(folder)
    assert dataset.name == "miniimagenet-partial"
    assert (dataset.source, dataset.image_shape) == ("real", (3, 84, 84))
    for split, wnids in zip(dataset.splits.values(), WNIDS.values(), strict=True):
        expected = np.concatenate([arrays[wnid] for wnid in wnids])
        np.testing.assert_array_equal(split.images, np.moveaxis(expected, 3, 1))
        assert split.counts.tolist() == [EACH] * len(wnids)
        if "arrays" not in layout:  # arrays do not name their classes
            assert split.class_names == wnids
    assert ("selection" in dataset.options) == layout.startswith("ImageNet")


def test_layouts_with_names_have_one_fingerprint(tmp_path: Path, arrays: Arrays) -> None:
    names = ("lists", "class folders", "pickled dicts")
    for name in names:
        WRITERS[name](tmp_path / name, arrays)
    assert len({read(tmp_path / name).fingerprint for name in names}) == 1


def test_the_complete_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrays: Arrays) -> None:
    write_class_folders(tmp_path, arrays)
    sizes = {"train": (3, EACH), "validation": (1, EACH), "test": (2, EACH)}
    monkeypatch.setattr(mini_imagenet, "COMPLETE", sizes)
    assert read(tmp_path).name == "miniimagenet"
    put(tmp_path / "test" / "n00000005" / "one_more.jpg", png(arrays["n00000005"][0]))
    assert read(tmp_path).name == "miniimagenet-extended"


def test_other_sizes_and_modes(tmp_path: Path, arrays: Arrays) -> None:
    write_class_folders(tmp_path, arrays)
    rng = np.random.default_rng(5)
    original = Image.fromarray(rng.integers(0, 256, (60, 130, 3), dtype=np.uint8))
    original.save(tmp_path / "val" / "n00000004" / "a.JPEG", "JPEG")
    original.convert("L").save(tmp_path / "val" / "n00000004" / "b.jpeg", "JPEG")
    original.convert("CMYK").save(tmp_path / "val" / "n00000004" / "c.jpg", "JPEG")
    got = read(tmp_path).splits["validation"].images[:3]
    for name, image in zip(("a.JPEG", "b.jpeg", "c.jpg"), got, strict=True):
        with Image.open(tmp_path / "val" / "n00000004" / name) as jpeg:
            expected = np.asarray(jpeg.convert("RGB").resize((84, 84), Image.Resampling.LANCZOS))
        np.testing.assert_array_equal(image, np.moveaxis(expected, 2, 0))


def test_split_list_takes_the_first_600(tmp_path: Path, arrays: Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mini_imagenet, "IMAGES_PER_CLASS", 2)
    write_imagenet(tmp_path, arrays)
    dataset = read(tmp_path)
    np.testing.assert_array_equal(dataset.splits["validation"].images, np.moveaxis(arrays["n00000004"][:2], 3, 1))
    assert dataset.options["selection"] == "first 2 by name, not those of Ravi and Larochelle"


def test_lists_choose_from_imagenet_by_position(tmp_path: Path, arrays: Arrays) -> None:
    write_lists(tmp_path, arrays, images=False)
    (tmp_path / "val.csv").write_text(
        "filename,label\nn0000000400000003.jpg,n00000004\nn0000000400000001.jpg,n00000004\n"
    )
    for wnid, images in arrays.items():
        for number, image in zip((2, 10, 100), images, strict=True):  # by number, not by name
            put(tmp_path / wnid / f"{wnid}_{number}.JPEG", png(image))
    dataset = read(tmp_path)
    np.testing.assert_array_equal(dataset.splits["validation"].images, np.moveaxis(arrays["n00000004"][[0, 2]], 3, 1))
    assert "selection" not in dataset.options
    (tmp_path / "n00000004" / "n00000004_10.JPEG").unlink()
    with pytest.raises(UserError, match=r"n00000004 must hold all .* it has 2, and the lists ask for number 3"):
        read(tmp_path)


def test_the_real_split_list_without_pictures_is_not_found(data_root: Path, tmp_path: Path) -> None:
    assert mini_imagenet.find(data_root / "miniimagenet") is None
    shutil.copy(data_root / "miniimagenet" / "ravi_splits.csv", tmp_path)
    wanted = mini_imagenet._read_split_list(tmp_path / "ravi_splits.csv")
    assert [len(by_class) for by_class in wanted.values()] == [64, 16, 20]
    some = next(iter(wanted["test"]))
    (tmp_path / some).mkdir()
    with pytest.raises(UserError, match="99 are missing"):
        mini_imagenet.find(tmp_path)


def test_lists_without_pictures_are_not_found(tmp_path: Path, arrays: Arrays) -> None:
    write_lists(tmp_path, arrays, images=False)
    assert mini_imagenet.find(tmp_path) is None


def break_folder(
    tmp_path: Path, arrays: Arrays, layout: str, message: str
) -> Callable[[Callable[[Path], object]], None]:
    def check(damage: Callable[[Path], object]) -> None:
        folder = tmp_path / "broken"
        shutil.rmtree(folder, ignore_errors=True)
        WRITERS[layout](folder, arrays)
        damage(folder)
        with pytest.raises(UserError, match=message):
            read(folder)

    return check


THREE = [f"n00000005_{i}.jpg" for i in range(EACH)]

PICTURES: list[tuple[str, Callable[[Path], object], str]] = [
    (
        "class folders",
        lambda f: (f / "test/n00000005/n00000005_1.jpg").write_bytes(b"\xff\xd8\xff"),
        r"n00000005_1\.jpg is not",
    ),
    ("class folders", lambda f: (f / "test/n00000005/n00000005_1.jpg").write_bytes(b""), r"n00000005_1\.jpg is not"),
    ("class folders", lambda f: (f / "test/n00000007").mkdir(), "n00000007 has none"),
    ("class folders", lambda f: shutil.rmtree(f / "val"), "has only train, test"),
    (
        "class folders",
        lambda f: shutil.copytree(f / "val/n00000004", f / "train/n00000004"),
        "'n00000004' in train and val",
    ),
    ("class folders", lambda f: shutil.copytree(f / "val", f / "valid"), "for validation it has several"),
    ("lists", lambda f: (f / "images/n0000000500000001.jpg").unlink(), r"1 are missing: n0000000500000001\.jpg"),
    ("lists", lambda f: (f / "val.csv").unlink(), "for validation it has none"),
    ("lists", lambda f: (f / "val.csv").write_text("<html>login</html>"), r"val\.csv must be a csv.*web page"),
    ("lists", lambda f: (f / "val.csv").write_text(""), r"val\.csv must be a csv.*empty"),
    (
        "lists",
        lambda f: (f / "val.csv").write_text("file,class\na,b\n"),
        r"val\.csv must be a csv with the columns filename,label",
    ),
    ("lists", lambda f: shutil.copy(f / "test.csv", f / "val.csv"), r"is in val\.csv and test\.csv"),
    (
        "lists",
        lambda f: (f / "val.csv").write_text("filename,label\nimages/n0000000100000001.jpg,n1\n"),
        r"n0000000100000001\.jpg is listed again as images/n0000000100000001\.jpg",
    ),
    ("lists", lambda f: (f / "val.csv").write_text("filename,class\na,b\n"), "it lacks label: .* has filename, class"),
    (
        "class folders",
        lambda f: [(f / "test/n00000005" / n).rename(f / "test/n00000005" / f"{n}.gif") for n in THREE],
        r"n00000005 has none, it holds n00000005_0\.jpg\.gif",
    ),
    (
        "class folders",
        lambda f: [
            shutil.copy(f / "train/n00000002" / f"n00000002_{i}.jpg", f / "test/n00000005" / THREE[i])
            for i in range(EACH)
        ],
        "'n00000005' of test has those of 'n00000002' of train",
    ),
    ("ImageNet", lambda f: shutil.rmtree(f / "n00000002"), "1 are missing: n00000002"),
    ("ImageNet", lambda f: (f / "ravi_splits.csv").write_text("wnid,split\nn1,base\n"), "n1 is in 'base'"),
]


@pytest.mark.parametrize(("layout", "damage", "message"), PICTURES)
def test_broken_pictures_and_lists(
    tmp_path: Path, arrays: Arrays, layout: str, damage: Callable[[Path], object], message: str
) -> None:
    break_folder(tmp_path, arrays, layout, message)(damage)


def test_broken_arrays(tmp_path: Path, arrays: Arrays) -> None:
    images = np.zeros((4, 84, 84, 3), np.uint8)
    cases: list[tuple[object, str]] = [
        ({"image_data": images, "class_dict": {"n1": [0, 4]}}, r"train\.pkl n1 has one beyond its 4"),
        ({"image_data": images, "class_dict": {"n1": [0, -1]}}, r"train\.pkl n1 has one beyond its 4"),
        ({"image_data": images, "class_dict": {"n1": [0, 1], "n2": [1]}}, r"train\.pkl lists a row twice"),
        ({"image_data": images, "class_dict": {"n1": [0], "n2": []}}, r"train\.pkl class n2 has none"),
        ({"image_data": images, "class_dict": {"n1": 3}}, r"train\.pkl it is not"),
        ({"image_data": images, "class_dict": [1]}, r"train\.pkl it is not: a list"),
        ({"image_data": images, "class_dict": {}}, "the train split of miniimagenet has none"),
        ({"image_data": images / 255, "class_dict": {"n1": [0]}}, r"train\.pkl they are float64"),
        ({"image_data": images[:, :80], "class_dict": {"n1": [0]}}, r"\(4, 80, 84, 3\)"),
        ({"data": images, "labels": [0]}, r"labels must be one for each of the 4 images; in .*a list of 1"),
        ({"data": images}, r"labels must be one for each of the 4 images; in .*a NoneType"),
        ({"data": images, "labels": np.array(3)}, "labels must be one for each of the 4 images"),
        ({"data": images, "labels": [0, 1, 2, [3]]}, r"labels must be numbers or names; in .*a list"),
        ({"image_data": np.array(3, np.uint8), "class_dict": {}}, r"they are uint8 \(\)"),
        ({"image_data": [[1, 2], [3]], "class_dict": {}}, "it holds a dict with image_data, class_dict"),
        ({"image_data": images, "class_dict": {"n1": [10**30]}}, r"train\.pkl it is not: .*too large"),
        ({"image_data": images, "class_dict": {"n1": [float("inf")]}}, r"train\.pkl it is not: 'float'"),
        ({"image_data": images, "class_dict": {"n1": [[0], 1]}}, r"train\.pkl it is not: 'list'"),
        ({"image_data": images, "class_dict": {"n1": "01"}}, r"train\.pkl it is not: class n1 has a str"),
        ({"image_data": images, "class_dict": {"n1": [0], 2: [1]}}, r"train\.pkl it is not: '<' not supported"),
        ({"image_data": images, "class_dict": {k: [0, 1, 2, 3] for k in range(9)}}, r"train\.pkl lists a row twice"),
        (images, r"it holds an array uint8 \(4, 84, 84, 3\)"),
        (images[None].transpose(0, 1, 4, 2, 3), r"they are uint8 \(4, 3, 84, 84\)"),
        (images[None, :0], r"train/class00 has none"),
        ([1, 2], "it holds a list"),
    ]
    for content, message in cases:
        write_cache_pickles(tmp_path, arrays)
        (tmp_path / "mini-imagenet-cache-train.pkl").write_bytes(pickle.dumps(content))
        with pytest.raises(UserError, match=message):
            read(tmp_path)


def test_broken_array_files(tmp_path: Path, arrays: Arrays) -> None:
    write_npy(tmp_path, arrays)
    path = tmp_path / "test.npy"
    whole = path.read_bytes()
    for content, message in (
        (b"", "empty"),
        (b"<html>", "web page"),
        (whole[:-1], "cut short"),
        (whole[:20], "cut short"),
    ):
        path.write_bytes(content)
        with pytest.raises(UserError, match=rf"test\.npy.*{message}"):
            read(tmp_path)
    np.save(path, np.array([{}], dtype=object))
    with pytest.raises(UserError, match=r"test\.npy"):
        read(tmp_path)
    path.unlink()
    with pytest.raises(UserError, match="one file of arrays for each split; for test it has none"):
        read(tmp_path)
    for name in ("test.npy", "test_labels.npy"):
        (tmp_path / name).write_bytes(whole)
    with pytest.raises(UserError, match=r"for test it has test\.npy, test_labels\.npy"):
        read(tmp_path)


def test_a_hostile_pickle_is_refused(tmp_path: Path, arrays: Arrays) -> None:
    write_cache_pickles(tmp_path, arrays)
    (tmp_path / "mini-imagenet-cache-val.pkl").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(UserError, match=r"mini-imagenet-cache-val\.pkl asks for os\.system"):
        read(tmp_path)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_every_protocol(tmp_path: Path, arrays: Arrays, protocol: int) -> None:
    write_cache_pickles(tmp_path, arrays, protocol)
    np.testing.assert_array_equal(read(tmp_path).splits["validation"].images, np.moveaxis(arrays["n00000004"], 3, 1))
