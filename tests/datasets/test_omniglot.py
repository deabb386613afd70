import csv
import hashlib
import io
import shutil
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mlpip_bench.datasets import omniglot
from mlpip_bench.datasets.base import ImageDataset
from mlpip_bench.datasets.omniglot import Character, Resize, Split
from mlpip_bench.utils.errors import UserError

Drawings = dict[tuple[str, int], np.ndarray]


def read(folder: Path, split: Split = "random", resize: Resize = "nearest") -> ImageDataset:
    found = omniglot.find(folder, split, resize)
    assert found is not None
    return found.read()


def images_of(dataset: ImageDataset) -> dict[str, np.ndarray]:
    """Each class's images, whichever split it is in."""
    images: dict[str, np.ndarray] = {}
    for split in dataset.splits.values():
        images.update(zip(split.class_names, np.split(split.images, np.cumsum(split.counts)[:-1]), strict=True))
    return images


@pytest.fixture(scope="session")
def table(data_root: Path) -> list[dict[str, str]]:
    with (data_root / "omniglot" / "characters.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="session")
def real(data_root: Path) -> ImageDataset:
    return read(data_root / "omniglot")


@pytest.fixture(scope="session")
def small_zip(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the official archive of five alphabets and nothing else."""
    folder = tmp_path_factory.mktemp("small") / "omniglot"
    folder.mkdir()
    shutil.copy(data_root / "omniglot" / "images_background_small1.zip", folder)
    return folder


# Small sets made up here: two alphabets of the train part, one of each other, four drawings a character.
MADE = {"Greek": 3, "Latin": 2, "Hebrew": 2, "Keble": 3}


@pytest.fixture(scope="module")
def drawings() -> Drawings:
    rng = np.random.default_rng(1)
    return {(a, n): rng.random((4, 105, 105)) > 0.3 for a, total in MADE.items() for n in range(1, total + 1)}


def png(paper: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(paper).save(buffer, "PNG")
    return buffer.getvalue()


def members(drawings: Drawings, root: str) -> list[tuple[str, bytes]]:
    return [
        (f"{root}/{alphabet}/character{number:02d}/{i:04d}_{drawer + 1:02d}.png", png(paper))
        for i, ((alphabet, number), papers) in enumerate(drawings.items(), start=1)
        for drawer, paper in enumerate(papers)
    ]


def write_zip(path: Path, content: list[tuple[str, bytes]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content:
            archive.writestr(name, data)


def write_folders(folder: Path, content: list[tuple[str, bytes]]) -> None:
    for name, data in content:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def write_npz(folder: Path, drawings: Drawings) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "images_background.npz", images=np.stack(list(drawings.values())))
    rows = [f"{i},{a},{n},background,x" for i, (a, n) in enumerate(drawings, start=1)]
    (folder / "characters.csv").write_text("\n".join(["index,alphabet,character,archive,vinyals_split", *rows[::-1]]))


WRITERS: dict[str, Callable[[Path, Drawings], None]] = {
    "npz": write_npz,
    "zip": lambda folder, drawings: write_zip(
        folder / "images_background.zip", members(drawings, "images_background")[::-1]
    ),
    "folders": lambda folder, drawings: write_folders(folder, members(drawings, "images_background")),
    "folders in folders": lambda folder, drawings: write_folders(
        folder, members(drawings, "images_background/images_background")
    ),
}


@pytest.mark.parametrize("split", ["random", "vinyals"])
def test_sizes_of_the_complete_set(data_root: Path, table: list[dict[str, str]], split: Split) -> None:
    dataset = read(data_root / "omniglot", split)
    counts = Counter(row["vinyals_split"] for row in table)
    characters = (1100, 100, 423) if split == "random" else (counts["train"], counts["val"], counts["test"])
    assert tuple(s.num_classes for s in dataset.splits.values()) == tuple(4 * n for n in characters)
    assert sum(characters) == len(table) == 1623
    assert dataset.name == "omniglot"
    assert dataset.source == "real"
    assert all((s.counts == 20).all() for s in dataset.splits.values())
    assert dataset.image_shape == (1, 28, 28)


def test_vinyals_split_is_the_published_one(table: list[dict[str, str]]) -> None:
    published = {Character(row["alphabet"], int(row["character"])): row["vinyals_split"] for row in table}
    chosen = omniglot.split_characters(published, "vinyals")
    ours = {character: split for split, characters in chosen.items() for character in characters}
    assert ours == {c: "validation" if split == "val" else split for c, split in published.items()}
    both = {c.alphabet for c in chosen["train"]} & {c.alphabet for c in chosen["test"]}
    assert both == {"Gurmukhi"}


def test_random_split_does_not_depend_on_order(table: list[dict[str, str]]) -> None:
    characters = [Character(row["alphabet"], int(row["character"])) for row in table]
    shuffled = np.random.default_rng(0).permutation(len(characters))
    chosen = omniglot.split_characters([characters[i] for i in shuffled], "random")
    assert chosen == omniglot.split_characters(characters, "random")
    # A split by alphabet would leave most alphabets out of the test split; one by character hardly any.
    assert len({c.alphabet for c in chosen["test"]}) > 45


def test_random_split_stays_as_it_is(real: ImageDataset) -> None:
    """A new version of Python or numpy must not change who is tested on what."""
    names = "\n".join(name for split in real.splits.values() for name in (*split.class_names, ""))
    assert hashlib.sha256(names.encode()).hexdigest()[:16] == "7dd44609db629a1c"


def test_official_archive_and_arrays_agree_to_the_pixel(small_zip: Path, real: ImageDataset) -> None:
    from_zip, from_npz = images_of(read(small_zip)), images_of(real)
    assert len(from_zip) == 4 * (24 + 22 + 24 + 40 + 26)
    for name, images in from_zip.items():
        np.testing.assert_array_equal(images, from_npz[name], err_msg=name)


def test_the_images_are_what_pillow_makes_of_the_pngs(small_zip: Path) -> None:
    ours = {resize: images_of(read(small_zip, resize=resize)) for resize in ("nearest", "antialias")}
    with zipfile.ZipFile(small_zip / "images_background_small1.zip") as archive:
        for name in [n for n in archive.namelist() if n.endswith("_07.png")][::10]:
            image = Image.open(io.BytesIO(archive.read(name)))
            assert image.mode == "1"
            class_name = "/".join(name.split("/")[1:3])
            for degrees in (0, 90, 180, 270):
                turned = image.rotate(degrees)
                row = class_name + (f"@{degrees}" if degrees else "")
                for filter_ in (Image.Resampling.NEAREST, Image.Resampling.LANCZOS):
                    small = np.asarray(turned.resize((28, 28), filter_))
                    np.testing.assert_array_equal(ours["nearest"][row][6, 0], np.where(small, 0, 255))
            gray = np.asarray(image.convert("L").resize((28, 28), Image.Resampling.LANCZOS))
            np.testing.assert_array_equal(ours["antialias"][class_name][6, 0], 255 - gray)


def test_ink_is_255_and_rare(real: ImageDataset) -> None:
    images = real.splits["validation"].images
    assert set(np.unique(images)) == {0, 255}
    assert 0.05 < (images == 255).mean() < 0.25


def test_turns_of_a_character_stay_in_its_split(real: ImageDataset) -> None:
    for split in real.splits.values():
        turns = Counter(name.split("@")[0] for name in split.class_names)
        assert set(turns.values()) == {4}


def test_rotations_can_be_left_out(tmp_path: Path, drawings: Drawings) -> None:
    WRITERS["npz"](tmp_path, drawings)
    found = [omniglot.find(tmp_path, "random", "nearest", rotations) for rotations in (4, 1)]
    turned, upright = (f.read() for f in found if f)
    for split, part in turned.splits.items():
        names = [name for name in part.class_names if "@" not in name]
        assert upright.splits[split].class_names == tuple(names)
        assert 4 * len(names) == part.num_classes
    for name, images in images_of(upright).items():
        assert np.array_equal(images, images_of(turned)[name])
    assert turned.fingerprint != upright.fingerprint
    assert upright.options["rotations"] == "off"
    assert "rotations" not in turned.options
    assert [dict(f.settings).get("rotations") for f in found if f] == [None, "off"]


@pytest.mark.parametrize("layout", WRITERS)
@pytest.mark.parametrize("resize", ["nearest", "antialias"])
def test_all_layouts_give_the_same_data(tmp_path: Path, drawings: Drawings, layout: str, resize: Resize) -> None:
    WRITERS["npz"](tmp_path / "reference", drawings)
    WRITERS[layout](tmp_path / "other order", dict(reversed(drawings.items())))
    reference = read(tmp_path / "reference", resize=resize)
    assert read(tmp_path / "other order", resize=resize).fingerprint == reference.fingerprint
    small = Image.fromarray(drawings["Latin", 2][3])
    if resize == "antialias":
        small = small.convert("L")
    expected = 255 - np.asarray(small.resize((28, 28), Image.Resampling.LANCZOS).convert("L"))
    np.testing.assert_array_equal(images_of(reference)["Latin/character02"][3, 0], expected)


def test_a_part_does_not_pass_for_the_whole(tmp_path: Path, drawings: Drawings) -> None:
    write_npz(tmp_path, drawings)
    random, vinyals = read(tmp_path), read(tmp_path, "vinyals")
    assert random.name == vinyals.name == "omniglot-partial"
    assert random.options == {"split": "random", "resize": "nearest", "characters": 10, "classes": 40, "images": 160}
    assert [s.num_classes for s in random.splits.values()] == [4 * 7, 4 * 1, 4 * 2]
    assert [s.num_classes for s in vinyals.splits.values()] == [4 * 5, 4 * 2, 4 * 3]


def test_splits_that_would_be_empty(tmp_path: Path, drawings: Drawings) -> None:
    only = {key: value for key, value in drawings.items() if key[0] != "Hebrew"}
    write_npz(tmp_path / "a", only)
    with pytest.raises(UserError, match=r"vinyals split leaves none for validation.*random split"):
        read(tmp_path / "a", "vinyals")
    write_npz(tmp_path / "b", {key: drawings[key] for key in [("Greek", 1), ("Greek", 2)]})
    with pytest.raises(UserError, match="random split leaves none for train"):
        read(tmp_path / "b")
    write_npz(tmp_path / "c", {("Klingon", 1): drawings["Greek", 1]})
    with pytest.raises(UserError, match=r"'Klingon' is not among them"):
        read(tmp_path / "c", "vinyals")


def test_small_archives_are_left_out_or_merged(tmp_path: Path, drawings: Drawings) -> None:
    keys = list(drawings)
    background, evaluation, small = ({k: drawings[k] for k in chosen} for chosen in (keys[:7], keys[7:], keys[:3]))
    write_zip(tmp_path / "images_background.zip", members(background, "images_background"))
    write_zip(tmp_path / "images_background_small1.zip", members(small, "images_background_small1"))
    assert read(tmp_path).options["characters"] == 7
    write_zip(tmp_path / "images_evaluation.zip", members(evaluation, "images_evaluation"))
    (tmp_path / "images_background_small1.zip").write_bytes(b"no archive at all")
    whole = read(tmp_path)
    write_npz(tmp_path / "reference", drawings)
    assert whole.fingerprint == read(tmp_path / "reference").fingerprint


def test_one_drawing_with_two_contents(tmp_path: Path, drawings: Drawings) -> None:
    write_zip(tmp_path / "images_a.zip", members({("Greek", 1): drawings["Greek", 1]}, "a"))
    write_zip(tmp_path / "images_b.zip", members({("Greek", 1): drawings["Greek", 2]}, "b"))
    with pytest.raises(UserError, match=r"images_b\.zip:b/Greek/character01/0001_01\.png and .*images_a\.zip.* differ"):
        read(tmp_path)


def test_notes_of_other_programs_are_ignored(tmp_path: Path, drawings: Drawings) -> None:
    notes = [
        ("__MACOSX/images_background/Greek/character01/._0001_01.png", b"note"),
        ("images_background/Greek/character01/.DS_Store", b"note"),
    ]
    write_zip(tmp_path / "zip" / "images_background.zip", [*members(drawings, "images_background"), *notes])
    write_folders(tmp_path / "folders", [*members(drawings, "images_background"), *notes])
    assert read(tmp_path / "zip").fingerprint == read(tmp_path / "folders").fingerprint


def test_broken_files_are_named(tmp_path: Path, drawings: Drawings) -> None:
    def fails(folder: Path, message: str) -> None:
        with pytest.raises(UserError, match=message):
            read(folder)

    content = members(drawings, "images_background")
    name, data = content[5]
    for label, bad, message in (
        ("text", b"hello", "it is none of them"),
        ("cut", data[: len(data) // 2], "truncated|cut|broken"),
        ("small", png(np.ones((28, 28), bool)), "28x28"),
    ):
        write_folders(tmp_path / label, [*content, (name, bad)])
        fails(tmp_path / label, rf"character02/0002_02\.png.*({message})")
        write_zip(tmp_path / f"{label}-zip" / "images_x.zip", [c if c[0] != name else (name, bad) for c in content])
        fails(tmp_path / f"{label}-zip", rf"images_x\.zip:.*character02/0002_02\.png.*({message})")
    write_folders(tmp_path / "empty class", content)
    (tmp_path / "empty class" / "images_background" / "Greek" / "character77").mkdir()
    fails(tmp_path / "empty class", "character77 has none")
    (tmp_path / "empty" / "images_background").mkdir(parents=True)
    fails(tmp_path / "empty", "images_background must hold")
    write_zip(tmp_path / "no pictures" / "images_background.zip", [("readme.txt", b"hello")])
    fails(tmp_path / "no pictures", "holds no picture")
    write_zip(tmp_path / "stray" / "images_background.zip", [*content, ("images_background/Greek/x.png", data)])
    fails(tmp_path / "stray", r"Greek/x\.png does not")


def test_broken_arrays_are_named(tmp_path: Path, drawings: Drawings) -> None:
    write_npz(tmp_path, drawings)
    arrays, table = tmp_path / "images_background.npz", tmp_path / "characters.csv"
    whole, rows = arrays.read_bytes(), table.read_text()
    for content, message in (
        (b"", "empty"),
        (b"<html>", "web page"),
        (whole[:5000], "cut short"),
        (whole[:50_000] + b"x" + whole[50_001:], "damaged"),
    ):
        arrays.write_bytes(content)
        with pytest.raises(UserError, match=rf"images_background\.npz.*{message}"):
            read(tmp_path)
    np.savez(arrays, images=np.array([None, {}], dtype=object))
    with pytest.raises(UserError, match=r"images_background\.npz holds Python objects"):
        read(tmp_path)
    np.savez(arrays, images=np.zeros((10, 4, 28, 28), bool))
    with pytest.raises(UserError, match=r"in .*images_background\.npz it is bool \(10, 4, 28, 28\)"):
        read(tmp_path)
    arrays.write_bytes(whole)
    table.write_text("\n".join(rows.split("\n")[:-2]))
    with pytest.raises(UserError, match="it lists 8 of 10"):
        read(tmp_path)
    table.write_text(rows.replace("alphabet", "script"))
    with pytest.raises(UserError, match=r"characters\.csv must be a csv with the columns"):
        read(tmp_path)
    table.write_text(rows.replace("Greek,2,", "Greek,1,"))
    with pytest.raises(UserError, match="Greek/character01 comes twice"):
        read(tmp_path)
    table.unlink()
    with pytest.raises(UserError, match=r"need characters\.csv"):
        read(tmp_path)


def test_nothing_there_is_not_found(tmp_path: Path) -> None:
    assert omniglot.find(tmp_path, "random", "nearest") is None
