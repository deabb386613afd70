"""Pictures of a user as a trained model takes them: read as ``data add`` reads them, then made what its data are."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from mlpip_bench.datasets.adding.material import is_visible, subfolders
from mlpip_bench.datasets.reading import decode, file_picture, is_picture_name, listed, pictures_in
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import sha256_of

Shape = tuple[int, int, int]
"""``(channel, height, width)``."""
Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class PictureForm:
    """How pictures become the images of a model.

    Attributes:
        in_words: what is done to a picture.
        convert: takes an RGB picture and gives ``[channel, height, width]``.
    """

    in_words: str
    convert: Callable[[Image.Image], Pixels]

    def read(self, paths: Sequence[str | Path]) -> Pixels:
        """The images of some files, ``[image, channel, height, width]``.

        Raises:
            UserError: there is none, or one cannot be read.
        """
        if isinstance(paths, str | Path) or not len(paths):
            raise UserError(f"read takes a list of files of pictures, and at least one; got {paths!r}.")
        return np.stack([self.convert(decode(file_picture(Path(path)), "RGB")) for path in paths])


def photographs(shape: Shape) -> PictureForm:
    """Scaled so that the shorter side fits, and the middle cut out, as ``data add`` does; gray for one channel."""
    channels, height, width = shape

    def convert(picture: Image.Image) -> Pixels:
        return as_array(middle(picture, width, height), channels)

    words = f"scaled to {width}x{height} with the middle cut out"
    return PictureForm(words if channels == 3 else f"made gray, and {words}", convert)


def resized(shape: Shape) -> PictureForm:
    """Scaled as a whole, whatever the ratio of their sides."""
    channels, height, width = shape

    def convert(picture: Image.Image) -> Pixels:
        return as_array(picture.resize((width, height), Image.Resampling.LANCZOS), channels)

    return PictureForm(f"scaled as a whole to {width}x{height}", convert)


def drawings(shape: Shape) -> PictureForm:
    """Gray with ink bright on dark, scaled as a whole, with paper added where they are no squares."""
    _, height, width = shape

    def convert(picture: Image.Image) -> Pixels:
        return np.asarray(on_paper(ink(picture), width, height))[None]

    return PictureForm(f"made gray with bright ink on dark paper, and scaled to {width}x{height}", convert)


def as_array(picture: Image.Image, channels: int) -> Pixels:
    """``[channel, height, width]``."""
    if channels == 1:
        return np.asarray(picture.convert("L"))[None]
    return np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1))


def middle(picture: Image.Image, width: int, height: int) -> Image.Image:
    """The picture scaled so that the shorter side fits, and its middle."""
    if picture.size == (width, height):
        return picture
    return ImageOps.fit(picture, (width, height), Image.Resampling.LANCZOS)


def ink(picture: Image.Image) -> Image.Image:
    """A drawing in gray, its ink bright and its paper dark; paper is what most of the picture's edge shows."""
    gray = np.asarray(picture.convert("L"))
    edge = np.concatenate([gray[0], gray[-1], gray[1:-1, 0], gray[1:-1, -1]])
    return Image.fromarray(255 - gray if np.median(edge) >= 128 else gray)


def on_paper(drawing: Image.Image, width: int, height: int) -> Image.Image:
    """A drawing of bright ink scaled as a whole, with dark paper added on two sides where the ratio is another one."""
    if drawing.size == (width, height):
        return drawing
    return ImageOps.pad(drawing, (width, height), Image.Resampling.LANCZOS, color=0)


def support_files(folder: Path) -> tuple[list[Path], list[str]]:
    """The pictures of the class folders of a folder, and the class of each.

    Raises:
        UserError: it is no folder, or has fewer than two classes, a class has no picture, or two have the same one.
    """
    try:
        _check_folder(folder)
        classes = {path.name: pictures_in(path) for path in subfolders(folder)}
        if len(classes) < 2:
            held = listed(sorted(path.name for path in folder.iterdir() if is_visible(path))) or "nothing"
            raise UserError(
                "a support set needs at least two classes, each a folder of its pictures; "
                f"{folder} has {len(classes)}, it holds {held}."
            )
        met: dict[str, tuple[str, Path]] = {}
        for name, paths in classes.items():
            for path in filter(Path.is_file, paths):
                other, earlier = met.setdefault(sha256_of(path), (name, path))
                if other != name:
                    raise UserError(
                        f"a picture of a support set is of one class; {earlier} and {path} are the same file in two. "
                        "Remove one of them."
                    )
    except OSError as error:
        raise _unreadable(error) from error
    files = [(path, name) for name, paths in classes.items() for path in paths]
    return [path for path, _ in files], [name for _, name in files]


def query_files(folder: Path) -> list[Path]:
    """The pictures of a folder, and of all folders in it, sorted.

    Raises:
        UserError: it is no folder, or has no picture.
    """

    def refuse(error: OSError) -> None:
        raise _unreadable(error) from error

    _check_folder(folder)
    walked = os.walk(folder, onerror=refuse)
    found = sorted(Path(place) / name for place, _, names in walked for name in names if is_picture_name(name))
    if not found:
        held = listed(sorted(path.name for path in folder.iterdir() if is_visible(path))) or "nothing"
        raise UserError(f"there must be a picture to classify in {folder}, or in a folder below; it holds {held}.")
    return found


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "is not there"
        raise UserError(f"pictures are given as a folder; {folder} {what}.")


def _unreadable(error: OSError) -> UserError:
    return UserError(f"folders of pictures must be readable; {error.filename} is not: {error.strerror}.")
