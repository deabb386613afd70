"""Kanji: the characters of JIS X 0208 as many typefaces draw them, made of the fonts that are installed.

A class is a character, and its drawings are those of the typefaces that have it, centered in 28x28. Of faces that are
nearly the same on a sample of characters, as the widths of a family or the fonts that were made of another are, the
first by path is used. What a face lacks is not drawn: neither what is not in its table of characters, nor the box that
it shows for several.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, features

from mlpip_bench.datasets.drawings import LEAST, SIDE
from mlpip_bench.datasets.preparing import drawings
from mlpip_bench.datasets.preparing.drawings import Drawer, Drawn
from mlpip_bench.datasets.preparing.preparer import Preparer, writing_to
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import read_file
from mlpip_bench.utils.progress import Reporter

VERSION = 1
"""Of what is drawn: change it whenever the drawings change."""

FONTS = Path("/usr/share/fonts")
SIZE = 24  # pixels an em
SAMPLE = 64  # characters on which typefaces are compared
SAME_FACE = 0.9
"""Correlation of the pixels of the sample above which two faces are one design."""

_SUFFIXES = (".otc", ".otf", ".ttc", ".ttf")
_MOST = 2**28  # bytes of a font


@dataclass(frozen=True)
class Face:
    """A typeface: a font's file, and which of several in it.

    Attributes:
        path: the file.
        index: of the face in it.
        drawer: what is said of it.
        characters: that are drawn, of those asked for.
    """

    path: Path
    index: int
    drawer: Drawer
    characters: tuple[str, ...]


def jis_kanji() -> tuple[str, ...]:
    """The 6,355 kanji of JIS X 0208, in its order: rows 16 to 84 of its table."""
    cells = (bytes((0xA0 + row, 0xA0 + cell)) for row in range(16, 85) for cell in range(1, 95))
    return tuple(character for code in cells if (character := code.decode("euc_jp", errors="ignore")))


def prepare(
    source: Path,
    target: Path,
    reporter: Reporter,
    _jobs: int | None = None,
    *,
    characters: Sequence[str] | None = None,
) -> int:
    """Draw the characters of all typefaces of a folder.

    Args:
        source: folder of fonts, with folders in it.
        target: gets ``drawings.npz`` and its facts.
        reporter: shows the progress.
        characters: that are drawn; None for those of JIS X 0208.

    Returns:
        0: there is nothing that may fail alone.

    Raises:
        UserError: no folder, or too few typefaces.
    """
    if importlib.util.find_spec("fontTools") is None:
        raise UserError("reading fonts needs fonttools, which is not installed: pip install 'mlpip_bench[drawings]'.")
    characters = jis_kanji() if characters is None else characters
    if not source.is_dir():
        raise UserError(f"--from must be a folder of fonts; {source} is not a folder.")
    with writing_to(target, source):
        faces = designs(list(_faces(source, characters, reporter)), characters, reporter)
        if len(faces) < LEAST:
            raise UserError(
                f"a class needs {LEAST} drawings, so as many typefaces with kanji; {source} has {len(faces)} that "
                "differ. Install more: docs/data.md has the command for Debian and Ubuntu."
            )
        facts = {
            "title": "Kanji: the characters of JIS X 0208 as many typefaces draw them",
            "source": f"{len(faces)} typefaces that were installed, named in ATTRIBUTION.md",
            "made_by": f"data prepare kanji, version {VERSION}.{drawings.VERSION}; Pillow {PIL.__version__}, "
            f"FreeType {features.version('freetype2')}",
            "citation": "The typefaces' authors, named in ATTRIBUTION.md; the license of each stands in its package.",
        }
        of = {face.drawer.name: face for face in faces}
        drawers = [face.drawer for face in faces]
        drawings.prepare("kanji", target, drawers, lambda drawer: _drawn(of[drawer.name]), reporter, facts, str)
    return 0


def _faces(source: Path, characters: Sequence[str], reporter: Reporter) -> Iterator[Face]:
    """The faces that have one of the characters or more, by path."""
    # A link is another name of a font that is met under its own, as that of the system's default font is.
    paths = sorted(
        path
        for path in source.rglob("*")
        if path.suffix.lower() in _SUFFIXES and path.is_file() and not path.is_symlink()
    )
    with reporter.stage("reading fonts", len(paths)) as step:
        for count, path in enumerate(paths, start=1):
            try:
                with _errors_only():
                    faces = list(_faces_of(path, source, characters))
                yield from faces
            except Exception as error:  # a font that cannot be read, in whatever way, is as one that is not there
                reporter.say(f"left out, since it cannot be read: {path} ({error})")
            step(count)


@contextlib.contextmanager
def _errors_only() -> Iterator[None]:
    """Without what fontTools warns of: many fonts have tables that are not quite right, and are drawn all the same."""
    log = logging.getLogger("fontTools")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _faces_of(path: Path, source: Path, characters: Sequence[str]) -> Iterator[Face]:
    from fontTools.ttLib import TTCollection, TTFont  # an extra

    content = read_file(path, _MOST)
    digest = hashlib.sha256(content).hexdigest()
    is_collection = path.suffix.lower() in (".otc", ".ttc")
    for index in range(len(TTCollection(io.BytesIO(content), lazy=True).fonts) if is_collection else 1):
        with TTFont(io.BytesIO(content), fontNumber=index, lazy=True) as font:
            table, names = font.getBestCmap() or {}, font["name"]
            covered = tuple(character for character in characters if ord(character) in table)
            if not covered:
                continue
            title, author, license_, url = (_line(names.getDebugName(number)) for number in (4, 0, 13, 14))
        name = path.relative_to(source).with_suffix("").as_posix() + (f"#{index}" if is_collection else "")
        drawer = Drawer(
            name, path.parent.name, [VERSION, digest, index, hashlib.sha256("".join(covered).encode()).hexdigest()],
            title or name, author or "see its package", license_ or "see its package", url,
        )  # fmt: skip
        yield Face(path, index, drawer, covered)


def _line(text: str | None, most: int = 120) -> str:
    """A font's own words, cut to what a table has room for."""
    line = " ".join((text or "").split())
    return line if len(line) <= most else line[: most - 3] + "..."


