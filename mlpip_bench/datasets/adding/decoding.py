"""From what a reader found to arrays: decoded once, and checked for pictures that are there twice."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mlpip_bench.datasets.adding.material import Classes, Item
from mlpip_bench.datasets.base import ClassImages
from mlpip_bench.datasets.pictures import as_array, middle
from mlpip_bench.datasets.reading import listed
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.progress import Reporter

FEWEST = 2
"""Items of a class: one is given, one is asked for."""


class _Place(NamedTuple):
    split: str
    name: str
    item: str

    @property
    def in_words(self) -> str:
        return f"{self.item} (class {self.name!r} of {self.split})"


def decode_splits(
    splits: Mapping[str, Classes], size: int, *, is_features: bool, reporter: Reporter, as_they_are: bool = False
) -> tuple[dict[str, ClassImages], int]:
    """The arrays of each split, and how many items were left out since their class has the same ones already.

    Pictures are scaled so that their shorter side fits, and the middle is cut out; where all are gray, they have one
    channel.

    Args:
        splits: what was found.
        size: height and width of the images.
        is_features: whether items are vectors.
        reporter: shows a bar.
        as_they_are: whether equal items stay, where they are of a data set that has equal ones.

    Raises:
        UserError: pictures that cannot be read, the same one in two classes, or a class with too few.
    """
    met: dict[bytes, _Place] = {}
    unreadable: list[tuple[str, UserError]] = []
    clashes: list[tuple[_Place, _Place]] = []
    found: dict[str, dict[str, list[NDArray[Any]]]] = {}
    total = sum(len(items) for classes in splits.values() for items in classes.values())
    done = repeated = 0
    with reporter.stage("decoding", total) as step:
        for split, classes in splits.items():
            found[split] = {name: [] for name in classes}
            for name, items in classes.items():
                for item in items:
                    step(done := done + 1)
                    try:
                        array = _array(item, size, is_features=is_features)
                    except UserError as error:
                        unreadable.append((item.name, error))
                        continue
                    here = _Place(split, name, item.name)
                    earlier = here if as_they_are else met.setdefault(hashlib.sha256(array.tobytes()).digest(), here)
                    if earlier is here:
                        found[split][name].append(array)
                    elif earlier[:2] == here[:2]:
                        repeated += 1
                    else:
                        first, second = sorted((earlier, here), key=lambda place: place.item)
                        clashes.append((first, second))
    _refuse(sorted(unreadable, key=lambda each: each[0]), sorted(clashes))
    _check_sizes(found)
    if not is_features and all(_is_gray(array) for arrays in _classes(found) for array in arrays):
        found = {split: {n: [a[:1] for a in arrays] for n, arrays in by.items()} for split, by in found.items()}
    return {split: _stacked(by_class) for split, by_class in found.items()}, repeated


def _array(item: Item, size: int, *, is_features: bool) -> NDArray[Any]:
    value = item.value()
    if is_features:
        assert isinstance(value, np.ndarray)
        return value.reshape(-1, 1, 1)
    assert isinstance(value, Image.Image)
    return as_array(middle(value, size, size), 3)


def _refuse(unreadable: Sequence[tuple[str, UserError]], clashes: Sequence[tuple[_Place, _Place]]) -> None:
    if unreadable:
        others = [name for name, _ in unreadable[1:]]
        more = f" {len(others)} more cannot be read: {listed(others)}." if others else ""
        raise UserError(f"{unreadable[0][1]}{more}")
    if clashes:
        (first, second), others = clashes[0], [here.item for _, here in clashes[1:]]
        more = f" So are {len(others)} more: {listed(others)}." if others else ""
        raise UserError(
            f"what is in one class may be in no other; {second.in_words} is the same as {first.in_words}.{more} Remove "
            "one of each two."
        )


def _classes(found: Mapping[str, Mapping[str, list[NDArray[Any]]]]) -> list[list[NDArray[Any]]]:
    return [arrays for by_class in found.values() for arrays in by_class.values()]


def _check_sizes(found: Mapping[str, Mapping[str, list[NDArray[Any]]]]) -> None:
    poor = [(name, split, len(arrays)) for split, by in found.items() for name, arrays in by.items()]
    poor = [(name, split, count) for name, split, count in poor if count < FEWEST]
    if poor:
        name, split, count = poor[0]
        more = f" So have {len(poor) - 1} more: {listed(n for n, _, _ in poor[1:])}." if len(poor) > 1 else ""
        raise UserError(
            f"a class needs at least {FEWEST} different items, one that is given and one that is asked for; {name!r} "
            f"of {split} has {count}.{more} Add some, or leave the class out."
        )


def _is_gray(array: NDArray[Any]) -> bool:
    return bool((array[0] == array[1]).all() and (array[0] == array[2]).all())


def _stacked(by_class: Mapping[str, list[NDArray[Any]]]) -> ClassImages:
    counts = np.array([len(arrays) for arrays in by_class.values()], dtype=np.int64)
    return ClassImages(np.stack([array for arrays in by_class.values() for array in arrays]), counts, tuple(by_class))
