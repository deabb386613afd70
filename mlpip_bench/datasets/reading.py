"""What the readers of real data share: pictures, classes of pictures, and what was found where."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from mlpip_bench.datasets.base import ClassImages, ImageDataset
from mlpip_bench.utils.errors import UserError

Sizes = Mapping[str, tuple[int, int]]
"""For each split, how many classes it has and how many images each class has."""

_log = logging.getLogger("mlpip_bench")


@dataclass(frozen=True)
class Found:
    """A data set on disk, not read yet.

    Attributes:
        layout: in which of the accepted layouts.
        folder: where.
        files: all that ``read`` reads; their names, sizes and times are part of the cache's key.
        settings: the options that decide what ``read`` makes of the files.
        complete: the sizes of the complete data set.
        read: decodes it.
    """

    layout: str
    folder: Path
    files: tuple[Path, ...]
    settings: Mapping[str, str]
    complete: Sizes
    read: Callable[[], ImageDataset]


class Picture(NamedTuple):
    """An encoded picture: what to call it in a message, and how to get its bytes."""

    name: str
    read: Callable[[], bytes]


def file_picture(path: Path) -> Picture:
    """A picture that is a file of its own."""
    return Picture(str(path), path.read_bytes)


def member_picture(archive: Path, member: object, content: bytes) -> Picture:
    """A picture that was a member of an archive."""
    return Picture(f"{archive}:{member}", partial(bytes, content))


def is_picture_name(name: str) -> bool:
    """Whether a file name is one of a picture; names with a leading dot are other programs' notes."""
    return name.lower().endswith((".jpg", ".jpeg", ".png")) and not name.startswith(".")


def pictures_in(folder: Path) -> list[Path]:
    """The pictures of a folder, sorted by name.

    Raises:
        UserError: there is none.
    """
    paths = sorted(path for path in folder.iterdir() if is_picture_name(path.name))
    if not paths:
        raise UserError(f"a class needs at least one picture; {folder} has none. Fill the folder or remove it.")
    return paths


def decode(picture: Picture, mode: Literal["RGB", "RGBA", "L"]) -> Image.Image:
    """Decode a JPEG or PNG.

    Raises:
        UserError: it is neither, is damaged, or claims a size that no data set has.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(picture.read()), formats=("JPEG", "PNG")) as image:
                return image.convert(mode)
    except Exception as error:  # on damaged input Pillow raises OSError, SyntaxError, ValueError, struct.error ...
        reason: object = error
        if isinstance(error, UnidentifiedImageError):
            begun = picture.read().startswith((b"\x89PNG", b"\xff\xd8"))
            reason = "it is cut short" if begun else "it is neither"
        raise UserError(
            f"a picture must be a whole JPEG or PNG; {picture.name} is not: {reason}. Fetch it again."
        ) from error


def decode_classes(classes: Mapping[str, Sequence[Picture]], size: int, *, resize: bool) -> ClassImages:
    """Decode RGB pictures, class by class, into one array.

    Args:
        classes: the pictures of each class, at least one a class.
        size: height and width of the result.
        resize: whether pictures of another size are resized (Lanczos) or refused.
    """
    counts = [len(pictures) for pictures in classes.values()]
    _log.info("decoding %d pictures of %d classes", sum(counts), len(counts))
    images = np.empty((sum(counts), 3, size, size), dtype=np.uint8)
    row = 0
    for pictures in classes.values():
        for picture in pictures:
            image = decode(picture, "RGB")
            if image.size != (size, size):
                if not resize:
                    raise UserError(f"pictures must be {size}x{size}; {picture.name} is {image.width}x{image.height}.")
                image = image.resize((size, size), Image.Resampling.LANCZOS)
            images[row] = np.asarray(image).transpose(2, 0, 1)
            row += 1
    return ClassImages(images, np.array(counts, dtype=np.int64), tuple(classes))


def assemble(
    name: str, splits: Mapping[str, ClassImages], options: Mapping[str, str | int], complete: Sizes
) -> ImageDataset:
    """Make a real data set of its splits.

    One that has not the sizes of the complete set does not get its name either: it is called
    ``<name>-partial`` (or ``<name>-extended`` where it has more images), and its options say what it has.

    Raises:
        UserError: a class occurs twice, or a split is empty.
    """
    split_of: dict[str, str] = {}
    for split, data in splits.items():
        if not data.num_classes:
            raise UserError(f"each split needs at least one class; the {split} split of {name} has none.")
        for class_name in data.class_names:
            if class_name in split_of:
                raise UserError(
                    f"a class may be in one split only; {name} has {class_name!r} in {split_of[class_name]} "
                    f"and {split}. Remove it from one of them."
                )
            split_of[class_name] = split
    options = dict(options)
    if any(shortfall(data, *complete[split]) for split, data in splits.items()):
        images = sum(len(data.images) for data in splits.values())
        name += "-partial" if images <= sum(classes * each for classes, each in complete.values()) else "-extended"
        options.update(classes=len(split_of), images=images)
    return ImageDataset(name, "real", splits, options)


def shortfall(data: ClassImages, classes: int, images: int) -> str:
    """What a split lacks or has too much of; empty where it has ``classes`` classes of ``images`` images each."""
    problems = []
    if data.num_classes != classes:
        problems.append(f"{data.num_classes} classes, the complete set has {classes}")
    odd = [(name, int(n)) for name, n in zip(data.class_names, data.counts, strict=True) if n != images]
    if odd:
        name, count = odd[0]
        problems.append(f"{len(odd)} classes without {images} images each, the first {name} with {count}")
    return "; ".join(problems)


def listed(names: Iterable[object], most: int = 5) -> str:
    """Names for a message, cut where there are many."""
    texts = [str(name) for name in names]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more