def designs(faces: Sequence[Face], characters: Sequence[str], reporter: Reporter) -> list[Face]:
    """The faces without those that are nearly one before them."""
    sample = characters[:: max(1, len(characters) // SAMPLE)][:SAMPLE]
    blank = np.zeros((SIDE, SIDE), dtype=np.uint8)
    samples, usable = [], []
    with reporter.stage("comparing typefaces", len(faces)) as step:
        for count, face in enumerate(faces, start=1):
            has = set(face.characters)
            try:
                font = ImageFont.truetype(str(face.path), SIZE, index=face.index)
                drawn = [drawing(font, character) if character in has else blank for character in sample]
            except Exception as error:  # as above
                reporter.say(f"left out, since it cannot be drawn: {face.path} ({error})")
                continue
            if np.any(drawn):
                samples.append(np.concatenate(drawn))
                usable.append(face)
            step(count)
    return [usable[i] for i in drawings.distinct(np.array(samples), SAME_FACE)] if samples else []


def drawing(font: ImageFont.FreeTypeFont, character: str) -> NDArray[np.uint8]:
    """A character as uint8 ``[28, 28]``, ink at 255, its ink in the middle; blank where the font has none."""
    left, top, right, bottom = (round(edge) for edge in font.getbbox(character))
    canvas = Image.new("L", (right - left + 2 * SIZE, bottom - top + 2 * SIZE))
    ImageDraw.Draw(canvas).text((SIZE - left, SIZE - top), character, fill=255, font=font)
    picture = Image.new("L", (SIDE, SIDE))
    if box := canvas.getbbox():
        glyph = canvas.crop(box)
        if max(glyph.size) > SIDE:
            glyph.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        picture.paste(glyph, ((SIDE - glyph.width) // 2, (SIDE - glyph.height) // 2))
    return np.asarray(picture)


def _drawn(face: Face) -> Drawn:
    font = ImageFont.truetype(str(face.path), SIZE, index=face.index)
    return {character: drawing(font, character) for character in face.characters}


PREPARER = Preparer("kanji of many typefaces, 28x28", "a folder of fonts", "kanji", prepare, FONTS)
