"""Which rows of an array are those of a class, in the forms that pickles of data sets have."""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlpip_bench.datasets.base import SPLITS
from mlpip_bench.datasets.reading import SPLIT_OF_WORD, listed
from mlpip_bench.utils.errors import UserError


def splits_of_names(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    """The split that each file is for, by a word of its name; files without such a word are left out."""
    # Other pictures of the training classes are no split of their own.
    stems = [(re.sub("train_phase_(val|test)$", "", path.stem.lower()), path) for path in paths]
    words = [(set(re.split("[^a-z]+", stem)), path) for stem, path in stems]
    return sorted({(SPLIT_OF_WORD[word], path) for found, path in words for word in found if word in SPLIT_OF_WORD})


def one_per_split(folder: Path, paths: Sequence[tuple[str, Path]], what: str) -> dict[str, Path]:
    """Of files with the split that each is for, the one for each split; empty where there are no files."""
    if not paths:
        return {}
    of_split = {split: [path for for_split, path in paths if for_split == split] for split in SPLITS}
    for split, chosen in of_split.items():
        if len(chosen) != 1:
            names = listed(path.name for path in chosen) if chosen else "none"
            raise UserError(f"{folder} must hold one {what} for each split; for {split} it has {names}.")
    return {split: chosen[0] for split, chosen in of_split.items()}


def text(name: object) -> str:
    """A key as text; Python 2 wrote bytes."""
    return name.decode("latin1") if isinstance(name, bytes) else str(name)


def rows_in_dict(path: Path, class_dict: object, count: int) -> dict[str, NDArray[np.int64]]:
    """The rows of each class, none twice.

    Args:
        path: for messages.
        class_dict: what stands there.
        count: how many images there are.
    """
    rows_of: dict[str, NDArray[np.int64]] = {}
    try:
        if not isinstance(class_dict, dict):
            raise TypeError(described(class_dict))
        for name, rows in sorted(class_dict.items()):
            if not isinstance(rows, list | tuple | np.ndarray):
                raise TypeError(f"class {text(name)} has {described(rows)}")
            # One list can stand for the rows of a million classes.
            count -= len(rows)
            rows_of[text(name)] = np.array([operator.index(row) for row in rows] if count >= 0 else [], dtype=np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"class_dict must be {{wnid: [row, ...]}}; in {path} it is not: {error}.") from error
    every = np.concatenate(list(rows_of.values())) if rows_of else np.array([], dtype=np.int64)
    if count < 0 or len(np.unique(every)) != len(every):
        raise UserError(f"an image may be in one class once; class_dict of {path} lists a row twice.")
    return rows_of


def rows_by_label(path: Path, split: str, labels: object, count: int) -> dict[str, NDArray[np.int64]]:
    """The rows of each label.

    Args:
        path: for messages.
        split: in front of the names, since labels may begin anew in each split.
        labels: what stands there.
        count: how many images there are.
    """
    labels = labels.tolist() if isinstance(labels, np.ndarray) else labels
    if not isinstance(labels, list | tuple) or len(labels) != count:
        how_many = f" of {len(labels)}" if isinstance(labels, list | tuple) else ""
        raise UserError(
            f"labels must be one for each of the {count} images; in {path} they are {described(labels)}{how_many}."
        )
    rows_of: dict[str, list[int]] = defaultdict(list)
    for row, label in enumerate(labels):
        if not isinstance(label, str | bytes | int | np.integer):
            raise UserError(f"labels must be numbers or names; in {path} one is {described(label)}.")
        rows_of[f"{split}/{text(label):0>2}"].append(row)
    return {name: np.array(rows, dtype=np.int64) for name, rows in sorted(rows_of.items())}


def described(content: object) -> str:
    """What came, for a message."""
    if isinstance(content, np.ndarray):
        return f"an array {content.dtype} {content.shape}"
    if isinstance(content, dict):
        return f"a dict with {listed(content) or 'nothing in it'}"
    return f"a {type(content).__name__}"
