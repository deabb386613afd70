"""Folders: one for each class, also in folders of the splits, and one level further down than one would think."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from mlpip_bench.datasets.adding.material import (
    SPLIT_WORDS,
    UNSPLIT,
    Classes,
    Material,
    file_items,
    is_visible,
    pictures_at,
    split_named,
    subfolders,
)
from mlpip_bench.datasets.reading import is_picture_name, listed, pictures_in
from mlpip_bench.utils.errors import UserError


def find(top: Path) -> Material | None:
    """Class folders, in folders of splits or not.

    Raises:
        UserError: a class is empty, or there are pictures and no classes.
    """
    if not top.is_dir():
        return None
    folders = subfolders(top)
    of_splits = {folder: split for folder in folders if (split := split_named(folder.name))}
    if len(of_splits) < 2:
        classes, left_out = classes_in(top)
        return Material("class folders", {UNSPLIT: classes}, left_out=left_out)
    if len(set(of_splits.values())) < len(of_splits):
        raise UserError(
            f"each split must have one folder; {top} has {listed(folder.name for folder in of_splits)}. Leave one of "
            "those that mean the same."
        )
    others = Counter(f"{folder.name}/" for folder in folders if folder not in of_splits)
    splits = {}
    for folder, split in of_splits.items():
        splits[split], left_out = classes_in(folder)
        others.update(left_out)
    return Material("class folders of each split", splits, left_out=others)


def classes_in(folder: Path) -> tuple[Classes, Counter[str]]:
    """The pictures of the class folders of a folder, and what else there is: how many files of each ending.

    Some archives have another folder ``images`` in that of each class.

    Raises:
        UserError: there is no class, or one is empty.
    """
    folders = subfolders(folder)
    if not folders:
        _refuse_no_classes(folder)
    classes = {}
    left_out = Counter(path.suffix.lower() for path in pictures_at(folder))  # in no class
    for of_class in folders:
        below = of_class / "images"
        place = below if not pictures_at(of_class) and below.is_dir() else of_class
        if (deeper := subfolders(place)) and not pictures_at(place):
            raise UserError(
                f"pictures lie in class folders, or one level below, as domain/class or train/class; {place} has "
                f"no picture, and the folders {listed(path.name for path in deeper)}. Pass the folder above the "
                "classes to --from, or a csv list with the columns file,label. Folders of splits are called "
                f"{', '.join(SPLIT_WORDS)}."
            )
        classes[of_class.name] = file_items(pictures_in(place))
        others = [path for path in place.iterdir() if is_visible(path) and not is_picture_name(path.name)]
        left_out.update(f"{path.name}/" if path.is_dir() else path.suffix.lower() or path.name for path in others)
    return classes, left_out


def _refuse_no_classes(folder: Path) -> None:
    pictures = pictures_at(folder)
    held = listed(path.name for path in (pictures or sorted(filter(is_visible, folder.iterdir())))) or "nothing"
    raise UserError(
        f"each class must be a folder of its pictures; {folder} has no such folder, it holds {held}. Make a folder for "
        "each class, or name a csv list with the columns file,label instead."
    )
