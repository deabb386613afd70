"""A csv list of pictures: columns ``file``, ``label`` and, if it says the splits, ``split``."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from mlpip_bench.datasets.adding.material import UNSPLIT, Item, Material, encoded, split_named
from mlpip_bench.datasets.lists import read_list
from mlpip_bench.datasets.reading import file_picture, listed
from mlpip_bench.utils.errors import UserError

_COLUMNS = "file|filename|file_name|path|image", "label|class|category"
_REAL_NUMBER = re.compile(r"[+-]?(\d+\.\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


def find(path: Path) -> Material | None:
    """The pictures of a list, whose names are from the list's folder on.

    Raises:
        UserError: it is no such list, or a picture is not there.
    """
    if path.suffix.lower() not in (".csv", ".tsv") or path.is_dir():
        return None
    return from_list(path, path.parent)


def from_list(
    path: Path,
    folder: Path,
    layout: str = "list",
    columns: tuple[str, str] = _COLUMNS,
    facts: Mapping[str, str] | None = None,
) -> Material:
    """The pictures of a list.

    Args:
        path: the list.
        folder: where names of pictures begin; a picture may also lie in a folder of its class there.
        layout: in which form the data are.
        columns: of pictures and labels.
        facts: what else is known of the data.

    Raises:
        UserError: it is no such list, or a picture is not there.
    """
    splits: dict[str, dict[str, list[Item]]] = defaultdict(lambda: defaultdict(list))
    missing = []
    rows = read_list(path, columns, ("split",))
    _check_labels(path, [(name, label) for name, label, _ in rows])
    for name, label, word in rows:
        split = split_named(word) if word else UNSPLIT
        if split is None:
            raise UserError(f"the splits in {path} must be train, val or test; {name} is in {word!r}.")
        below = name.replace("\\", "/")
        picture = next((place for place in (folder / below, folder / label / below) if place.is_file()), None)
        if picture is None:
            missing.append(name)
        else:
            splits[split][label].append(encoded(file_picture(picture)))
    if missing:
        raise UserError(
            f"{folder} must hold each picture that {path.name} lists; {len(missing)} of {len(rows)} are missing: "
            f"{listed(missing)}. Write their names as they are from {folder} on."
        )
    if UNSPLIT in splits and len(splits) > 1:
        without = [name for name, _, word in rows if not word]
        raise UserError(
            f"all rows of {path} must have a split, or none of them; {len(without)} have none: {listed(without)}. "
            "Write train, val or test there, or leave the column out and pass --split."
        )
    return Material(layout, splits, facts=facts or {})


def _check_labels(path: Path, rows: list[tuple[str, str]]) -> None:
    """Of names of pictures with their labels."""
    if without := [name for name, label in rows if not label]:
        raise UserError(
            f"each row of {path} must have a label; {len(without)} have none: {listed(without)}. Write the class "
            "there, or leave the row out."
        )
    if all(_REAL_NUMBER.fullmatch(label) for _, label in rows):
        numbers = listed(dict.fromkeys(label for _, label in rows))
        raise UserError(
            f"labels must be names or whole numbers; in {path} they are real numbers, {numbers}. "
            "Name the class of each picture."
        )
