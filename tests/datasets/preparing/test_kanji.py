"""Typefaces that the tests make, of rectangles."""

from pathlib import Path

import numpy as np
import pytest
from PIL import ImageFont

from builders import invoke
from mlpip_bench.datasets import drawings as reader
from mlpip_bench.datasets.base import SPLITS
from mlpip_bench.datasets.preparing import kanji
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.progress import Quiet

builder = pytest.importorskip("fontTools.fontBuilder", reason="needs fonttools: pip install 'mlpip_bench[drawings]'")
from fontTools.pens.ttGlyphPen import TTGlyphPen  # noqa: E402

CHARACTERS = kanji.jis_kanji()[:8]
EM = 24  # units, so that a unit is a pixel
Box = tuple[int, int, int, int]


def glyph(boxes: list[Box]):
    pen = TTGlyphPen(None)
    for left, bottom, right, top in boxes:
        pen.moveTo((left, bottom))
        pen.lineTo((left, top))
        pen.lineTo((right, top))
        pen.lineTo((right, bottom))
        pen.closePath()
    return pen.glyph()


def write_font(path: Path, shapes: dict[str, list[Box]]) -> None:
    """A font whose characters are boxes ``(left, bottom, right, top)``, in units of its em."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = {character: f"u{ord(character):04X}" for character in shapes}
    font = builder.FontBuilder(EM, isTTF=True)
    font.setupGlyphOrder([".notdef", *names.values()])
    font.setupCharacterMap({ord(character): name for character, name in names.items()})
    font.setupGlyf({".notdef": glyph([(2, 0, 20, 20)])} | {names[c]: glyph(boxes) for c, boxes in shapes.items()})
    font.setupHorizontalMetrics(dict.fromkeys([".notdef", *names.values()], (EM, 0)))
    font.setupHorizontalHeader(ascent=20, descent=-4)
    font.setupNameTable({"fullName": f"Font {path.stem}", "copyright": f"(c) {path.stem}", "licenseDescription": "OFL"})
    font.setupOS2()
    font.setupPost()
    font.save(path)


def shapes(number: int) -> dict[str, list[Box]]:
    """Boxes that differ between fonts and characters; the first two are in the corners."""
    rng = np.random.default_rng(number)
    found = {}
    for character in CHARACTERS:
        corners = rng.integers(0, 20, (8, 2))
        boxes = [(int(x), int(y), int(x) + 3, int(y) + 2) for x, y in corners]
        found[character] = [(0, 0, 2, 2), (20, 20, 23, 22), *boxes]
    return found


def write_fonts(folder: Path, count: int = 21) -> Path:
    for number in range(count):
        write_font(folder / f"family{number // 2:02d}" / f"font{number:02d}.ttf", shapes(number))
    return folder


def prepare(source: Path, target: Path) -> None:
    kanji.prepare(source, target, Quiet(), characters=CHARACTERS)


def read(target: Path) -> dict[str, np.ndarray]:
    found = reader.find(target, "kanji", "classes")
    assert found is not None
    splits = found.read().splits
    return {
        name: images
        for part in SPLITS
        for name, images in zip(
            splits[part].class_names,
            np.split(splits[part].images[:, 0], np.cumsum(splits[part].counts)[:-1]),
            strict=True,
        )
    }


def test_the_characters_are_those_of_the_standard():
    found = kanji.jis_kanji()
    assert len(found) == len(set(found)) == 6355
    assert (found[0], found[2964], found[2965], found[-1]) == ("亜", "腕", "弌", "熙")


def test_a_character_is_drawn_in_the_middle(tmp_path):
    write_font(tmp_path / "a.ttf", {"亜": [(1, 0, 7, 10)], "唖": []})
    font = ImageFont.truetype(str(tmp_path / "a.ttf"), kanji.SIZE)
    expected = np.zeros((28, 28), dtype=np.uint8)
    expected[9:19, 11:17] = 255
    np.testing.assert_array_equal(kanji.drawing(font, "亜"), expected)
    assert not kanji.drawing(font, "唖").any()


def test_what_is_larger_than_the_picture_is_made_smaller(tmp_path):
    write_font(tmp_path / "a.ttf", {"亜": [(0, 0, 56, 14)]})
    drawing = kanji.drawing(ImageFont.truetype(str(tmp_path / "a.ttf"), kanji.SIZE), "亜")
    rows, columns = np.nonzero(drawing > 127)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (10, 16, 0, 27)  # 28 x 7


def test_all_typefaces_are_drawn_and_named(tmp_path):
    prepare(write_fonts(tmp_path / "fonts"), tmp_path / "kanji")
    found = read(tmp_path / "kanji")
    assert sorted(found) == sorted(CHARACTERS)
    for character, images in found.items():
        for number in (0, 20):
            font = ImageFont.truetype(str(tmp_path / f"fonts/family{number // 2:02d}/font{number:02d}.ttf"), kanji.SIZE)
            np.testing.assert_array_equal(images[number], kanji.drawing(font, character))
    attribution = (tmp_path / "kanji" / "ATTRIBUTION.md").read_text()
    assert "| family03/font07 | Font font07 | (c) font07 | OFL |" in attribution


def test_missing_characters_and_placeholders_are_not_drawn(tmp_path):
    fonts = write_fonts(tmp_path / "fonts", 22)
    lacking = shapes(20)
    del lacking[CHARACTERS[0]]
    write_font(fonts / "family10" / "font20.ttf", lacking)
    box: list[Box] = [(2, 0, 20, 20)]
    write_font(fonts / "family10" / "font21.ttf", shapes(21) | dict.fromkeys(CHARACTERS[:2], box))
    prepare(fonts, tmp_path / "kanji")
    found = read(tmp_path / "kanji")
    counts = [len(found[character]) for character in CHARACTERS]
    assert counts == [20, 21, *[22] * 6]


def test_a_copy_of_a_typeface_is_no_other_design(tmp_path):
    fonts = write_fonts(tmp_path / "fonts")
    another = [*shapes(0)[CHARACTERS[7]][:8], (2, 16, 6, 20)]  # in one character it is not quite a copy
    write_font(fonts / "zopy" / "copy.ttf", shapes(0) | {CHARACTERS[7]: another})
    (fonts / "broken.ttf").write_bytes(b"no font")
    (fonts / "default.ttf").symlink_to(fonts / "family00" / "font00.ttf")
    (fonts / "readme.txt").write_text("no font")
    prepare(fonts, tmp_path / "kanji")
    attribution = (tmp_path / "kanji" / "ATTRIBUTION.md").read_text()
    assert "zopy" not in attribution
    assert "default" not in attribution
    assert {len(images) for images in read(tmp_path / "kanji").values()} == {21}


def test_too_few_typefaces_are_one_error(tmp_path):
    with pytest.raises(UserError, match="has 19 that differ"):
        prepare(write_fonts(tmp_path / "fonts", 19), tmp_path / "kanji")
    for arguments, message in (
        (("--from", tmp_path / "none"), "--from must be a folder of fonts"),
        (("--from", tmp_path / "fonts"), "has 19 that differ"),
    ):
        result = invoke("data", "prepare", "kanji", *arguments, "--to", tmp_path / "kanji")
        assert (result.exit_code, message in " ".join(result.output.split())) == (2, True), result.output
