"""What the readers of real data share: pictures, classes of pictures, and what was found where."""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from mlpip_bench.datasets.base import ClassImages, ImageDataset
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import read_file

Sizes = Mapping[str, tuple[int, int]]
"""For each split, how many classes it has and how many images each class has."""

SPLIT_OF_WORD = {
    "train": "train",
    "val": "validation",
    "validation": "validation",
    "valid": "validation",
    "test": "test",
}
"""What users call the splits."""

_PICTURE_LIMIT = 2**28
"""Most bytes of a picture's file."""
_PIXEL_LIMIT = 2**25
"""Most pixels of a picture; decoded they take three bytes each."""
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF")
_BEGINNINGS = (b"\x89PNG", b"\xff\xd8", b"BM", b"RIFF", b"II*\0", b"MM\0*")

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
    return Picture(str(path), partial(read_file, path, _PICTURE_LIMIT))


def member_picture(archive: Path, member: object, content: bytes) -> Picture:
    """A picture that was a member of an archive."""
    return Picture(f"{archive}:{member}", partial(bytes, content))


def is_picture_name(name: str) -> bool:
    """Whether a file name is one of a picture; names with a leading dot are other programs' notes."""
    endings = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
    return name.lower().endswith(endings) and not name.startswith(".")


def pictures_in(folder: Path) -> list[Path]:
    """The pictures of a folder, sorted by name.

    Raises:
        UserError: there is none.
    """
    paths = sorted(path for path in folder.iterdir() if is_picture_name(path.name))
    if not paths:
        held = listed(sorted(path.name for path in folder.iterdir())) or "nothing"
        raise UserError(
            f"a class needs at least one picture, a {', '.join(_FORMATS)} file; {folder} has none, it holds {held}. "
            "Fill the folder, convert what it holds, or remove it."
        )
    return paths


def decode(picture: Picture, mode: Literal["RGB", "L"]) -> Image.Image:
    """Decode a JPEG, PNG, BMP, WebP or TIFF as a viewer shows it.

    It is turned as its EXIF data say, laid on white where it is transparent, and 16 bits of gray become 8.

    Raises:
        UserError: it is none of these, is damaged or animated, or claims a size that no data set has.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            warnings.simplefilter("ignore", UserWarning)  # what is wrong with its EXIF data
            with Image.open(io.BytesIO(picture.read()), formats=_FORMATS) as image:
                if image.width * image.height > _PIXEL_LIMIT:
                    raise UserError(
                        f"a picture may have {_PIXEL_LIMIT / 1e6:.0f} million pixels; {picture.name} has "
                        f"{image.width * image.height / 1e6:.0f} ({image.width}x{image.height}). Scale it down."
                    )
                frames = getattr(image, "n_frames", 1)
                if image.format in ("PNG", "WEBP", "TIFF") and frames > 1:
                    raise UserError(
                        f"a picture must be one picture; {picture.name} has {frames} frames. Save the "
                        "one that is meant in its place."
                    )
                image.load()
                return _on_white(_upright(image)).convert(mode)
    except UserError:
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:  # before it says its size
        raise UserError(
            f"a picture may have {_PIXEL_LIMIT / 1e6:.0f} million pixels; {picture.name} claims to have many more. "
            "Scale it down."
        ) from error
    except Exception as error:  # on damaged input Pillow raises OSError, SyntaxError, ValueError, struct.error ...
        reason: object = error
        if isinstance(error, UnidentifiedImageError):
            begun = picture.read().startswith(_BEGINNINGS)
            reason = "it is cut short" if begun else "it is none of them"
        elif isinstance(error, OSError):
            reason = error.strerror or error
        raise UserError(
            f"a picture must be a whole JPEG, PNG, BMP, WebP or TIFF; {picture.name} is not: {reason}. "
            "Replace it, or take it out."
        ) from error


def _upright(image: Image.Image) -> Image.Image:
    with contextlib.suppress(Exception):  # damaged EXIF data, which many programs have left behind, turn nothing
        return ImageOps.exif_transpose(image)
    return image


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise ValueError("its values are real numbers")
    if image.mode.startswith("I"):  # Pillow would cut what is above 255
        return Image.fromarray(np.rint(np.asarray(image) / 257).astype(np.uint8))
    if image.has_transparency_data:
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image


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
    name: str,
    splits: Mapping[str, ClassImages],
    options: Mapping[str, str | int],
    complete: Sizes,
    *,
    may_repeat: bool = False,
) -> ImageDataset:
    """Make a real data set of its splits.

    One that has not the sizes of the complete set does not get its name either: it is called
    ``<name>-partial`` (or ``<name>-extended`` where it has more images), and its options say what it has.

    Args:
        name: of the complete set.
        splits: the three.
        options: what made the arrays.
        complete: the sizes of the complete set.
        may_repeat: whether a class may have the pictures of one of another split, as some models of ShapeNet do.

    Raises:
        UserError: a class occurs twice, by name or by its pictures, or a split is empty.
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
    if not may_repeat:
        _refuse_copies(name, splits)
    options = dict(options)
    if any(shortfall(data, *complete[split]) for split, data in splits.items()):
        images = sum(len(data.images) for data in splits.values())
        name += "-partial" if images <= sum(classes * each for classes, each in complete.values()) else "-extended"
        options.update(classes=len(split_of), images=images)
    return ImageDataset(name, "real", splits, options)


def _refuse_copies(name: str, splits: Mapping[str, ClassImages]) -> None:
    """Refuse a class whose pictures, in any order, are those of a class of another split."""
    seen: dict[bytes, tuple[str, str]] = {}
    for split, data in splits.items():
        here = {}
        for class_name, images in zip(data.class_names, _by_class(data), strict=True):
            pictures = sorted(hashlib.sha256(image.tobytes()).digest() for image in images)
            content = hashlib.sha256(b"".join(pictures)).digest()
            if content in seen:
                other_split, other = seen[content]
                raise UserError(
                    f"classes of two splits must have other pictures; in {name} {class_name!r} of {split} has those of "
                    f"{other!r} of {other_split}, each of them. Remove one of the two."
                )
            here[content] = split, class_name
        seen.update(here)


def _by_class(data: ClassImages) -> list[NDArray[np.uint8]]:
    return np.split(data.images, np.cumsum(data.counts)[:-1])


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
