"""miniImageNet: 100 classes of ImageNet, 600 RGB pictures of 84x84 each, in the split of Ravi and Larochelle (2017).

ImageNet's terms let nobody hand it on, so users have it in many forms. Layouts, the first that is there:

1. arrays: one file for each split whose name has the word ``train``, ``val`` or ``test`` in it
   (``mini-imagenet-cache-train.pkl``, ``train.npy``). It holds uint8, either as an array
   ``[class, image, 84, 84, 3]`` or, pickled, as a dict of images ``[image, 84, 84, 3]``: ``image_data`` with
   ``class_dict`` ``{wnid: [row, ...]}``, or ``data`` with ``labels``, one an image. Of the five files
   ``miniImageNet_category_split_*`` those are read that have the 600 pictures of each class: ``train_phase_train``,
   ``val`` and ``test``;
2. class folders: ``train/<wnid>/*.jpg`` or ``train/<wnid>/images/*.jpg``, ``val/``, ``test/``;
3. lists: ``images/*.jpg`` or ``images/<wnid>/*.jpg`` with ``train.csv``, ``val.csv``, ``test.csv``, columns
   ``filename,label``; what stands before a file's name counts only where two pictures have that name;
4. ImageNet: its train folder, ``<wnid>/*.JPEG`` or ``train/<wnid>/*.JPEG``, with these lists or with
   ``ravi_splits.csv``, columns ``wnid,split``.

In layout 4 the lists choose the pictures of a class: ``n0153282900000005.jpg`` stands for the fifth of the class's
pictures in the order of the numbers in their names. That is how public tools make miniImageNet, as far as we know;
there was no original to check it with. ``ravi_splits.csv`` chooses no pictures: then the first 600 by name are taken,
which are not Ravi's, and the data set's options say so.

Pictures of another size are resized with Lanczos. ``val`` may also be called ``validation`` or ``valid``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlpip_bench.datasets.array_rows import (
    described,
    one_per_split,
    rows_by_label,
    rows_in_dict,
    splits_of_names,
    text,
)
from mlpip_bench.datasets.arrays import read_npy
from mlpip_bench.datasets.base import SPLITS, ClassImages, ImageDataset
from mlpip_bench.datasets.lists import read_list
from mlpip_bench.datasets.reading import (
    SPLIT_OF_WORD,
    Found,
    Sizes,
    assemble,
    decode_classes,
    file_picture,
    listed,
    pictures_in,
)
from mlpip_bench.datasets.unpickling import load_plain_pickle
from mlpip_bench.utils.errors import UserError

VERSION = 2
"""Version of this reader: change it whenever the arrays that it makes change."""

FOLDERS = ("miniimagenet", "mini-imagenet", "mini_imagenet")
LAYOUTS = (
    "mini-imagenet-cache-{train,val,test}.pkl, or pickled or .npy arrays [classes, 600, 84, 84, 3] named so",
    "miniImageNet_category_split_{train_phase_train,val,test}.pickle",
    "train/<wnid>/*.jpg or train/<wnid>/images/*.jpg, val/, test/",
    "images/*.jpg or images/<wnid>/*.jpg with train.csv, val.csv, test.csv (filename,label)",
    "ImageNet's train folder, <wnid>/*.JPEG or train/<wnid>/*.JPEG, with these lists or ravi_splits.csv (wnid,split)",
)
COMPLETE: Sizes = {"train": (64, 600), "validation": (16, 600), "test": (20, 600)}
SIDE = 84
IMAGES_PER_CLASS = 600
SPLIT_LIST = "ravi_splits.csv"

_MOST = 2**32  # bytes of a file of arrays; the complete training set has 813 MB

ClassPaths = dict[str, dict[str, list[Path]]]
"""For each split and class, its pictures."""


def find(folder: Path) -> Found | None:
    """MiniImageNet in a folder, in the first layout that is there.

    Raises:
        UserError: a layout is there in part.
    """
    arrays = _array_files(folder)
    if arrays:
        return Found("arrays", folder, tuple(arrays.values()), {}, COMPLETE, lambda: _read_arrays(arrays))
    split_folders = _split_folders(folder)
    if len(split_folders) == len(SPLITS):
        classes = {split: {path.name: _class_pictures(path) for path in split_folders[split]} for split in SPLITS}
        return _found_pictures("class folders", folder, classes, {})
    lists = _list_files(folder)
    if lists and (folder / "images").is_dir():
        return _found_pictures("lists", folder, _by_lists(folder / "images", lists), {})
    found = _find_imagenet(folder, lists)
    if found is None and split_folders:
        raise UserError(
            f"each split must have its folder of class folders; of train, val and test {folder} has only "
            f"{listed(split_folders)}. Add the others, or put {SPLIT_LIST} there if this is ImageNet."
        )
    return found


def _found_pictures(layout: str, folder: Path, classes: ClassPaths, options: Mapping[str, str]) -> Found:
    files = tuple(path for by_class in classes.values() for paths in by_class.values() for path in paths)

    def read() -> ImageDataset:
        pictures = {
            split: {name: [file_picture(path) for path in paths] for name, paths in sorted(by_class.items())}
            for split, by_class in classes.items()
        }
        splits = {split: decode_classes(by_class, SIDE, resize=True) for split, by_class in pictures.items()}
        return _assemble(splits, options)

    return Found(layout, folder, files, {}, COMPLETE, read)


def _assemble(splits: Mapping[str, ClassImages], options: Mapping[str, str]) -> ImageDataset:
    return assemble("miniimagenet", splits, {"size": SIDE, **options}, COMPLETE)


# Arrays.


def _array_files(folder: Path) -> dict[str, Path]:
    paths = sorted(path for path in folder.iterdir() if path.suffix in (".pkl", ".pickle", ".npy"))
    return one_per_split(folder, splits_of_names(paths), "file of arrays")


def _read_arrays(paths: Mapping[str, Path]) -> ImageDataset:
    return _assemble({split: _read_array_file(split, path) for split, path in paths.items()}, {})


def _read_array_file(split: str, path: Path) -> ClassImages:
    content = read_npy(path, _MOST) if path.suffix == ".npy" else load_plain_pickle(path, _MOST)
    if isinstance(content, dict):
        content = {text(name): value for name, value in content.items()}
    if isinstance(content, np.ndarray) and content.ndim == 5:
        if not content.size:
            raise UserError(f"a class needs at least one picture; in {path} class {split}/class00 has none.")
        classes, each = content.shape[:2]
        data = _checked_images(path, content.reshape(classes * each, *content.shape[2:]))
        rows_of = {f"{split}/class{c:02d}": np.arange(c * each, (c + 1) * each) for c in range(classes)}
    elif isinstance(content, dict) and isinstance(found := content.get("image_data", content.get("data")), np.ndarray):
        data = _checked_images(path, found)
        if "class_dict" in content:
            rows_of = rows_in_dict(path, content["class_dict"], len(data))
        else:
            rows_of = rows_by_label(path, split, content.get("labels"), len(data))
    else:
        raise UserError(
            f"{path} must hold an array [class, image, {SIDE}, {SIDE}, 3], or a dict with image_data and class_dict "
            f"or with data and labels; it holds {described(content)}."
        )
    counts = np.array([len(rows) for rows in rows_of.values()], dtype=np.int64)
    images = np.empty((counts.sum(), 3, SIDE, SIDE), dtype=np.uint8)
    start = 0
    for name, rows in rows_of.items():
        if not len(rows):
            raise UserError(f"a class needs at least one picture; in {path} class {name} has none.")
        if rows.min() < 0 or rows.max() >= len(data):
            raise UserError(
                f"class_dict must list rows of image_data; in {path} {name} has one beyond its {len(data)}."
            )
        images[start : start + len(rows)] = data[rows].transpose(0, 3, 1, 2)
        start += len(rows)
    return ClassImages(images, counts, tuple(rows_of))


def _checked_images(path: Path, data: NDArray[Any]) -> NDArray[np.uint8]:
    if data.dtype != np.uint8 or data.shape[1:] != (SIDE, SIDE, 3):
        raise UserError(f"images must be uint8 [..., {SIDE}, {SIDE}, 3]; in {path} they are {data.dtype} {data.shape}.")
    return data


# Pictures.


def _split_folders(folder: Path) -> dict[str, list[Path]]:
    """For each split that has a folder of folders, these."""
    found: dict[str, list[Path]] = {}
    for word, split in SPLIT_OF_WORD.items():
        top = folder / word
        inside = (
            sorted(path for path in top.iterdir() if path.is_dir() and not path.name.startswith("."))
            if top.is_dir()
            else []
        )
        if inside:
            if split in found:
                raise UserError(f"{folder} must hold one folder for each split; for {split} it has several.")
            found[split] = inside
    return found


def _class_pictures(folder: Path) -> list[Path]:
    return pictures_in(folder / "images" if (folder / "images").is_dir() else folder)


def _list_files(folder: Path) -> dict[str, Path]:
    paths = [(split, folder / f"{word}.csv") for word, split in SPLIT_OF_WORD.items()]
    return one_per_split(folder, [(split, path) for split, path in paths if path.is_file()], "csv list")


def _read_lists(lists: Mapping[str, Path]) -> dict[str, dict[str, list[str]]]:
    """For each split and class, the listed file names, sorted."""
    seen: dict[tuple[str, str], str] = {}
    names: dict[str, dict[str, list[str]]] = {split: defaultdict(list) for split in SPLITS}
    for split, path in lists.items():
        for name, label in read_list(path, ("filename", "label")):
            if other := seen.get((label, name)):
                raise UserError(f"a picture may be listed once; {name} is in {other} and {path.name}.")
            seen[label, name] = path.name
            names[split][label].append(name)
    return {split: {label: sorted(chosen) for label, chosen in by_class.items()} for split, by_class in names.items()}


def _by_lists(images: Path, lists: Mapping[str, Path]) -> ClassPaths:
    there: dict[str, list[Path]] = defaultdict(list)
    for path in images.iterdir():
        for picture in path.iterdir() if path.is_dir() else [path]:
            there[picture.name].append(picture)
    chosen: ClassPaths = {split: defaultdict(list) for split in SPLITS}
    missing: list[str] = []
    taken: set[Path] = set()
    for split, by_class in _read_lists(lists).items():
        for label, names in by_class.items():
            for name in names:
                found = _listed_picture(name, label, there)
                if found is None:
                    missing.append(name)
                elif found in taken:
                    raise UserError(f"a picture may be listed once; {found} is listed again as {name}.")
                else:
                    taken.add(found)
                    chosen[split][label].append(found)
    if missing:
        raise UserError(
            f"{images} must hold each listed picture, or in a folder of its class; {len(missing)} are missing: "
            f"{listed(missing)}."
        )
    return chosen


def _listed_picture(name: str, label: str, there: Mapping[str, Sequence[Path]]) -> Path | None:
    """The picture of a listed name, which may be a path of another machine; None where there is none, or several."""
    path = PurePosixPath(name.replace("\\", "/"))
    found = there.get(path.name, [])
    if len(found) > 1:
        found = [picture for picture in found if picture.parent.name in (path.parent.name, label)]
    return found[0] if len(found) == 1 else None


# ImageNet.


def _find_imagenet(folder: Path, lists: Mapping[str, Path]) -> Found | None:
    wanted = _read_lists(lists) if lists else _read_split_list(folder / SPLIT_LIST)
    wnids = [wnid for by_class in wanted.values() for wnid in by_class]
    for top in (folder, folder / "train"):
        missing = [wnid for wnid in wnids if not (top / wnid).is_dir()]
        if len(missing) == len(wnids):
            continue
        if missing:
            raise UserError(f"{top} must hold the folder of each class; {len(missing)} are missing: {listed(missing)}.")
        chosen = {
            split: {wnid: _chosen(top / wnid, names) for wnid, names in by_class.items()}
            for split, by_class in wanted.items()
        }
        if lists:
            return _found_pictures("ImageNet with lists", folder, chosen, {})
        options = {"selection": f"first {IMAGES_PER_CLASS} by name, not those of Ravi and Larochelle"}
        return _found_pictures("ImageNet with split list", folder, chosen, options)
    return None


def _read_split_list(path: Path) -> dict[str, dict[str, list[str]]]:
    """For each split its classes, without names of pictures; empty where there is no list."""
    wanted: dict[str, dict[str, list[str]]] = {split: {} for split in SPLITS}
    for wnid, word in read_list(path, ("wnid", "split")) if path.is_file() else []:
        if word not in SPLIT_OF_WORD:
            raise UserError(f"the splits in {path} must be train, val or test; {wnid} is in {word!r}.")
        wanted[SPLIT_OF_WORD[word]][wnid] = []
    return wanted


def _chosen(folder: Path, names: Sequence[str]) -> list[Path]:
    """The pictures of a class that a list names by position, or the first by name where none are named."""
    if not names:
        return pictures_in(folder)[:IMAGES_PER_CLASS]
    ordered = sorted(pictures_in(folder), key=lambda path: (_number(path.stem), path.name))
    stems = [PurePosixPath(name.replace("\\", "/")).stem for name in names]
    positions = [_number(stem.removeprefix(folder.name)) for stem in stems]
    if min(positions) < 1 or max(positions) > len(ordered):
        raise UserError(
            f"{folder} must hold all of ImageNet's pictures of its class, since the lists choose them by position; "
            f"it has {len(ordered)}, and the lists ask for number {max(positions)}."
        )
    return [ordered[position - 1] for position in positions]


def _number(stem: str) -> int:
    """The number at the end of a file's name; 0 where there is none."""
    match = re.search(r"(\d{1,18})$", stem)
    return int(match[1]) if match else 0
