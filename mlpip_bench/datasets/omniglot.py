"""Omniglot: 1623 handwritten characters of 50 alphabets, 20 drawings each (Lake, Salakhutdinov, Tenenbaum 2015).

A drawing is 28x28 with ink at 255, as in the public few-shot code. The quarter turns of a character are
classes of their own (``Greek/character01@90``), made after the split and so in the split of their character.

Layouts, the first that is there:

1. ``images_background.npz`` and ``images_evaluation.npz`` (``images``: bool ``[character, drawing, 105, 105]``, True is
   paper) with ``characters.csv``, which says whose rows they are;
2. the official archives ``images_background.zip`` and ``images_evaluation.zip``, or any ``images_*.zip``;
3. these unpacked: ``images_*/<alphabet>/characterNN/XXXX_YY.png``.

The official ``small`` sets repeat characters of the background set; they are left out where both full sets are there.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mlpip_bench.datasets.archives import broken, read_zip
from mlpip_bench.datasets.arrays import read_npz
from mlpip_bench.datasets.base import SPLITS, ClassImages, ImageDataset
from mlpip_bench.datasets.lists import read_list
from mlpip_bench.datasets.pictures import PictureForm, ink, on_paper
from mlpip_bench.datasets.reading import (
    Found,
    Picture,
    Sizes,
    assemble,
    decode,
    file_picture,
    is_picture_name,
    listed,
    member_picture,
    pictures_in,
)
from mlpip_bench.utils.errors import UserError

VERSION = 2
"""Version of this reader: change it whenever the arrays that it makes change."""

FOLDERS = ("omniglot",)
LAYOUTS = (
    "images_background.npz + images_evaluation.npz + characters.csv",
    "images_background.zip + images_evaluation.zip (or any images_*.zip)",
    "images_background/<alphabet>/characterNN/*.png and images_evaluation/ (or any images_*/)",
)

Split = Literal["random", "vinyals"]
Resize = Literal["nearest", "antialias"]

CHARACTERS = 1623
DRAWINGS = 20
ROTATIONS = 4
SIDE, SMALL_SIDE = 105, 28
RANDOM_SIZES = {"train": 1100, "validation": 100, "test": 423}
VINYALS_SIZES = {"train": 1028, "validation": 172, "test": 423}

_MOST = 2**30  # bytes of an array; the complete one has 213 MB

RANDOM_SEED = "mlpip_bench omniglot random split 1"
"""Decides the random split, for every run and every bench seed."""

VINYALS_VALIDATION = ("Armenian", "Bengali", "Early_Aramaic", "Hebrew", "Mkhedruli_(Georgian)")
VINYALS_TEST = (
    "Gurmukhi",
    "Kannada",
    "Keble",
    "Malayalam",
    "Manipuri",
    "Mongolian",
    "Old_Church_Slavonic_(Cyrillic)",
    "Oriya",
    "Sylheti",
    "Syriac_(Serto)",
    "Tengwar",
    "Tibetan",
    "ULOG",
)
VINYALS_TRAIN = (
    "Alphabet_of_the_Magi",
    "Angelic",
    "Anglo-Saxon_Futhorc",
    "Arcadian",
    "Asomtavruli_(Georgian)",
    "Atemayar_Qelisayer",
    "Atlantean",
    "Aurek-Besh",
    "Avesta",
    "Balinese",
    "Blackfoot_(Canadian_Aboriginal_Syllabics)",
    "Braille",
    "Burmese_(Myanmar)",
    "Cyrillic",
    "Futurama",
    "Ge_ez",
    "Glagolitic",
    "Grantha",
    "Greek",
    "Gujarati",
    "Inuktitut_(Canadian_Aboriginal_Syllabics)",
    "Japanese_(hiragana)",
    "Japanese_(katakana)",
    "Korean",
    "Latin",
    "Malay_(Jawi_-_Arabic)",
    "N_Ko",
    "Ojibwe_(Canadian_Aboriginal_Syllabics)",
    "Sanskrit",
    "Syriac_(Estrangelo)",
    "Tagalog",
    "Tifinagh",
)
GURMUKHI_TEST_FROM = 42
"""Gurmukhi is the one alphabet that Vinyals et al. cut in two: its last four characters are test characters."""


class Character(NamedTuple):
    """What identifies a character, whichever file it comes from."""

    alphabet: str
    number: int

    @property
    def class_name(self) -> str:
        """The name of its folder in the official archives."""
        return f"{self.alphabet}/character{self.number:02d}"


Drawings = Iterable[tuple[Character, NDArray[np.bool_]]]
"""Characters with their drawings, bool ``[drawing, 105, 105]``, True is paper."""


def complete_sizes(split: Split, rotations: int = ROTATIONS) -> Sizes:
    """The sizes of the complete Omniglot, with so many rotations of each character."""
    sizes = VINYALS_SIZES if split == "vinyals" else RANDOM_SIZES
    return {name: (characters * rotations, DRAWINGS) for name, characters in sizes.items()}


def find(folder: Path, split: Split, resize: Resize, rotations: int = ROTATIONS) -> Found | None:
    """Omniglot in a folder, in the first layout that is there.

    Args:
        folder: where to look.
        split: ``random``, by character, or ``vinyals``, by alphabet.
        resize: ``nearest`` is what Pillow makes of a 1-bit drawing with whatever filter, hence what most
            published results saw; ``antialias`` converts to gray first, then resizes with Lanczos.
        rotations: quarter turns of a character that are classes; 1 for the upright one alone.

    Raises:
        UserError: a layout is there in part.
    """

    def found(layout: str, files: Sequence[Path], drawings: partial[Drawings]) -> Found:
        settings = {"split": split, "resize": resize, **_rotations_option(rotations)}
        sizes = complete_sizes(split, rotations)
        return Found(
            layout, folder, tuple(files), settings, sizes, lambda: _build(drawings(), split, resize, rotations)
        )

    arrays = sorted(folder.glob("images_*.npz"))
    if arrays:
        table = folder / "characters.csv"
        if not table.is_file():
            raise UserError(
                f"the arrays in {folder} do not say whose drawings they hold: they need characters.csv "
                "in the same folder, with the columns index, alphabet, character, archive. Put it there, or use the "
                "official archives instead."
            )
        return found("npz arrays", [table, *arrays], partial(_from_arrays, arrays, table))
    archives = _without_small(folder.glob("images_*.zip"))
    if archives:
        return found("zip archives", archives, partial(_from_archives, archives))
    roots = _without_small(path for path in folder.glob("images_*") if path.is_dir())
    # Some unpackers put the archive's folder into one of the archive's name.
    folders = sorted(path for root in roots for top in (root, root / root.name) for path in top.glob("*/character*/"))
    if roots and not folders:
        raise UserError(f"{listed(roots)} must hold <alphabet>/characterNN/*.png, but does not. Fill it or remove it.")
    if folders:
        pictures = [picture for path in folders for picture in pictures_in(path)]
        return found("folders", pictures, partial(_from_files, pictures))
    return None


def _without_small(paths: Iterable[Path]) -> list[Path]:
    ordered = sorted(paths)
    full = [path for path in ordered if path.stem in ("images_background", "images_evaluation")]
    return full if len(full) == 2 else ordered


def _from_arrays(paths: Sequence[Path], table: Path) -> Drawings:
    rows_of = _read_table(table)
    for path in paths:
        images = read_npz(path, ["images"], _MOST)["images"]
        if images.dtype != np.bool_ or images.ndim != 4 or images.shape[2:] != (SIDE, SIDE) or not images.shape[1]:
            raise UserError(
                f"`images` must be bool [character, drawing, {SIDE}, {SIDE}], with a drawing of each; "
                f"in {path} it is {images.dtype} {images.shape}."
            )
        characters = rows_of[path.stem.removeprefix("images_")]
        if len(images) != len(characters):
            raise UserError(f"{table} must list each row of {path}: it lists {len(characters)} of {len(images)}.")
        yield from zip(characters, images, strict=True)


def _read_table(path: Path) -> dict[str, list[Character]]:
    """For each of the two arrays, the character of each row."""
    columns = ("index", "alphabet", "character", "archive")
    rows_of: dict[str, list[Character]] = defaultdict(list)
    try:
        for _, alphabet, number, archive in sorted(read_list(path, columns), key=lambda row: int(row[0])):
            rows_of[archive].append(Character(alphabet, int(number)))
    except ValueError as error:
        raise broken(path, f"a csv with the columns {','.join(columns)}", error) from error
    return rows_of


def _from_archives(paths: Sequence[Path]) -> Drawings:
    def pictures() -> Iterator[tuple[PurePosixPath, Picture]]:
        for path in paths:
            members = read_zip(path, lambda name: is_picture_name(name.name) and "__MACOSX" not in name.parts)
            if not members:
                raise UserError(f"{path} must hold <alphabet>/characterNN/*.png; it holds no picture. Fetch it again.")
            for name, content in members.items():
                yield name, member_picture(path, name, content)

    return _from_pictures(pictures())


def _from_files(paths: Sequence[Path]) -> Drawings:
    return _from_pictures((PurePosixPath(path.as_posix()), file_picture(path)) for path in paths)


def _from_pictures(pictures: Iterable[tuple[PurePosixPath, Picture]]) -> Drawings:
    by_character: dict[Character, dict[str, Picture]] = defaultdict(dict)
    for path, picture in pictures:
        match = re.fullmatch(r"character(\d+)", path.parent.name)
        if match is None or len(path.parts) < 3:
            raise UserError(f"drawings must lie in <alphabet>/characterNN/; {picture.name} does not. Move it away.")
        drawings = by_character[Character(path.parts[-3], int(match[1]))]
        # The small sets repeat drawings of the background set.
        if path.name in drawings and drawings[path.name].read() != picture.read():
            raise UserError(
                f"a drawing may have one content; {picture.name} and {drawings[path.name].name} differ. "
                "Move one of them away."
            )
        drawings.setdefault(path.name, picture)
    for character, drawings in by_character.items():
        yield character, np.stack([_paper(drawings[name]) for name in sorted(drawings)])


def _paper(picture: Picture) -> NDArray[np.bool_]:
    image = decode(picture, "L")
    if image.size != (SIDE, SIDE):
        raise UserError(
            f"drawings must have their original size, {SIDE}x{SIDE}, since how they were made smaller changes results; "
            f"{picture.name} is {image.width}x{image.height}. Use the official files."
        )
    return np.asarray(image) >= 128


def _rotations_option(rotations: int) -> dict[str, str]:
    """What is said where it is not the default, so that what was made before keeps its name and fingerprint."""
    return {} if rotations == ROTATIONS else {"rotations": "off"}


def _build(drawings: Drawings, split: Split, resize: Resize, rotations: int) -> ImageDataset:
    small: dict[Character, NDArray[np.uint8]] = {}
    for character, paper in drawings:
        if character in small:
            raise UserError(f"a character may come once; {character.class_name} comes twice. Remove one of the two.")
        if (share := paper.mean()) < 0.5:
            raise UserError(
                f"drawings must be dark ink on light paper; {share:.0%} of those of {character.class_name} is paper: "
                "ink and paper are exchanged. Use the official files."
            )
        small[character] = shrink(paper, resize)
    chosen = split_characters(small, split)
    return assemble(
        "omniglot",
        {name: _with_rotations([(c, small[c]) for c in chosen[name]], rotations) for name in SPLITS},
        {"split": split, "resize": resize, "characters": len(small), **_rotations_option(rotations)},
        complete_sizes(split, rotations),
    )


def shrink(paper: NDArray[np.bool_], resize: Resize) -> NDArray[np.uint8]:
    """Drawings ``[drawing, 105, 105]``, True is paper, as uint8 ``[drawing, 28, 28]``, ink at 255."""
    if resize == "antialias":
        size = (SMALL_SIDE, SMALL_SIDE)
        gray = (Image.fromarray(drawing.astype(np.uint8) * 255) for drawing in paper)
        return 255 - np.stack([np.asarray(image.resize(size, Image.Resampling.LANCZOS)) for image in gray])
    # The source pixel at the middle of each target pixel, as Pillow's nearest does. No middle lies on a
    # border between two pixels, so turning before or after makes no difference.
    middle = ((np.arange(SMALL_SIDE) + 0.5) * SIDE / SMALL_SIDE).astype(np.intp)
    return np.where(paper[:, middle[:, None], middle], 0, 255).astype(np.uint8)


def picture_form(resize: Resize) -> PictureForm:
    """How a user's pictures of characters become what :func:`shrink` makes of Omniglot's own.

    Those of the small size already have been made so.
    """

    def convert(picture: Image.Image) -> NDArray[np.uint8]:
        drawing = ink(picture)
        if drawing.size == (SMALL_SIDE, SMALL_SIDE):
            return np.asarray(drawing)[None]
        return shrink(np.asarray(on_paper(drawing, SIDE, SIDE))[None] < 128, resize)

    return PictureForm(
        f"made black and white at {SIDE}x{SIDE}, then {SMALL_SIDE}x{SMALL_SIDE} with bright ink on dark paper", convert
    )


def split_characters(characters: Iterable[Character], split: Split) -> dict[str, list[Character]]:
    """Which characters are in which split; their order does not matter, and they come back sorted.

    Raises:
        UserError: a split would be empty, or the Vinyals split does not know an alphabet.
    """
    result: dict[str, list[Character]] = {name: [] for name in SPLITS}
    if split == "vinyals":
        for character in characters:
            result[_vinyals_split(character)].append(character)
    else:
        # Ordered by a hash, not by a random generator, whose numbers a new version of it may change.
        ordered = sorted(characters, key=_random_rank)
        validation, test = (max(1, len(ordered) * RANDOM_SIZES[name] // CHARACTERS) for name in ("validation", "test"))
        train = max(0, len(ordered) - validation - test)
        result["train"] = ordered[:train]
        result["validation"] = ordered[train : train + validation]
        result["test"] = ordered[train + validation :]
    empty = [name for name in SPLITS if not result[name]]
    if empty:
        total = sum(map(len, result.values()))
        advice = "the random split or " if split == "vinyals" and total >= len(SPLITS) else ""
        raise UserError(
            f"each split needs a character; of the {total} characters here the {split} split leaves none "
            f"for {listed(empty)}. Use {advice}more of Omniglot."
        )
    return {name: sorted(chosen) for name, chosen in result.items()}


def _random_rank(character: Character) -> str:
    return hashlib.sha256(f"{RANDOM_SEED}/{character.class_name}".encode()).hexdigest()


def _vinyals_split(character: Character) -> str:
    alphabet, number = character
    if alphabet in VINYALS_VALIDATION:
        return "validation"
    if alphabet in VINYALS_TRAIN or (alphabet == "Gurmukhi" and number < GURMUKHI_TEST_FROM):
        return "train"
    if alphabet in VINYALS_TEST:
        return "test"
    raise UserError(
        f"the Vinyals split has Omniglot's 50 alphabets; {alphabet!r} is not among them. Use the random split."
    )


def _with_rotations(characters: Sequence[tuple[Character, NDArray[np.uint8]]], rotations: int) -> ClassImages:
    names, images = [], []
    for character, drawings in characters:
        for turn in range(rotations):
            names.append(character.class_name + (f"@{90 * turn}" if turn else ""))
            images.append(np.rot90(drawings, turn, axes=(1, 2)))
    counts = np.array([len(drawings) for drawings in images], dtype=np.int64)
    return ClassImages(np.concatenate(images)[:, None], counts, tuple(names))
