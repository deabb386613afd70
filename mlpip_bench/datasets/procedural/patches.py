"""Patches: procedural pictures of lit, textured objects, a stand-in for miniImageNet that needs no download.

A class is a kind of object: an outline (one of a dozen superformula families, with a lopsidedness of its own), a
surface pattern (type, frequency, orientation, share of its two colors), two hues, and a relief (how flat, how glossy).
Classes share families, pattern types and a palette of eight hues, so that no one of these distinguishes them.

Within a class, pictures differ in pose (place, size, turn, shear, perspective, a bend of the body), the pattern's
phase, hue, saturation and brightness, the light's direction and color, the background's colors and texture, objects
in front, and sensor noise.

It is drawn, not photographed: a result on it says ``procedural`` and never passes for one on miniImageNet.

Computed in float64 and rounded last, so that a platform's last-digit differences hardly ever reach a pixel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlpip_bench.datasets.base import ClassImages, ImageDataset

VERSION = 1
"""Raise it with any change to what is drawn: caches and records distinguish data sets by it."""

FINGERPRINT = "7326a70563b9ab54f5a819e71ba5d2530310f1b8ac71ca3ef04ed6075b177049"
"""Of what is drawn, the same on every machine: a cached file of another one is not believed."""

_SEED = 20170828
_SIDE = 84
_CLASSES = {"train": 64, "validation": 16, "test": 20}
_IMAGES_PER_CLASS = 60
_BATCH = 4  # pictures drawn at once: few enough for the processor's cache
_PATTERNS = ("stripes", "waves", "checks", "dots", "rings", "spokes", "blotches", "plain")
_HUES = 8
# The superformula's (m, n1, n2 = n3): how many corners or lobes, and how pointed or full they are.
_FAMILIES = (
    (2, 2.0, 2.0),
    (3, 1.2, 1.4),
    (3, 6.0, 9.0),
    (4, 1.0, 1.0),
    (4, 9.0, 9.0),
    (5, 0.9, 1.6),
    (5, 4.0, 8.0),
    (6, 1.3, 3.0),
    (8, 2.0, 4.5),
    (7, 1.0, 1.8),
    (2, 0.9, 1.2),
    (10, 3.0, 5.0),
)

_Array = NDArray[np.float64]


@dataclass(frozen=True)
class _Kind:
    """What the pictures of one class have in common."""

    outline: _Array  # radius at equally spaced angles from -pi to pi, 1 at its widest
    pattern: str
    frequency: float  # waves per object radius
    orientation: float  # radians
    share: float  # between -1 and 1: how much of the surface has the second color
    hues: _Array  # [color], 0 to 1
    saturations: _Array  # [color]
    values: _Array  # [color]
    flatness: float  # 1 for a dome, larger for a plate with a bevelled rim
    gloss: float


def build_patches() -> ImageDataset:
    """Draws the data set: 100 classes (64, 16 and 20) of 60 pictures each, RGB, 84 x 84.

    Returns:
        The data set ``patches``; each call gives the same one.
    """
    splits = {}
    first = 1
    for split, num_classes in _CLASSES.items():
        numbers = range(first, first + num_classes)
        splits[split] = ClassImages(
            images=np.concatenate([draw_class(number) for number in numbers]),
            counts=np.full(num_classes, _IMAGES_PER_CLASS, dtype=np.int64),
            class_names=tuple(f"patch{number:03d}" for number in numbers),
        )
        first += num_classes
    return ImageDataset(name="patches", source="procedural", splits=splits, options={"version": VERSION})


def draw_class(number: int) -> NDArray[np.uint8]:
    """Draws one class, which depends on its number alone: ``[picture, channel, height, width]``."""
    rng = np.random.default_rng([_SEED, number])
    kind = _draw_kind(rng)
    return np.concatenate([_pictures(rng, kind) for _ in range(_IMAGES_PER_CLASS // _BATCH)])


def _draw_kind(rng: np.random.Generator) -> _Kind:
    """Draws what defines a class."""
    corners, n1, n2 = _FAMILIES[rng.integers(len(_FAMILIES))]
    angle = np.linspace(-np.pi, np.pi, 721)
    radius = (np.abs(np.cos(corners * angle / 4)) ** n2 + np.abs(np.sin(corners * angle / 4)) ** n2) ** (-1 / n1)
    for wave in (1, 2, 3):
        radius = radius * (1 + rng.uniform(0.0, 0.22 / wave) * np.cos(wave * angle + rng.uniform(0, 2 * np.pi)))
    return _Kind(
        outline=radius / radius.max(),
        pattern=_PATTERNS[rng.integers(len(_PATTERNS))],
        frequency=rng.uniform(1.5, 4.5),
        orientation=rng.uniform(0, np.pi),
        share=rng.uniform(-0.4, 0.4),
        hues=rng.integers(0, _HUES, 2) / _HUES,
        saturations=rng.uniform(0.25, 0.8, 2),
        values=rng.permutation([rng.uniform(0.3, 0.55), rng.uniform(0.65, 0.95)]),
        flatness=rng.choice([1.0, 2.0, 4.0]),
        gloss=rng.choice([0.0, 0.25, 0.5]),
    )


def _pictures(rng: np.random.Generator, kind: _Kind) -> NDArray[np.uint8]:
    """Draws a batch of pictures of a class, ``[picture, channel, height, width]``."""
    u, v = _object_plane(rng)
    radius = np.sqrt(u * u + v * v)
    angle = np.arctan2(v, u)
    depth = radius / np.interp(angle, np.linspace(-np.pi, np.pi, len(kind.outline)), kind.outline)  # 1 on the rim

    hues = kind.hues + rng.normal(0, 0.07, (_BATCH, 2))
    saturations = np.clip(kind.saturations + rng.normal(0, 0.12, hues.shape), 0, 1)
    values = np.clip(kind.values * np.exp(rng.normal(0, 0.15, hues.shape)), 0, 1)
    colors = _rgb(hues, saturations, values)
    surface = _mix(colors, _pattern(rng, kind, u, v, radius, angle))

    lit, highlight = _light(rng, kind, depth, angle)
    picture = surface * lit[:, None] + kind.gloss * highlight[:, None]
    inside = np.clip((1 - depth) * _SIDE / 4 + 0.5, 0, 1)[:, None]
    shadow = 1 - 0.45 * np.exp(-4 * np.maximum(depth - 1, 0))[:, None]
    ground = _background(rng) * shadow
    picture = ground + inside * (picture - ground)
    _occlude(rng, picture)
    return _expose(rng, picture)


def _grid() -> tuple[_Array, _Array]:
    """Pixel centers from -1 to 1: x ``[1, 1, width]`` and y ``[1, height, 1]``."""
    center = (np.arange(_SIDE) + 0.5) * 2 / _SIDE - 1
    return center[None, None, :], center[None, :, None]


def _per_picture(values: _Array) -> _Array:
    """Shapes one number a picture for arithmetic with planes ``[picture, height, width]``."""
    return values[:, None, None]


def _object_plane(rng: np.random.Generator) -> tuple[_Array, _Array]:
    """Draws a pose for each picture; where its pixels lie on the object, whose widest radius is 1."""
    x, y = _grid()
    x = x - _per_picture(rng.uniform(-0.2, 0.2, _BATCH))
    y = y - _per_picture(rng.uniform(-0.2, 0.2, _BATCH))
    tilt = 1 + _per_picture(rng.normal(0, 0.12, _BATCH)) * x + _per_picture(rng.normal(0, 0.12, _BATCH)) * y
    size = rng.uniform(0.45, 0.9, _BATCH)
    turn = rng.normal(0, 0.7, _BATCH)
    stretch = np.exp(rng.normal(0, 0.12, _BATCH))
    shear = rng.normal(0, 0.15, _BATCH)
    cos, sin = np.cos(turn), np.sin(turn)
    u = (_per_picture(cos / size) * x + _per_picture(sin / size) * y) / tilt
    v = (_per_picture(-sin / size) * x + _per_picture(cos / size) * y) / tilt
    u = u * _per_picture(stretch) + v * _per_picture(shear)
    v = v / _per_picture(stretch)
    bend = _per_picture(rng.normal(0, 0.06, _BATCH))
    wave, phase = _per_picture(rng.uniform(1.5, 3.5, _BATCH)), _per_picture(rng.uniform(0, 2 * np.pi, _BATCH))
    return u + bend * np.sin(wave * v + phase), v + bend * np.sin(wave * u - phase)


def _pattern(rng: np.random.Generator, kind: _Kind, u: _Array, v: _Array, radius: _Array, angle: _Array) -> _Array:
    """The surface pattern: 0 where it has the first color, 1 where it has the second."""
    phases = rng.uniform(0, 2 * np.pi, (4, _BATCH))
    frequency = 2 * np.pi * kind.frequency * _per_picture(np.exp(rng.normal(0, 0.08, _BATCH)))
    orientation = kind.orientation + _per_picture(rng.normal(0, 0.08, _BATCH))
    cos, sin = np.cos(orientation), np.sin(orientation)
    along, across = cos * u + sin * v, cos * v - sin * u
    first, second = _per_picture(phases[0]), _per_picture(phases[1])
    if kind.pattern == "stripes":
        height = np.sin(frequency * along + first)
    elif kind.pattern == "waves":
        height = np.sin(frequency * along + 1.5 * np.sin(0.6 * frequency * across + second) + first)
    elif kind.pattern == "checks":
        height = 2 * np.sin(0.7 * frequency * along + first) * np.sin(0.7 * frequency * across + second)
    elif kind.pattern == "dots":
        height = np.cos(0.8 * frequency * along + first) + np.cos(0.8 * frequency * across + second) - 0.5
    elif kind.pattern == "rings":
        height = np.sin(frequency * radius + first)
    elif kind.pattern == "spokes":
        height = np.sin(np.round(2 * kind.frequency) * angle + 4 * np.cos(kind.orientation) * radius + first)
    elif kind.pattern == "blotches":
        height = np.zeros_like(u)
        for wave, phase in enumerate(phases):
            way = kind.orientation + wave * 2.4
            height += 0.8 * np.sin(
                frequency * (0.4 + 0.1 * wave) * (np.cos(way) * u + np.sin(way) * v)
                + _per_picture(phase)
                + 1.2 * height
            )
    else:
        height = 0.8 * (along + across)
    return np.clip(0.5 + 1.5 * (height + kind.share), 0, 1)


def _light(rng: np.random.Generator, kind: _Kind, depth: _Array, angle: _Array) -> tuple[_Array, _Array]:
    """Lights the relief from a direction drawn for each picture: how bright the surface is, and its highlight."""
    slope = np.minimum(depth, 1) ** kind.flatness
    from_angle = _per_picture(rng.uniform(-np.pi, np.pi, _BATCH))
    elevation = rng.uniform(0.4, 1.1, _BATCH)
    facing = slope * np.cos(angle - from_angle) * _per_picture(np.cos(elevation))
    facing = np.maximum(facing + np.sqrt(1 - slope**2) * _per_picture(np.sin(elevation)), 0)
    ambient = _per_picture(rng.uniform(0.25, 0.5, _BATCH))
    shine = np.square(np.square(np.square(np.square(facing))))
    return ambient + (1.15 - ambient) * facing, shine


def _noise(rng: np.random.Generator, cells: int) -> _Array:
    """Smooth noise ``[picture, height, width]``: random values on a coarse grid, cosine-interpolated."""
    coarse = rng.normal(0, 1, (_BATCH, cells, cells))
    position = np.linspace(0, cells - 1, _SIDE)
    low = np.minimum(position.astype(np.int64), cells - 2)
    weight = (1 - np.cos(np.pi * (position - low))) / 2
    rows = coarse[:, low] * (1 - weight)[:, None] + coarse[:, low + 1] * weight[:, None]
    return np.asarray(rows[:, :, low] * (1 - weight) + rows[:, :, low + 1] * weight, dtype=np.float64)


def _background(rng: np.random.Generator) -> _Array:
    """Two colors of the common palette, mixed by cloudy noise and a weave ``[picture, channel, height, width]``."""
    hues = rng.integers(0, _HUES, (_BATCH, 2)) / _HUES + rng.normal(0, 0.05, (_BATCH, 2))
    colors = _rgb(hues, rng.uniform(0.05, 0.7, (_BATCH, 2)), rng.uniform(0.2, 0.9, (_BATCH, 2)))
    x, y = _grid()
    way, frequency = _per_picture(rng.uniform(0, np.pi, _BATCH)), _per_picture(rng.uniform(6, 28, _BATCH))
    weave = np.sin(frequency * (np.cos(way) * x + np.sin(way) * y) + _noise(rng, 5))
    strength = _per_picture(rng.uniform(0, 0.3, _BATCH) * (rng.random(_BATCH) < 0.6))
    clouds = 0.22 * _noise(rng, 4) + 0.14 * _noise(rng, 10) + 0.08 * _noise(rng, 30)
    return _mix(colors, np.clip(0.5 + clouds + strength * weave, 0, 1))


def _occlude(rng: np.random.Generator, picture: _Array) -> None:
    """Puts up to two shaded rods or balls in front of each picture, in place."""
    x, y = _grid()
    for _ in range(2):
        chosen = np.flatnonzero(rng.random(_BATCH) < 0.5)
        num = len(chosen)
        way = rng.uniform(0, np.pi, num)
        cos, sin = _per_picture(np.cos(way)), _per_picture(np.sin(way))
        half_length = _per_picture(rng.choice([0.0, 0.8], num))
        thickness = _per_picture(rng.uniform(0.06, 0.2, num))
        right = x - _per_picture(rng.uniform(-1, 1, num))
        down = y - _per_picture(rng.uniform(-1, 1, num))
        along = np.clip(cos * right + sin * down, -half_length, half_length)
        away = ((right - along * cos) ** 2 + (down - along * sin) ** 2) / thickness**2  # 1 on the rim
        hue = rng.integers(0, _HUES, num) / _HUES
        color = _rgb(hue, rng.uniform(0.2, 0.8, num), rng.uniform(0.3, 1, num))[:, :, None, None]
        shade = np.sqrt(np.maximum(1 - 0.8 * away, 0.1))[:, None]
        cover = np.clip((1 - np.sqrt(away)) * thickness * _SIDE / 2 + 0.5, 0, 1)[:, None]
        picture[chosen] += cover * (color * shade - picture[chosen])


def _expose(rng: np.random.Generator, picture: _Array) -> NDArray[np.uint8]:
    """Uneven, colored illumination, exposure, sensor noise; rounds to bytes."""
    x, y = _grid()
    slope_x, slope_y = (_per_picture(rng.normal(0, 0.12, _BATCH)) for _ in range(2))
    tint = np.exp(rng.normal(0, 0.08, (_BATCH, 3)) + rng.normal(0, 0.15, (_BATCH, 1)))[:, :, None, None]
    noise = rng.standard_normal(picture.shape, dtype=np.float32)
    exposed = picture * (tint * (1 + slope_x * x + slope_y * y)[:, None])
    exposed += noise * rng.uniform(0.01, 0.05, (_BATCH, 1, 1, 1))
    return np.rint(np.clip(exposed, 0, 1) * 255).astype(np.uint8)


def _mix(colors: _Array, weight: _Array) -> _Array:
    """From the first color to the second: ``[picture, 2, channel]``, ``[picture, height, width]`` to a picture."""
    first, second = colors[:, 0, :, None, None], colors[:, 1, :, None, None]
    return np.asarray(first + (second - first) * weight[:, None], dtype=np.float64)


def _rgb(hue: _Array, saturation: _Array, value: _Array) -> _Array:
    """HSV, each 0 to 1 (hue wraps round), to RGB along a new last axis."""
    sector = (hue[..., None] * 6 + np.array([0.0, 4.0, 2.0])) % 6
    pure = np.clip(np.abs(sector - 3) - 1, 0, 1)
    return np.asarray(value[..., None] * (1 - saturation[..., None] * (1 - pure)), dtype=np.float64)
