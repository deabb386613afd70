"""Pictures: what a viewer shows is what a network sees."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mlpip_bench.datasets.reading import Picture, decode, file_picture
from mlpip_bench.utils.errors import UserError


def saved(image: Image.Image, form: str = "PNG", **options: Any) -> Picture:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return Picture("p.png", buffer.getvalue)


def test_sixteen_bits_of_gray_are_scaled():
    values = np.arange(2**16, dtype=np.uint16).reshape(256, 256)
    got = np.asarray(decode(saved(Image.fromarray(values)), "L")).astype(float)
    assert np.abs(got / 255 - values / 65535).max() <= 0.5 / 255 + 1e-9
    assert np.asarray(decode(saved(Image.fromarray(values)), "RGB")).shape == (256, 256, 3)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_what_is_transparent_is_laid_on_white(mode):
    rng = np.random.default_rng(0)
    color = rng.integers(0, 256, (5, 7, 4), dtype=np.uint8)
    shown = color[..., :3] * (color[..., 3:] / 255) + 255 * (1 - color[..., 3:] / 255)
    expected = shown if mode == "RGB" else shown @ [0.299, 0.587, 0.114]
    assert np.abs(np.asarray(decode(saved(Image.fromarray(color)), mode)) - expected).max() <= 1.5
    gray = color[..., 2:]
    shown = gray[..., 0] * (gray[..., 1] / 255.0) + 255 - gray[..., 1]
    assert np.abs(np.asarray(decode(saved(Image.fromarray(gray)), "L")) - shown).max() <= 1.5


def test_a_transparent_color_of_a_palette_is_white():
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 0, 0])
    image.putdata([0, 1])
    got = np.asarray(decode(saved(image, transparency=0), "RGB"))
    assert got[0].tolist() == [[255, 255, 255], [200, 0, 0]]


def test_every_turn_of_exif_is_applied():
    upright = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40
    stored = {  # orientation: what a camera stores
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.T,
        6: np.rot90(upright),
        7: upright.T[::-1, ::-1],
        8: np.rot90(upright, -1),
    }
    for orientation, pixels in stored.items():
        exif = Image.Exif()
        exif[0x0112] = orientation
        picture = saved(Image.fromarray(np.ascontiguousarray(pixels)), exif=exif)
        np.testing.assert_array_equal(np.asarray(decode(picture, "L")), upright, err_msg=str(orientation))


def test_damaged_exif_data_turn_nothing():
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3)
    for exif in (b"Exif\x00\x00MM\x00*\xff\xff\xff\xff", b"Exif\x00\x00" + b"\xff" * 40, b"nonsense"):
        np.testing.assert_array_equal(np.asarray(decode(saved(Image.fromarray(pixels), exif=exif), "L")), pixels)


def test_an_animation_is_refused():
    frames = [Image.new("RGB", (4, 4), color) for color in ("red", "blue")]
    with pytest.raises(UserError, match=r"p\.png has 2 frames\. Save the one that is meant"):
        decode(saved(frames[0], save_all=True, append_images=frames[1:]), "RGB")


def test_bitmaps_are_read_and_other_forms_are_not(tmp_path: Path):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    np.testing.assert_array_equal(np.asarray(decode(saved(Image.fromarray(pixels), "BMP"), "RGB")), pixels)
    with pytest.raises(UserError, match="it is none of them"):
        decode(saved(Image.fromarray(pixels), "GIF"), "RGB")
    (tmp_path / "x.png").mkdir()
    with pytest.raises(UserError, match=r"x\.png is not: it is a folder, a pipe or a device"):
        decode(file_picture(tmp_path / "x.png"), "RGB")
