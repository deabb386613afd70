"""Small folders of pictures, as users have them."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

FORMS: Sequence[tuple[str, str]] = (
    ("RGB", "png"), ("RGB", "jpg"), ("L", "png"), ("P", "png"), ("RGBA", "png"), ("I;16", "png"), ("RGB", "webp"),
    ("RGB", "bmp"), ("RGB", "tiff"),
)  # fmt: skip


def color_of(number: int) -> tuple[int, int, int]:
    """Of a class; classes of other numbers have others."""
    return 40 + number * 67 % 200, 40 + number * 101 % 200, 40 + number * 31 % 200


def picture(number: int, index: int, size: tuple[int, int] = (12, 12)) -> Image.Image:
    """A picture of a class: noise around its color, so that no two are equal."""
    rng = np.random.default_rng([number, index])
    noise = rng.integers(-30, 30, (size[1], size[0], 3))
    return Image.fromarray(np.clip(noise + color_of(number), 0, 255).astype(np.uint8))


def write_classes(folder: Path, names: Sequence[str], count: int | Callable[[int], int] = 4) -> Path:
    """A folder for each class, with pictures as PNG."""
    for number, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for index in range(count if isinstance(count, int) else count(number)):
            picture(number, index).save(folder / name / f"{index:02d}.png")
    return folder


def encoded(image: Image.Image, mode: str, ending: str) -> bytes:
    """The picture in a mode, in a file of a form."""
    buffer = io.BytesIO()
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    else:
        image = image.convert(mode)
    image.save(buffer, {"jpg": "JPEG", "tiff": "TIFF"}.get(ending, ending.upper()))
    return buffer.getvalue()
