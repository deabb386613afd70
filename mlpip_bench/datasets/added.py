"""Data sets that ``data add`` made of a user's data: a folder ``NAME`` below the data root, with what a bench reads.

``dataset.yaml`` says what it is, for people and for lists; ``arrays.npz`` has the arrays. The folder is made elsewhere
and then given its name, so that it is there as a whole or not at all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlpip_bench.datasets import array_file
from mlpip_bench.datasets.base import SPLITS, ImageDataset
from mlpip_bench.datasets.reading import Found
from mlpip_bench.utils.errors import UserError, cut, message_in_one_line
from mlpip_bench.utils.files import cannot_write, open_file, read_file
from mlpip_bench.utils.locks import HeldError, locked

DESCRIPTION, ARRAYS = "dataset.yaml", "arrays.npz"
FORMAT = "data add 1"
"""The mark of what is written here; it changes with the form of the files."""
LAYOUT = f"{DESCRIPTION} and {ARRAYS}, which data add writes"

_MOST = 2**26  # bytes of a description; a class has some 20
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,38}[a-z0-9]")


@dataclass(frozen=True)
class Description:
    """What ``dataset.yaml`` says.

    Attributes:
        name: of the data set, its folder and, with ways and shots, its benches.
        kind: of its items: ``images`` or ``features``.
        image_shape: ``(channel, height, width)``; ``(dimension, 1, 1)`` of a vector.
        source: where it was made from, and in which layout it was there.
        options: what made the arrays; they are part of every record.
        license, citation: of the data, as their user says.
        pretrained_on: what the network was trained on that made the features.
        left_out: files that are no pictures, or in no class, by ending; under ``repeated``, items that their class had
            already; and how many classes a list of the splits has left out.
        fingerprint: of the arrays.
        splits: of each split, how many items each class has.
    """

    name: str
    kind: str
    image_shape: tuple[int, int, int]
    source: str
    options: Mapping[str, str | int]
    license: str
    citation: str
    pretrained_on: str
    left_out: Mapping[str, int]
    fingerprint: str
    splits: Mapping[str, Mapping[str, int]] = field(repr=False)

    @property
    def smallest(self) -> int:
        """Items of the class that has the fewest."""
        return min(count for classes in self.splits.values() for count in classes.values())


def check_name(name: str) -> None:
    """Refuse what cannot name benches and a folder on every system.

    Raises:
        UserError: the rule, and what came.
    """
    if not _NAME.fullmatch(name):
        raise UserError(
            "the name of a data set has 2 to 40 lower-case letters from a to z, digits, hyphens and underscores, "
            f"begins with a letter and ends with a letter or a digit; got {cut(name)!r}."
        )


def folders_below(data_root: Path) -> dict[str, Path]:
    """The folders of the data sets that are below a data root, by name."""
    try:
        folders = sorted(data_root.expanduser().iterdir())
    except OSError:  # who looks for data says what is wrong with the folder
        return {}
    return {path.name: path for path in folders if _NAME.fullmatch(path.name) and (path / DESCRIPTION).is_file()}


def describe(folder: Path) -> Description:
    """What a data set is; no array is read.

    Raises:
        UserError: its description is damaged, or is of another name than its folder.
    """
    path = folder / DESCRIPTION
    status = path.stat()
    return _described(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=256)
def _described(path: Path, _time: int, _size: int) -> Description:
    import yaml  # here, since names are listed at once

    try:
        content = yaml.load(read_file(path, _MOST), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if content.pop("format") != FORMAT:
            raise ValueError("it is of another version")
        found = Description(**content)
        channels, height, width = map(int, found.image_shape)
        found = dataclasses.replace(found, image_shape=(channels, height, width))
        sizes = [int(count) for split in SPLITS for count in found.splits[split].values()]
        if min(*sizes, *found.image_shape) < 1:
            raise ValueError("a size is missing")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise _damaged(path, error) from error
    if found.name != path.parent.name:
        raise UserError(
            f"the folder of a data set has its name; {path.parent} holds {cut(found.name)!r}. Rename the folder, or "
            "add the data again under the new name."
        )
    return found


def find(folder: Path) -> Found | None:
    """The data set of a folder."""
    if not (folder / DESCRIPTION).is_file():
        return None
    paths = folder / DESCRIPTION, folder / ARRAYS
    return Found(LAYOUT, folder, paths, {}, {}, lambda: read(folder))


def read(folder: Path) -> ImageDataset:
    """The data set of a folder, whose arrays are read when they are asked for.

    Raises:
        UserError: it is damaged, or its two files do not belong together.
    """
    path, description = folder / ARRAYS, describe(folder)

    def damaged(error: Exception) -> array_file.Arrays:
        raise _damaged(path, error) from error

    try:
        with open_file(path) as opened:
            about = array_file.read_about(opened)
        if about["key"] != FORMAT:
            raise ValueError("it is of another version")
        found = array_file.as_dataset(path, about, damaged)
    except Exception as error:  # whatever a damaged file makes its readers raise
        raise _damaged(path, error) from error
    if (found.name, found.fingerprint) != (description.name, description.fingerprint):
        raise UserError(f"{path} must be what {DESCRIPTION} describes; it has another fingerprint. Add the data again.")
    return found


def _damaged(path: Path, error: Exception) -> UserError:
    reason = getattr(error, "strerror", None) or message_in_one_line(error) or type(error).__name__
    return UserError(f"{path} must be as data add wrote it; it is damaged: {reason}. Add the data again (--replace).")


def write(
    data_root: Path,
    name: str,
    make: Callable[[], tuple[ImageDataset, Description]],
    *,
    replace: bool = False,
) -> Description:
    """Make a data set and put it below the data root.

    Args:
        data_root: folder, which is made where it is not there.
        name: of the data set.
        make: makes it, once it is certain that it can be put there.
        replace: whether one of that name that was added before is replaced.

    Raises:
        UserError: there is something else of that name, or it cannot be written.
    """
    folder = data_root / name
    if data_root.exists() and not data_root.is_dir():
        raise UserError(f"the data root must be a folder; {data_root} is a file. Correct --data-root.")
    try:
        with locked(data_root / ".adding.lock"):
            for leftover in data_root.glob(f".{name}.adding.*"):  # of a command that was killed
                shutil.rmtree(leftover, ignore_errors=True)
            _check_free(folder, replace=replace)
            dataset, description = make()
            _put(folder, dataset, description)
    except HeldError as error:
        raise UserError(f"another command is adding data to {data_root}. Wait for it to end.") from error
    except OSError as error:
        raise cannot_write(folder, error) from error
    return description


def _check_free(folder: Path, *, replace: bool) -> None:
    if not folder.exists():
        return
    if not (folder / DESCRIPTION).is_file():
        raise UserError(
            f"a data set gets a folder of its own; {folder} is there and data add has not made it. Choose another "
            "name, or another --data-root."
        )
    if not replace:
        raise UserError(f"{folder.name} is there already, in {folder}. Choose another name, or pass --replace.")


def _put(folder: Path, dataset: ImageDataset, description: Description) -> None:
    import yaml

    temporary = folder.with_name(f".{folder.name}.adding.{secrets.token_hex(4)}")
    try:
        temporary.mkdir()
        array_file.write(temporary / ARRAYS, FORMAT, dataset)
        content: dict[str, Any] = {"format": FORMAT, **dataclasses.asdict(description)}
        content["image_shape"] = list(description.image_shape)
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
        (temporary / DESCRIPTION).write_text(text, encoding="utf-8")
        if folder.exists():
            folder.rename(temporary / "replaced")
        temporary.rename(folder)
        shutil.rmtree(folder / "replaced", ignore_errors=True)
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(temporary)
