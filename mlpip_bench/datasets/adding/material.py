"""What a reader finds of a user's data, before any of it is decoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray
from PIL import Image

from mlpip_bench.datasets.reading import SPLIT_OF_WORD, Picture, decode, file_picture, is_picture_name
from mlpip_bench.utils.errors import UserError

PICTURE_SIZE = 84
"""Height and width of pictures where a user chooses none: miniImageNet's."""

SPLIT_WORDS = {**SPLIT_OF_WORD, "training": "train", "base": "train", "testing": "test", "novel": "test"}
"""What users call the splits of data of their own."""

FEATURE_OPTIONS = ("features_by", "features_of")
"""What records say of features that ``data features`` has made: the network, and the data set."""

UNSPLIT = ""
"""In place of a split's name, where the data do not say it."""


class Item(NamedTuple):
    """A picture or a feature vector.

    Attributes:
        name: what to call it in a message.
        value: reads it: a picture, or a vector ``[dimension]`` of float32.
    """

    name: str
    value: Callable[[], Image.Image | NDArray[Any]]


Classes = Mapping[str, Sequence[Item]]
"""By name of the class."""


@dataclass(frozen=True)
class Material:
    """What a reader found.

    Attributes:
        layout: in which form.
        splits: the classes of each split; all of them under ``UNSPLIT`` where the data do not say it.
        is_features: whether items are vectors.
        size: height and width of the images where a user chooses none.
        left_out: what was there and is no picture: how many files of each ending.
        facts: ``license`` and ``citation``, where the data say them; and what a file of features says of itself.
    """

    layout: str
    splits: Mapping[str, Classes]
    is_features: bool = False
    size: int = PICTURE_SIZE
    left_out: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)


Reader = Callable[[Path], Material | None]
"""Finds data at a path; None where they are not of its form."""


def encoded(picture: Picture) -> Item:
    """An item that is an encoded picture."""
    return Item(picture.name, partial(decode, picture, "RGB"))


def file_items(paths: Sequence[Path]) -> list[Item]:
    """Items that are pictures in files of their own."""
    return [encoded(file_picture(path)) for path in paths]


def is_visible(path: Path) -> bool:
    """Whether a file or folder is the user's, and not another program's note."""
    return not path.name.startswith(".") and path.name not in ("__MACOSX", "Thumbs.db", "desktop.ini")


def subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, sorted by name.

    Raises:
        UserError: one is a link to a folder that it lies in.
    """
    found = sorted(path for path in folder.iterdir() if is_visible(path) and path.is_dir())
    for path in found:
        if path.is_symlink() and folder.resolve().is_relative_to(path.resolve()):
            raise UserError(f"folders may not go in a circle; {path} is a link to a folder that it lies in. Remove it.")
    return found


def sole_folder(folder: Path) -> Path | None:
    """The one folder in a folder, if it is no class: archives often have one around all that they hold."""
    found = subfolders(folder) if folder.is_dir() else []
    return found[0] if len(found) == 1 and not pictures_at(found[0]) else None


def pictures_at(folder: Path) -> list[Path]:
    """The pictures right in a folder, sorted by name."""
    return sorted(path for path in folder.iterdir() if is_visible(path) and is_picture_name(path.name))


def split_named(word: str) -> str | None:
    """The split that a word of a user stands for; None where it stands for none."""
    return SPLIT_WORDS.get(word.strip().lower())
