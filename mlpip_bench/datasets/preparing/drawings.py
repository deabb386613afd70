"""Makes a data set of drawings: what many drawers drew of the same things, each thing a class.

What is drawn is kept drawer by drawer until all is there, so that the same command goes on where it was stopped. Then:

- blank drawings are left out, and so are those that are found in two classes, pixel by pixel: the box that a typeface
  has in place of a missing character, or a sign that a set uses for two things;
- of two drawings of a class that are nearly the same, the correlation of their pixels above ``NEARLY``, the second is
  left out: typefaces and icon sets copy each other;
- classes with fewer than ``LEAST`` drawings are left out, and of two classes whose means are nearly the same, their
  correlation above ``SAME_CLASS``, the second: one character under two codes, for example;
- classes are split 70 / 10 / 20, with kindred ones (arrow-left, arrow-right) in one split, and drawers into those for
  training and those for the test by domain, with kindred ones (the sets of one designer) in one of the two.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlpip_bench.datasets.arrays import read_npz
from mlpip_bench.datasets.base import SPLITS
from mlpip_bench.datasets.drawings import FILE, LEAST
from mlpip_bench.datasets.preparing.preparer import cell, read_facts, write_facts
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import write_atomically
from mlpip_bench.utils.progress import Reporter

VERSION = 1
"""Of what is done to drawings here: change it whenever the outcome changes."""

NEARLY = 0.95
SAME_CLASS = 0.97
LEAST_INK = 0.01
CLASS_SHARES = (0.7, 0.1, 0.2)
TEST_DRAWERS = 0.5
"""Share of the drawings whose drawers are those of the test by domain."""

_SEED = 42
_PARTS = ".parts"
_MOST = 2**28  # bytes of the drawings of one drawer

Drawn = Mapping[str, NDArray[np.uint8]]
"""The drawings of one drawer by class, uint8 ``[28, 28]``, ink at 255."""


@dataclass(frozen=True)
class Drawer:
    """One who draws: an icon set, a typeface.

    Attributes:
        name: unique.
        kin: what it shares with drawers of the same hand.
        state: all that decides its drawings, as JSON values.
        title, author, license, url: for the attribution.
    """

    name: str
    kin: str
    state: Any
    title: str
    author: str
    license: str
    url: str = ""


def prepare(
    name: str,
    target: Path,
    drawers: Sequence[Drawer],
    draw: Callable[[Drawer], Drawn],
    reporter: Reporter,
    facts: Mapping[str, Any],
    kin_of_class: Callable[[str], str],
) -> None:
    """Write ``drawings.npz``, ``facts.yaml`` and ``ATTRIBUTION.md``.

    Args:
        name: of the data set.
        target: its folder.
        drawers: in the order in which they are preferred where drawings are nearly the same.
        draw: the drawings of one of them.
        reporter: shows the progress.
        facts: of the package, for ``facts.yaml``.
        kin_of_class: what a class shares with those that may not be in another split.

    Raises:
        UserError: too few drawings, or a folder that cannot be written.
    """
    states = [_digest([VERSION, facts, drawer.name, drawer.kin, drawer.state]) for drawer in drawers]
    made_from = _digest(states)
    if (target / FILE).is_file() and read_facts(target).get("made_from") == made_from:
        reporter.say(f"{target} has been made of the same files; nothing to do")
        return
    parts = target / _PARTS
    drawn = []
    with reporter.stage(f"drawing {name}", len(drawers)) as step:
        for count, (drawer, state) in enumerate(zip(drawers, states, strict=True), start=1):
            drawn.append(_kept(parts / f"{state}.npz", lambda drawer=drawer: draw(drawer)))  # type: ignore[misc]
            step(count, drawer.name)
    images, classes, numbers = chosen(drawn)
    names = sorted(set(classes))
    if len({kin_of_class(each) for each in names}) < len(SPLITS):
        raise UserError(
            f"a data set needs classes with {LEAST} drawings each for three splits; what is drawn by {len(drawers)} "
            f"drawers has {len(names)} of them. Install more of what is drawn from."
        )
    split_of_class = split(names, kin_of_class, CLASS_SHARES, SPLITS)
    counts = Counter(numbers.tolist())
    kin = [drawer.kin for drawer in drawers]
    split_of_drawer = split(
        range(len(drawers)), lambda i: kin[i], (1 - TEST_DRAWERS, TEST_DRAWERS), ("train", "test"), counts.__getitem__
    )
    about = {
        "name": name,
        "made_from": made_from,
        "classes": [[each, split_of_class[each]] for each in names],
        "drawers": [[drawer.name, split_of_drawer[i]] for i, drawer in enumerate(drawers)],
    }
    content = io.BytesIO()
    np.savez_compressed(
        content,
        images=images,
        classes=np.searchsorted(names, classes).astype(np.int64),
        drawers=numbers,
        about=_text(about),
    )
    write_atomically(target / FILE, content.getvalue())
    entered = [drawer for i, drawer in enumerate(drawers) if counts[i]]
    found = {
        **facts,
        "license": dict(Counter(drawer.license for drawer in entered).most_common()),
        "counts": {
            part: {
                "classes": sum(split_of_class[each] == part for each in names),
                "images": sum(split_of_class[each] == part for each in classes),
            }
            for part in SPLITS
        },
        "drawers": {part: sum(counts[i] > 0 for i in split_of_drawer if split_of_drawer[i] == part)
                    for part in ("train", "test")},
        "made_from": made_from,
    }  # fmt: skip
    write_facts(target, {"name": name, **found}, _attribution(facts, drawers, counts))
    with contextlib.suppress(OSError):
        shutil.rmtree(parts)
    reporter.say(
        f"{len(images)} drawings of {len(names)} classes by {len(entered)} drawers are in {target}, with whom they are "
        "owed to in ATTRIBUTION.md"
    )


def chosen(drawn: Sequence[Drawn]) -> tuple[NDArray[np.uint8], list[str], NDArray[np.int64]]:
    """The drawings that make the data set, as the module says: images, the class and the drawer of each."""
    classes_of: dict[bytes, set[str]] = defaultdict(set)
    by_class: dict[str, list[tuple[int, NDArray[np.uint8]]]] = defaultdict(list)
    for number, drawings in enumerate(drawn):
        for name, image in drawings.items():
            if image.mean() >= 255 * LEAST_INK and image.min() != image.max():
                classes_of[image.tobytes()].add(name)
                by_class[name].append((number, image))
    kept: dict[str, list[tuple[int, NDArray[np.uint8]]]] = {}
    for name in sorted(by_class):
        own = [(number, image) for number, image in by_class[name] if len(classes_of[image.tobytes()]) == 1]
        rows = distinct(np.array([image for _, image in own])) if own else []
        if len(rows) >= LEAST:
            kept[name] = [own[row] for row in rows]
    names = list(kept)
    if names:
        means = np.array([np.mean([image for _, image in kept[name]], axis=0) for name in names])
        names = [names[i] for i in distinct(means, SAME_CLASS)]
    found = [(name, *drawing) for name in names for drawing in kept[name]]
    return (
        np.array([image for _, _, image in found], dtype=np.uint8),
        [name for name, _, _ in found],
        np.array([number for _, number, _ in found], dtype=np.int64),
    )


def distinct(images: NDArray[Any], most: float = NEARLY) -> list[int]:
    """Those of some images whose pixels correlate by ``most`` at most with each of those before them."""
    pixels = images.reshape(len(images), -1).astype(np.float32)
    pixels -= pixels.mean(axis=1, keepdims=True)
    pixels /= np.linalg.norm(pixels, axis=1, keepdims=True)
    same = pixels @ pixels.T > most
    kept: list[int] = []
    for i in range(len(images)):
        if not same[i, kept].any():
            kept.append(i)
    return kept


def split(
    items: Sequence[Any],
    kin: Callable[[Any], str],
    shares: Sequence[float],
    parts: Sequence[str],
    weight: Callable[[Any], int] = lambda _item: 1,
) -> dict[Any, str]:
    """The part of each item, kindred ones in one part, the parts about as large as their shares of all weights."""
    groups: dict[str, list[Any]] = defaultdict(list)
    for item in items:
        groups[kin(item)].append(item)
    shuffled = np.random.default_rng(_SEED).permutation(sorted(groups)).tolist()
    found: dict[Any, str] = {}
    total, done, part = sum(map(weight, items)), 0, 0
    bounds = np.cumsum(shares) * total
    for left, name in zip(range(len(shuffled), 0, -1), shuffled, strict=True):
        # The next part begins where this one has its share, or where each part that is left needs a group.
        if part + 1 < len(parts) and found and (done >= bounds[part] or left < len(parts) - part):
            part += 1
        found |= dict.fromkeys(groups[name], parts[part])
        done += sum(map(weight, groups[name]))
    return found


def _kept(path: Path, draw: Callable[[], Drawn]) -> Drawn:
    """The drawings of one drawer, from the run that was stopped where they are there."""
    try:
        names, images = read_npz(path, ("names", "images"), _MOST).values()
        return dict(zip(json.loads(names.tobytes()), images, strict=True))
    except (UserError, ValueError):  # it is not there or damaged, so it is drawn again
        drawn = draw()
    content = io.BytesIO()
    np.savez_compressed(content, names=_text(list(drawn)), images=np.array(list(drawn.values()), dtype=np.uint8))
    write_atomically(path, content.getvalue())
    return drawn


def _text(value: Any) -> NDArray[np.uint8]:
    """A JSON value as an array of bytes."""
    return np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)


def _digest(state: Any) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:20]


def _attribution(facts: Mapping[str, Any], drawers: Sequence[Drawer], counts: Mapping[int, int]) -> str:
    rows = [
        f"| {cell(drawer.name)} | {cell(drawer.title)} | {cell(drawer.author)} | {cell(drawer.license)} | "
        f"{cell(drawer.url)} | {counts[i]} |"
        for i, drawer in enumerate(drawers)
        if counts[i]
    ]
    head = "| name | title | author | license | from | drawings |\n| --- | --- | --- | --- | --- | ---: |"
    return (
        f"# {facts['title']}\n\nMade of {facts['source']}. The drawings were reduced to 28x28 pixels; what is said "
        "here of their authors and licenses is what the package says.\n\n" + "\n".join([head, *rows]) + "\n"
    )
