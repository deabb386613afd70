"""Glyphs: procedural handwritten-like characters, a stand-in for Omniglot that needs no download.

A class is a character: two to four pen strokes, taken from the few strokes that its alphabet uses and joined to
each other. Characters of an alphabet share strokes and style; 20 consecutive numbers are one alphabet. Whole alphabets
belong to one split, and, as is done for Omniglot, each character turned by 90, 180 and 270 degrees gives three more
classes.

Within a class, twenty drawers draw the character once each. Drawers differ in slant, proportions, pen width and
steadiness; each drawing adds its own place, angle, and noise on strokes and on their control points.

It is drawn, not written by people: a result on it says ``procedural`` and never passes for one on Omniglot.

Computed in float64 and rounded last, so that a platform's last-digit differences hardly ever reach a pixel.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mlpip_bench.datasets.base import ClassImages, ImageDataset

VERSION = 1
"""Raise it with any change to what is drawn: caches and records distinguish data sets by it."""

FINGERPRINT = "b2e7d50e7b440d9f4e95a55227429f31908a994384b7ca5531467af8ea294051"
"""Of what is drawn, the same on every machine: a cached file of another one is not believed."""

_SEED = 20190506
_SIDE = 28
_CHARACTERS_PER_ALPHABET = 20
_ALPHABETS = {"train": 22, "validation": 4, "test": 8}
_DRAWERS = 20
_STROKES_PER_ALPHABET = 9
_MAX_STROKES = 4
_CONTROL_POINTS = 6
_SAMPLES_PER_STROKE = 64
_ROTATIONS = (0, 90, 180, 270)

_Array = NDArray[np.float64]


def build_glyphs(rotations: int = len(_ROTATIONS)) -> ImageDataset:
    """Draws the data set: 680 characters in four rotations, 20 drawings each, 28 x 28, ink 255 on paper 0.

    Args:
        rotations: quarter turns of a character that are classes; 1 for the upright one alone.

    Returns:
        The data set ``glyphs``; each call gives the same one.
    """
    rng = np.random.default_rng(_SEED)
    splits = {}
    first = 1
    for split, num_alphabets in _ALPHABETS.items():
        strokes, present = _characters(rng, num_alphabets)
        drawings = _rasterize(*_draw(rng, strokes, present))
        names = [f"glyph{number:04d}" for number in range(first, first + len(drawings))]
        splits[split] = _with_rotations(drawings, names, _ROTATIONS[:rotations])
        first += len(drawings)
    options: dict[str, str | int] = {"version": VERSION, "split": "alphabet"}
    if rotations != len(_ROTATIONS):  # at its default it is in no fingerprint
        options["rotations"] = "off"
    return ImageDataset(name="glyphs", source="procedural", splits=splits, options=options)


def _with_rotations(drawings: NDArray[np.uint8], names: list[str], rotations: tuple[int, ...]) -> ClassImages:
    """Adds the turned characters as classes ``name@degrees``, each after its upright one."""
    turned = [np.rot90(drawings, degrees // 90, axes=(2, 3)) for degrees in rotations]
    images = np.stack(turned, axis=1).reshape(-1, 1, _SIDE, _SIDE)
    class_names = tuple(name + (f"@{degrees}" if degrees else "") for name in names for degrees in rotations)
    return ClassImages(images, np.full(len(class_names), _DRAWERS, dtype=np.int64), class_names)


def _alphabet_strokes(rng: np.random.Generator, num_alphabets: int) -> _Array:
    """The strokes each alphabet is made of, as control points ``[alphabet, stroke, point, 2]`` centered on 0.

    A stroke is a walk of equal steps. Its turns make it a line (none), an arc or loop (all equal), an S (they change
    sign half-way), or a hook or corner (one large turn). How round an alphabet is, is part of its style.
    """
    shape = (num_alphabets, _STROKES_PER_ALPHABET)
    roundness = rng.uniform(0.2, 1.0, (num_alphabets, 1))
    slant = rng.choice([0.0, np.pi / 8], (num_alphabets, 1), p=[0.75, 0.25])
    heading = slant + rng.choice([0, 2, 4, 6, 1, 3], shape, p=[0.3, 0.3, 0.1, 0.1, 0.1, 0.1]) * (np.pi / 4)

    num_turns = _CONTROL_POINTS - 2
    bend = roundness * rng.choice([0.4, 0.8, 1.3], shape) * rng.choice([-1, 1], shape) * (rng.random(shape) < 0.65)
    turns = np.repeat(bend[..., None], num_turns, axis=-1)
    turns[..., num_turns // 2 :] *= np.where(rng.random(shape) < 0.25, -1, 1)[..., None]
    corner = rng.uniform(1.4, 2.3, shape) * rng.choice([-1, 1], shape) * ((bend == 0) & (rng.random(shape) < 0.5))
    corner_at = rng.integers(1, num_turns - 1, shape)
    turns += corner[..., None] * (np.arange(num_turns) == corner_at[..., None])

    angle = heading[..., None] + np.concatenate([np.zeros((*shape, 1)), np.cumsum(turns, axis=-1)], axis=-1)
    steps = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    points = np.concatenate([np.zeros((*shape, 1, 2)), np.cumsum(steps, axis=-2)], axis=-2)
    length = rng.choice([0.4, 0.7, 1.0], shape, p=[0.3, 0.3, 0.4])
    extent = np.ptp(points, axis=-2).max(axis=-1)
    points *= (length / extent)[..., None, None]
    return np.asarray(points - points.mean(axis=-2, keepdims=True), dtype=np.float64)


def _characters(rng: np.random.Generator, num_alphabets: int) -> tuple[_Array, NDArray[np.bool_]]:
    """Composes the characters of some alphabets.

    Returns:
        Control points ``[class, stroke, point, 2]`` within about ±0.5, and which strokes are there ``[class, stroke]``.
    """
    pool = _alphabet_strokes(rng, num_alphabets)
    num = num_alphabets * _CHARACTERS_PER_ALPHABET
    alphabet = np.repeat(np.arange(num_alphabets), _CHARACTERS_PER_ALPHABET)
    count = rng.choice([2, 3, 4], num, p=[0.35, 0.4, 0.25])
    present = np.arange(_MAX_STROKES) < count[:, None]

    # The strokes of one character are all different.
    chosen = rng.permuted(np.tile(np.arange(_STROKES_PER_ALPHABET), (num, 1)), axis=1)[:, :_MAX_STROKES]
    strokes = pool[alphabet[:, None], chosen]
    strokes = _turn_and_scale(strokes, rng.normal(0, 0.05, chosen.shape), rng.uniform(0.75, 1.25, chosen.shape))
    rows = np.arange(num)
    for stroke in range(1, _MAX_STROKES):
        # Most strokes start or cross on a point of an earlier one; the others are separate.
        hold = strokes[rows, stroke, rng.choice([0, 2, _CONTROL_POINTS - 1], num)]
        target = strokes[rows, rng.integers(0, stroke, num), rng.integers(0, _CONTROL_POINTS, num)]
        offset = rng.uniform(-0.35, 0.35, (num, 2)) * (rng.random((num, 1)) < 0.25)
        strokes[:, stroke] += (target - hold + offset)[:, None]

    there = np.where(present[..., None, None], strokes, np.nan)
    low, high = np.nanmin(there, axis=(1, 2)), np.nanmax(there, axis=(1, 2))
    size = rng.uniform(0.5, 0.8, (num, 1)) / (high - low).max(axis=-1, keepdims=True)
    strokes = (strokes - ((low + high) / 2)[:, None, None]) * size[..., None, None]
    return strokes, present


def _draw(
    rng: np.random.Generator, strokes: _Array, present: NDArray[np.bool_]
) -> tuple[_Array, NDArray[np.bool_], _Array]:
    """Lets each drawer of an alphabet draw each of its characters once.

    Returns:
        Control points in pixels ``[class, drawing, stroke, point, 2]``, which strokes are there
        ``[class, drawing, stroke]``, and the pen's radius in pixels ``[class, drawing]``.
    """
    num = len(strokes)
    num_alphabets = num // _CHARACTERS_PER_ALPHABET

    def habit(values: _Array) -> _Array:
        """Repeats what belongs to a drawer for each character of the alphabet: ``[class, drawing]``."""
        return np.repeat(values, _CHARACTERS_PER_ALPHABET, axis=0)

    drawers = (num_alphabets, _DRAWERS)
    drawings = (num, _DRAWERS)
    slant = habit(rng.normal(0, 0.16, drawers)) + rng.normal(0, 0.05, drawings)
    turn = habit(rng.normal(0, 0.07, drawers)) + rng.normal(0, 0.07, drawings)
    width = np.exp(habit(rng.normal(0, 0.13, drawers)) + rng.normal(0, 0.08, drawings))
    height = np.exp(habit(rng.normal(0, 0.13, drawers)) + rng.normal(0, 0.08, drawings))
    unsteadiness = habit(rng.uniform(0.005, 0.018, drawers))
    radius = np.clip(habit(rng.uniform(0.55, 0.85, drawers)) + rng.normal(0, 0.04, drawings), 0.5, 1.0)
    place = habit(rng.normal(0, 0.03, (*drawers, 2))) + rng.normal(0, 0.035, (*drawings, 2))

    per_stroke = (*drawings, _MAX_STROKES)
    points = np.repeat(strokes[:, None], _DRAWERS, axis=1)
    middle = points.mean(axis=-2, keepdims=True)
    points = middle + _turn_and_scale(
        points - middle, rng.normal(0, 0.13, per_stroke), np.exp(rng.normal(0, 0.13, per_stroke))
    )
    points += unsteadiness[..., None, None, None] * rng.normal(0, 2.8, (*per_stroke, 1, 2))
    points += unsteadiness[..., None, None, None] * rng.normal(0, 1.0, points.shape)

    # Slant and proportions first, then the whole drawing turned and moved.
    zero = np.zeros_like(width)
    matrix = np.stack([np.stack([width, slant], axis=-1), np.stack([zero, height], axis=-1)], axis=-2)
    cos, sin = np.cos(turn), np.sin(turn)
    rotation = np.stack([np.stack([cos, -sin], axis=-1), np.stack([sin, cos], axis=-1)], axis=-2)
    points = np.einsum("cdij,cdspj->cdspi", rotation @ matrix, points) + place[:, :, None, None]
    return (points + 0.5) * _SIDE, np.broadcast_to(present[:, None], per_stroke), radius


def _rasterize(points: _Array, present: NDArray[np.bool_], radius: _Array) -> NDArray[np.uint8]:
    """Inks each pixel whose center lies under a round pen led along the smooth strokes.

    Returns:
        ``[class, drawing, height, width]``, 255 or 0.
    """
    path = np.einsum("tp,cdspi->cdsti", _catmull_rom(), points)[present]
    drawing = np.broadcast_to(np.arange(radius.size).reshape(*radius.shape, 1), present.shape)[present]
    pen = radius.reshape(-1)[drawing]
    # With a radius of at most one pixel, the pen covers no center beyond the 3 x 3 pixels around it.
    canvas = np.zeros((radius.size, _SIDE, _SIDE), dtype=np.uint8)
    x, y = path[..., 0], path[..., 1]
    column0, row0 = np.floor(x).astype(np.int64), np.floor(y).astype(np.int64)
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            row, column = row0 + down, column0 + right
            inked = (column + 0.5 - x) ** 2 + (row + 0.5 - y) ** 2 < pen[:, None] ** 2
            inked &= (row >= 0) & (row < _SIDE) & (column >= 0) & (column < _SIDE)
            canvas[np.broadcast_to(drawing[:, None], inked.shape)[inked], row[inked], column[inked]] = 255
    return canvas.reshape(*radius.shape, _SIDE, _SIDE)


def _turn_and_scale(points: _Array, angle: _Array, scale: _Array) -> _Array:
    """Rotates ``[..., point, 2]`` about 0 by ``angle`` in radians and multiplies by ``scale``, both ``[...]``."""
    cos, sin = (scale * np.cos(angle))[..., None], (scale * np.sin(angle))[..., None]
    x, y = points[..., 0], points[..., 1]
    return np.stack([cos * x - sin * y, sin * x + cos * y], axis=-1)


def _catmull_rom() -> _Array:
    """Weights ``[sample, control point]`` of a smooth curve through the control points."""
    knots = np.pad(np.eye(_CONTROL_POINTS), ((1, 1), (0, 0)), mode="edge")
    position = np.linspace(0, _CONTROL_POINTS - 1, _SAMPLES_PER_STROKE)
    segment = np.minimum(position.astype(np.int64), _CONTROL_POINTS - 2)
    t = (position - segment)[:, None]
    before, start, end, after = (knots[segment + step] for step in range(4))
    return np.asarray(
        start
        + 0.5 * t * (end - before)
        + 0.5 * t**2 * (2 * before - 5 * start + 4 * end - after)
        + 0.5 * t**3 * (3 * start - before - 3 * end + after),
        dtype=np.float64,
    )
