"""Solids: procedural furniture, vehicles and devices from all around, a stand-in for ShapeNet that needs no download.

An object belongs to one of the paper's twelve categories (appendix E). Each category is a program that draws
proportions, parts and shades, and puts the object together from three kinds of primitives. As ShapeNet's objects, all
of a category stand upright and face the same way, and each is centerd and scaled to a bounding box of diagonal 1.

The camera looks at the object's center from an elevation of 30 degrees, without perspective; its frame is 1 wide, so
that no object leaves it. At azimuth 0 it faces the front; it goes round counterclockwise, seen from above. Light comes
from above the camera's left shoulder and travels with it, as it does for an object on a turntable. The background is
white, as that of the paper's views, which are not inverted. Views are 96 x 96 rays (the paper's, 128 x 128 pixels)
averaged to 32 x 32.

It is put together by a program, not modeled by people: a result on it says ``procedural`` and never passes for one
on ShapeNet.

Computed in float64 and rounded last, so that a platform's last-digit differences hardly ever reach a pixel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mlpip_bench.datasets.base import ImageDataset
from mlpip_bench.datasets.views import SIDE, VIEWS, view_dataset

VERSION = 1
"""Raise it with any change to what is drawn: caches and records distinguish data sets by it."""

FINGERPRINT = "db0a6c90f4c6d7374595f98aa25ca36ea38a38a09ce9ca0032e4491ad3b676a6"
"""Of what is drawn, the same on every machine: a cached file of another one is not believed."""

ELEVATION_DEGREES = 30.0
AMBIENT = 0.4
"""Share of the light that comes from everywhere."""

LIGHT = (-0.48, 0.6, 0.64)
"""Where the rest of it comes from, of length 1, along the camera's right, its up, and toward the camera."""

_SEED = 20151209
_OBJECTS_PER_CATEGORY = 200
_RAYS_PER_PIXEL = 3  # in each direction
_BACKGROUND = 1.0
_BATCH = 18  # views drawn at once: few enough for the processor's cache
_TINY = 1e-12  # for a rate of change that is 0 but for rounding
_TIE = 1e-9  # of two surfaces in one place the earlier is seen, whatever the last digits are

_Array = NDArray[np.float64]
_Vector = Sequence[float]
_Draw = np.random.Generator


@dataclass(frozen=True, eq=False)
class Primitive:
    """A convex solid: an affine image of a cube, a cone, or a ball.

    Attributes:
        kind: ``block``, the image of the cube of half-width 1; ``cone``, of the cylinder of radius 1 between -1 and 1
            along the third axis; ``ball``, of the ball of radius 1.
        center: ``[3]``. Axes are the object's front, its left, and up.
        axes: ``[3, 3]``, columns: where the unit vectors go.
        shade: albedo, from 0, black, to 1, white.
        top: how wide a block is at the end of its third axis, along the first two, if it is 1 at its start. A cone
            has two equal numbers, a ball ones.
    """

    kind: Literal["block", "cone", "ball"]
    center: _Array
    axes: _Array
    shade: float
    top: tuple[float, float] = (1.0, 1.0)

    def reach(self, directions: _Array) -> tuple[_Array, _Array]:
        """The least and the greatest coordinate of its points along directions ``[..., 3]``, each ``[...]``."""
        local = directions @ self.axes
        if self.kind == "ball":
            high = low = np.sqrt(np.sum(local**2, axis=-1))
        else:
            widths = np.array([[1.0, 1.0], self.top]) * np.abs(local[..., None, :2])
            wide = widths.sum(axis=-1) if self.kind == "block" else np.hypot(widths[..., 0], widths[..., 1])
            along = local[..., 2:] * np.array([-1.0, 1.0])
            low, high = (wide - along).max(axis=-1), (wide + along).max(axis=-1)
        middle = directions @ self.center
        return middle - low, middle + high


def block(
    start: _Vector, end: _Vector, size: _Vector, shade: float, top: tuple[float, float] = (1.0, 1.0)
) -> Primitive:
    """A block between two parallel faces, which may be shifted against each other and differ in size.

    Args:
        start: center of the first face, which is normal to the coordinate axis along which ``end - start`` is longest.
        end: center of the second.
        size: of the first face, along the other two coordinate axes in their order.
        shade: albedo.
        top: size of the second face by that of the first.
    """
    return Primitive("block", *_between(start, end, size), shade, top)


def cone(start: _Vector, end: _Vector, size: _Vector, shade: float, top: float = 1.0) -> Primitive:
    """A cylinder or blunt cone between two parallel elliptic faces; its arguments are those of `block`."""
    return Primitive("cone", *_between(start, end, size), shade, (top, top))


def ball(center: _Vector, size: _Vector, shade: float) -> Primitive:
    """An ellipsoid, ``size`` wide along the coordinate axes."""
    return Primitive("ball", np.array(center, dtype=np.float64), np.diag(np.array(size, dtype=np.float64) / 2), shade)


def _between(start: _Vector, end: _Vector, size: _Vector) -> tuple[_Array, _Array]:
    first, last = np.array(start, dtype=np.float64), np.array(end, dtype=np.float64)
    main = int(np.argmax(np.abs(last - first)))
    axes = np.zeros((3, 3))
    for column, axis in enumerate(axis for axis in range(3) if axis != main):
        axes[axis, column] = size[column] / 2
    axes[:, 2] = (last - first) / 2
    return (first + last) / 2, axes


def build_solids(report: Callable[[int, int], None] | None = None) -> ImageDataset:
    """Draws the data set: 200 objects in each of 12 categories, 36 views each, 32 x 32, gray on white.

    Args:
        report: called after each object with the numbers of objects done and in total.

    Returns:
        The data set ``solids``; each call gives the same one.
    """
    names = [f"{category}/{number:04d}" for category in CATEGORIES for number in range(1, _OBJECTS_PER_CATEGORY + 1)]
    images = np.empty((len(names), VIEWS, SIDE, SIDE), dtype=np.uint8)
    for done, name in enumerate(names):
        images[done] = render(solid(name), np.arange(VIEWS) * (360 / VIEWS))
        if report is not None:
            report(done + 1, len(names))
    return view_dataset("solids", "procedural", images, names, {"version": VERSION})


def solid(name: str) -> list[Primitive]:
    """Puts one object together, which depends on its name alone.

    Args:
        name: category and number, as ``chair/0007``.

    Returns:
        Its primitives, centerd, and scaled to a bounding box of diagonal 1.
    """
    category, number = name.split("/")
    rng = np.random.default_rng([_SEED, list(CATEGORIES).index(category), int(number)])
    parts = CATEGORIES[category](rng)
    bounds = [part.reach(np.eye(3)) for part in parts]
    low, high = np.min([low for low, _ in bounds], axis=0), np.max([high for _, high in bounds], axis=0)
    scale = 1 / np.sqrt(np.sum((high - low) ** 2))
    middle = (low + high) / 2
    return [replace(part, center=(part.center - middle) * scale, axes=part.axes * scale) for part in parts]


def render(
    primitives: Sequence[Primitive], azimuths_degrees: Sequence[float] | NDArray[np.floating]
) -> NDArray[np.uint8]:
    """Looks at solids from around: rays are cast to where they first meet a surface, which is lit by Lambert's law.

    Args:
        primitives: what there is to see; what is farther than 0.5 from the origin may be out of the frame.
        azimuths_degrees: ``[view]``, where the camera stands.

    Returns:
        ``[view, SIDE, SIDE]``, from 0, black, to 255, white.
    """
    cameras = _cameras(np.asarray(azimuths_degrees, dtype=np.float64))
    rays = SIDE * _RAYS_PER_PIXEL
    views = []
    for first in range(0, len(cameras), _BATCH):
        camera = cameras[first : first + _BATCH]
        nearest = np.full((len(camera), rays, rays), -np.inf)
        picture = np.full(nearest.shape, _BACKGROUND)
        for primitive in primitives:
            _paint(primitive, camera, nearest, picture)
        rows = picture.reshape(len(camera), SIDE, _RAYS_PER_PIXEL, rays).mean(axis=2)
        views.append(rows.reshape(len(camera), SIDE, SIDE, _RAYS_PER_PIXEL).mean(axis=3))
    return np.asarray(np.rint(np.concatenate(views) * 255), dtype=np.uint8)


def _cameras(azimuths_degrees: _Array) -> _Array:
    """Unit vectors to the right, up, and toward each camera: ``[view, 3, 3]``."""
    azimuth, elevation = np.deg2rad(azimuths_degrees), np.deg2rad(ELEVATION_DEGREES)
    cos, sin, zero = np.cos(azimuth), np.sin(azimuth), np.zeros_like(azimuth)
    low, high = np.cos(elevation), np.sin(elevation)
    right = np.stack([-sin, cos, zero], axis=-1)
    up = np.stack([-high * cos, -high * sin, zero + low], axis=-1)
    toward = np.stack([low * cos, low * sin, zero + high], axis=-1)
    return np.stack([right, up, toward], axis=1)


@dataclass(frozen=True)
class _Window:
    """The rays that may meet a primitive: as many for each view as the widest and the highest view need."""

    u: _Array  # [view, column], to the right
    v: _Array  # [view, row], up
    index: NDArray[np.int64]  # [view, row, column], into all rays

    def affine(self, terms: _Array) -> _Array:
        """``terms[0] + terms[1] u + terms[2] v``: ``[3, view]`` to ``[view, row, column]``."""
        across, down = terms[0][:, None] + terms[1][:, None] * self.u, terms[2][:, None] * self.v
        # Their outer sum as a product with ones: as exact, and faster than broadcasting over short rows.
        left = np.stack([np.ones_like(down), down], axis=-1)
        return np.asarray(left @ np.stack([across, np.ones_like(across)], axis=1), dtype=np.float64)


def _window(primitive: Primitive, camera: _Array, rays: int) -> _Window:
    low, high = primitive.reach(camera[:, :2])
    to_ray = np.array([rays, -rays])
    edges = np.sort(np.stack([low, high]) * to_ray + (rays / 2 - 0.5), axis=0)  # [2, view, (column, row)]
    first = np.clip(np.ceil(edges[0] - 1e-6).astype(np.int64), 0, rays - 1)
    last = np.clip(np.floor(edges[1] + 1e-6).astype(np.int64), 0, rays - 1)
    columns, rows = np.maximum((last - first).max(axis=0) + 1, 1)
    first = np.minimum(first, rays - np.array([columns, rows]))
    column = first[:, :1] + np.arange(columns)
    row = first[:, 1:] + np.arange(rows)
    index = (np.arange(len(camera))[:, None] * rays + row)[:, :, None] * rays + column[:, None, :]
    return _Window((column + 0.5) / rays - 0.5, 0.5 - (row + 0.5) / rays, index)


def _paint(primitive: Primitive, camera: _Array, nearest: _Array, picture: _Array) -> None:
    """Paints a primitive into ``picture`` where it is nearer to the camera than what ``nearest`` knows of.

    In the primitive's own coordinates a ray is ``origin + u right + v up + s toward``; larger ``s`` is nearer.
    """
    window = _window(primitive, camera, nearest.shape[-1])
    inverse = np.asarray(np.linalg.inv(primitive.axes), dtype=np.float64)
    directions = camera @ inverse.T
    origin = np.broadcast_to(-(inverse @ primitive.center), directions[:, 0].shape)
    lines = np.stack([origin, directions[:, 0], directions[:, 1]])  # [3, view, 3]
    toward = directions[:, 2]
    light = (np.array(LIGHT) @ camera) @ inverse.T
    if primitive.kind == "block":
        met, depth, facing = _meet_block(primitive.top, window, lines, toward, light, inverse)
    else:
        met, depth, facing = _meet_round(primitive, window, lines, toward, light, inverse)
    index = window.index.reshape(-1)[met]
    seen = depth > nearest.reshape(-1)[index] + _TIE
    index = index[seen]
    nearest.reshape(-1)[index] = depth[seen]
    lit = AMBIENT + (1 - AMBIENT) * np.maximum(facing[seen], 0)
    picture.reshape(-1)[index] = primitive.shade * lit


_Met = tuple[NDArray[np.int64], _Array, _Array]  # which rays of the window, how near, cosine between normal and light


def _meet_block(
    top: tuple[float, float], window: _Window, lines: _Array, toward: _Array, light: _Array, inverse: _Array
) -> _Met:
    """A ray enters a block at the farthest of the faces that look at the camera, unless it left by another before."""
    (x_lean, y_lean), (x_edge, y_edge) = (np.array(top) - 1) / 2, (np.array(top) + 1) / 2
    normals = np.array([[1, 0, -x_lean], [-1, 0, -x_lean], [0, 1, -y_lean], [0, -1, -y_lean], [0, 0, 1], [0, 0, -1]])
    edges = np.array([x_edge, x_edge, y_edge, y_edge, 1, 1])
    rate = toward @ normals.T  # [view, face]
    rate = np.where(np.abs(rate) < _TINY, _TINY, rate)
    planes = -(lines @ normals.T)
    planes[0] += edges
    planes /= rate
    incidence = (light @ normals.T) / np.sqrt(np.sum((normals @ inverse) ** 2, axis=-1))

    order = np.argsort(rate < 0, axis=1, kind="stable")
    sorted_planes = np.take_along_axis(planes, order[None], axis=2)
    front = (rate > 0).sum(axis=1)
    near = window.affine(sorted_planes[:, :, 0])
    face = np.zeros(near.shape, dtype=np.int8)
    for rank in range(1, front.max()):
        depth = window.affine(np.where(rank < front, sorted_planes[:, :, rank], [[np.inf], [0.0], [0.0]]))
        np.putmask(face, depth < near, rank)
        np.minimum(near, depth, out=near)
    far = window.affine(sorted_planes[:, :, -1])
    for rank in range(front.min(), 5):
        depth = window.affine(np.where(rank >= front, sorted_planes[:, :, rank], [[-np.inf], [0.0], [0.0]]))
        np.maximum(far, depth, out=far)
    met, view = _where(near >= far)
    return met, near.reshape(-1)[met], incidence[view, order[view, face.reshape(-1)[met]]]


def _meet_round(
    primitive: Primitive, window: _Window, lines: _Array, toward: _Array, light: _Array, inverse: _Array
) -> _Met:
    """Solves ``x² + y² + z² = 1`` for a ball; ``x² + y² = (edge + lean z)²`` and the faces ``z = ±1`` for a cone."""
    x, y, z = (window.affine(lines[..., axis]) for axis in range(3))
    if primitive.kind == "ball":
        sign, lean, edge, radius = 1.0, 1.0, 0.0, 1.0
    else:
        sign, lean, edge, radius = -1.0, (primitive.top[0] - 1) / 2, (primitive.top[0] + 1) / 2, 0.0
    metric = np.array([1.0, 1.0, sign * lean**2])
    square = np.sum(metric * toward**2, axis=-1)
    square = np.where(np.abs(square) < _TINY, _TINY, square)
    linear = np.sum(metric * lines * toward[None], axis=-1)
    linear[0] += sign * lean * edge * toward[:, 2]
    half_linear = window.affine(linear)
    discriminant = half_linear**2 - square[:, None, None] * (x**2 + y**2 + sign * (edge + lean * z) ** 2 - radius)

    met, view = _where(discriminant >= 0)
    x, y, z, discriminant, half_linear = (values.reshape(-1)[met] for values in (x, y, z, discriminant, half_linear))
    x_ahead, y_ahead, z_ahead = toward.T[:, view]
    depth = (np.sqrt(discriminant) - half_linear) / square[view]
    if primitive.kind == "ball":
        normal = np.stack([x + depth * x_ahead, y + depth * y_ahead, z + depth * z_ahead])
    else:
        # The other solution is behind, or across the apex.
        depth = np.where(np.abs(z + depth * z_ahead) <= 1, depth, -np.inf)
        end = np.where(z_ahead > 0, 1.0, -1.0)
        to_end = (end - z) / np.where(np.abs(z_ahead) < _TINY, _TINY * end, z_ahead)
        at_end = (x + to_end * x_ahead) ** 2 + (y + to_end * y_ahead) ** 2 <= (edge + lean * end) ** 2
        depth = np.where(at_end, to_end, depth)
        hit = depth > -np.inf
        met, view, depth, at_end = met[hit], view[hit], depth[hit], at_end[hit]
        x, y, z = x[hit] + depth * x_ahead[hit], y[hit] + depth * y_ahead[hit], z[hit] + depth * z_ahead[hit]
        normal = np.stack([x, y, -lean * (edge + lean * z)])
        normal[:, at_end] = np.array([[0.0], [0.0], [1.0]]) * end[hit][at_end]
    length = np.sqrt(np.sum((inverse.T @ normal) ** 2, axis=0))
    return met, depth, np.sum(normal * light.T[:, view], axis=0) / length


def _where(mask: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Flat indices into ``[view, row, column]``, and their views."""
    return np.flatnonzero(mask), np.repeat(np.arange(len(mask)), np.count_nonzero(mask, axis=(1, 2)))


_SIDES = (-1, 1)


def _chance(rng: _Draw, probability: float) -> bool:
    return bool(rng.random() < probability)


def _sides(rng: _Draw, both: float, none: float) -> tuple[int, ...]:
    """Both sides or neither with the given probabilities, else one of them."""
    drawn, one = rng.random(), int(rng.choice(_SIDES))
    return _SIDES if drawn < both else () if drawn < both + none else (one,)


def _four_legs(rng: _Draw, length: float, width: float, height: float, shade: float) -> list[Primitive]:
    """Legs from the ground up to the corners of a rectangle around the upright axis, straight or splayed."""
    thick, splay = rng.uniform(0.04, 0.1), rng.choice([0.0, rng.uniform(0.0, 0.12)])
    make: Callable[..., Primitive] = block if _chance(rng, 0.6) else cone
    x, y = (length - thick) / 2, (width - thick) / 2
    return [
        make((i * (x + splay), j * (y + splay), 0), (i * x, j * y, height), (thick, thick), shade)
        for i in _SIDES
        for j in _SIDES
    ]


def _airplane(rng: _Draw) -> list[Primitive]:
    hull, wing, tail, engine = rng.uniform(0.15, 0.9, 4)
    wide = rng.uniform(0.1, 0.17)
    high = wide * rng.uniform(0.9, 1.3)
    front, back = rng.uniform(0.25, 0.35), -rng.uniform(0.15, 0.25)
    nose = rng.uniform(0.1, 0.45)
    parts = [
        cone((back, 0, 0), (front, 0, 0), (wide, high), hull),
        cone((back, 0, 0), (-0.6, 0, high * rng.uniform(0.1, 0.4)), (wide, high), hull, rng.uniform(0.1, 0.4)),
        ball((front, 0, 0), (nose, wide, high), hull),
        ball((front + nose * 0.1, 0, high * 0.3), (0.12, wide * 0.8, high * 0.55), rng.uniform(0.05, 0.3)),
    ]
    root, chord, taper = rng.uniform(-0.05, 0.15), rng.uniform(0.13, 0.4), rng.uniform(0.2, 0.9)
    half, sweep, rise = rng.uniform(0.4, 0.65), rng.choice([0.0, rng.uniform(0.1, 0.38)]), rng.uniform(-0.05, 0.1)
    height = high * rng.choice([-0.3, 0.0, 0.42])
    fin = rng.uniform(0.12, 0.25)
    tail_height, tail_half = rng.choice([0.05, fin + high * 0.3]), rng.uniform(0.15, 0.28)
    tail_sweep = rng.uniform(0, 0.12)
    for j in _SIDES:
        tip = (root - sweep, j * half, height + rise)
        parts.append(block((root, 0, height), tip, (chord, 0.03), wing, (taper, 0.5)))
        end = (-0.5 - tail_sweep, j * tail_half, tail_height)
        parts.append(block((-0.5, 0, tail_height), end, (0.15, 0.02), tail, (0.6, 0.6)))
        if _chance(rng, 0.2):
            parts.append(block(tip, (tip[0] - 0.03, tip[1], tip[2] + 0.1), (chord * taper, 0.02), tail, (0.6, 1)))
    parts.append(block((-0.48, 0, 0), (-0.58, 0, fin + high * 0.4), (0.2, 0.02), tail, (rng.uniform(0.4, 0.8), 1)))
    per_side, at_tail, propeller = int(rng.integers(0, 3)), _chance(rng, 0.25), _chance(rng, 0.3)
    size = rng.uniform(0.05, 0.09)
    for number in range(per_side):
        for j in _SIDES:
            share = (number + 1) / (per_side + 1)
            x, y, z = root - sweep * share + chord * 0.2, j * half * share, height + rise * share - size * 0.6
            if at_tail:
                x, y, z = -0.3, j * (wide / 2 + size * (number + 0.5)), high * 0.2
            parts.append(cone((x - 0.07, y, z), (x + 0.08, y, z), (size, size), engine))
            if propeller and not at_tail:
                parts.append(block((x + 0.1, y - 0.08, z), (x + 0.1, y + 0.08, z), (0.01, 0.02), 0.1))
    if per_side == 0 and propeller:
        x = front + nose / 2
        parts.append(block((x, 0, -0.14), (x, 0, 0.14), (0.02, 0.03), 0.1))
    return parts


def _bench(rng: _Draw) -> list[Primitive]:
    wood, iron, other = rng.uniform(0.1, 0.9, 3)
    length, depth, height, thick = rng.uniform(1, 2), rng.uniform(0.3, 0.55), rng.uniform(0.35, 0.5), 0.06
    planks = int(rng.integers(1, 5))
    parts = []
    for number in range(planks):
        x, step = depth * ((number + 0.5) / planks - 0.5), depth / planks
        shade = other if number % 2 else wood
        parts.append(block((x, -length / 2, height), (x, length / 2, height), (step * 0.85, thick), shade))
    style, inset = rng.integers(3), rng.uniform(0.55, 0.98) * length / 2
    if style == 0:
        parts += _four_legs(rng, depth, 2 * inset, height, iron)
    for j in _SIDES if style else ():
        size = (depth * 0.8, 0.06) if style == 1 else (0.12, 0.12)
        parts.append(block((0, j * inset, 0), (0, j * inset, height), size, iron))
        if style == 2:
            parts.append(block((-depth / 2, j * inset, 0.03), (depth / 2, j * inset, 0.03), (0.1, 0.06), iron))
    if _chance(rng, 0.65):
        lean, rise = rng.uniform(0, 0.2), rng.uniform(0.25, 0.5)
        base, left = -depth / 2, rng.choice([length, length / 2], p=[0.8, 0.2])
        slats, upright = int(rng.integers(1, 4)), _chance(rng, 0.35)
        start = -length / 2
        for number in range(slats):
            share = (number + 0.75) / slats
            at = (base - lean * share, start, height + rise * share)
            end = (at[0], start + left, at[2])
            parts.append(block(at, end, (0.04, rise / slats * (0.4 if upright else 0.7)), wood))
        for y in np.linspace(start + 0.05, start + left - 0.05, 9 if upright else 2):
            parts.append(block((base, y, height), (base - lean, y, height + rise), (0.05, 0.06), iron))
    for j in _sides(rng, both=0.35, none=0.5):
        y, rise = j * length * 0.47, rng.uniform(0.15, 0.25)
        parts.append(block((-depth / 2, y, height + rise), (depth / 2, y, height + rise), (0.06, 0.05), other))
        parts.append(block((depth * 0.4, y, height), (depth * 0.4, y, height + rise), (0.05, 0.05), iron))
    return parts


def _cabinet(rng: _Draw) -> list[Primitive]:
    body, door, drawer = rng.uniform(0.25, 0.9, 3)
    handle = rng.uniform(0.05, 0.95)
    width, depth, height = rng.uniform(0.5, 1.6), rng.uniform(0.3, 0.6), rng.uniform(0.5, 1.7)
    foot = rng.choice([0.0, rng.uniform(0.05, 0.25)])
    parts = [block((0, 0, foot), (0, 0, foot + height), (depth, width), body)]
    if foot:
        parts += _four_legs(rng, depth * 0.95, width * 0.95, foot, rng.uniform(0.1, 0.8))
    if _chance(rng, 0.5):
        top = foot + height
        parts.append(block((0, 0, top), (0, 0, top + 0.04), (depth * 1.08, width * 1.06), drawer))
    columns = int(rng.integers(1, 4))
    for column in range(columns):
        wide = width / columns
        y, rows = (column + 0.5) * wide - width / 2, int(rng.integers(1, 5))
        for row in range(rows):
            high = height / rows
            z, x, style = foot + (row + 0.5) * high, depth / 2, rng.choice(3, p=[0.45, 0.3, 0.25])
            face = (wide * 0.88, high * 0.88)
            if style == 2:  # open
                parts.append(block((x, y, z), (x + 0.005, y, z), face, 0.08))
                parts.append(block((x, y, z - high * 0.4), (x + 0.01, y, z - high * 0.4), (wide * 0.88, 0.05), body))
                continue
            parts.append(block((x, y, z), (x + 0.03, y, z), face, drawer if style else door))
            if style:
                parts.append(block((x, y, z), (x + 0.07, y, z), (wide * 0.3, 0.05), handle))
            else:
                side = float(rng.choice(_SIDES)) * wide * 0.33
                parts.append(block((x, y + side, z), (x + 0.07, y + side, z), (0.05, min(0.2, high / 2)), handle))
    if _chance(rng, 0.25):
        y = rng.uniform(-0.3, 0.3) * width
        top = foot + height
        parts.append(block((-0.1 * depth, y, top), (-0.1 * depth, y, top + 0.25), (depth * 0.7, width * 0.35), door))
    return parts


def _car(rng: _Draw) -> list[Primitive]:
    paint, glass, lamp = rng.uniform(0.1, 0.9), rng.uniform(0.05, 0.25), rng.uniform(0.75, 1)
    roof = rng.choice([paint, rng.uniform(0.1, 0.9)])
    width, wheel = rng.uniform(0.36, 0.46), rng.uniform(0.15, 0.22)
    ground, waist = wheel * 0.45, rng.uniform(0.22, 0.32)
    parts = [block((0, 0, ground), (0, 0, waist), (1, width), paint, (rng.uniform(0.9, 1), 0.95))]
    style = rng.choice(["saloon", "hatchback", "van", "pickup", "open"], p=[0.3, 0.25, 0.2, 0.15, 0.1])
    tall = rng.uniform(0.1, 0.17)
    front, back = (
        rng.uniform(0.12, 0.25),
        {"saloon": -0.3, "hatchback": -0.47, "van": -0.48, "pickup": -0.08}.get(style),
    )
    if style == "van":
        tall, front = rng.uniform(0.2, 0.32), rng.uniform(0.3, 0.45)
    if back is None:
        parts.append(block((0.12, 0, waist), (0.05, 0, waist + 0.1), (0.02, width * 0.85), glass))
        for j in _SIDES:
            parts.append(block((-0.12, j * 0.09, waist), (-0.15, j * 0.09, waist + 0.1), (0.06, 0.1), glass))
    else:
        lean_front, lean_back = rng.uniform(0.05, 0.15), rng.uniform(0.0, 0.12)
        if style in ("van", "pickup"):
            lean_front, lean_back = rng.uniform(0.02, 0.1), 0.01
        bottom, top = front - back, front - back - lean_front - lean_back
        middle, above = (front + back) / 2, (front + back - lean_front + lean_back) / 2
        high = waist + tall
        parts.append(block((middle, 0, waist), (above, 0, high), (bottom, width * 0.93), glass, (top / bottom, 0.85)))
        parts.append(block((above, 0, high), (above, 0, high + 0.025), (top, width * 0.79), roof))
        for x in rng.uniform(back + lean_back + 0.04, front - lean_front - 0.04, int(rng.integers(1, 4))):
            parts.append(block((x, 0, waist), (x, 0, high), (0.035, width * 0.945), paint, (1, 0.85)))
        if style == "van" and _chance(rng, 0.6):
            parts.append(block((back / 2, 0, waist), (back / 2, 0, high), (-back, width * 0.95), paint, (0.98, 0.86)))
        if style == "pickup":
            for j in _SIDES:
                y = j * width * 0.45
                parts.append(block((-0.28, y, waist), (-0.28, y, waist + 0.06), (0.4, 0.03), paint))
            if _chance(rng, 0.5):
                load = rng.uniform(0.1, 0.9)
                parts.append(ball((-0.28, rng.uniform(-0.08, 0.08), waist), (0.25, 0.2, 0.25), load))
        if _chance(rng, 0.25):
            y = rng.uniform(-0.1, 0.1)
            parts.append(block((above, y, high), (above, y, high + 0.08), (top * 0.5, width * 0.4), lamp))
    for j in _SIDES:
        for x in (0.31, -0.3):
            rim, tyre = j * width * 0.515, j * width * 0.3
            parts.append(cone((x, tyre, wheel / 2), (x, rim, wheel / 2), (wheel, wheel), 0.06))
            parts.append(cone((x, rim, wheel / 2), (x, rim * 1.01, wheel / 2), (wheel * 0.55, wheel * 0.55), lamp))
        y, z = j * width * 0.36, (ground + waist * 2) / 3
        parts.append(block((0.4, y, z), (0.505, y, z), (0.07, 0.04), lamp))
        parts.append(block((-0.505, y, z), (-0.4, y, z), (0.06, 0.04), 0.35))
    parts.append(block((0.45, 0, ground + 0.03), (0.51, 0, ground + 0.03), (width * 0.6, 0.05), 0.1))
    if style in ("saloon", "open") and _chance(rng, 0.3):
        parts.append(
            block((-0.46, -width * 0.4, waist + 0.05), (-0.46, width * 0.4, waist + 0.05), (0.08, 0.02), paint)
        )
    return parts


def _phone(rng: _Draw) -> list[Primitive]:
    body, screen, key = rng.uniform(0.1, 0.85), rng.uniform(0.05, 0.9), rng.uniform(0.05, 0.95)
    if _chance(rng, 0.25):  # one that stands on a desk
        width, rise = rng.uniform(0.5, 0.9), rng.uniform(0.15, 0.3)
        side = rng.choice([-0.3, 0.3]) * width
        parts = [
            block((0, 0, 0), (-0.1, 0, rise), (0.7, width), body, (0.6, 0.9)),
            block((-0.35, side, rise + 0.06), (0.25, side, rise + 0.06), (0.12, 0.08), screen),
            cone((-0.3, side, rise - 0.06), (-0.3, side, rise + 0.07), (0.17, 0.17), screen),
            cone((0.2, side, rise - 0.14), (0.2, side, rise + 0.07), (0.17, 0.17), screen),
        ]
        for x in (-0.18, -0.06, 0.06):
            for y in np.array([-0.1, 0.03, 0.16]) * width - side / 3:
                parts.append(block((x, y, 0), (x, y, rise + 0.03), (0.06, 0.08 * width), key))
        return parts
    width, thick, height = rng.uniform(0.4, 0.6), rng.uniform(0.05, 0.2), 1.0
    lean, split = 0.0, rng.uniform(0.4, 0.6)
    keys = _chance(rng, 0.65)
    if keys and _chance(rng, 0.35):
        lean = rng.uniform(0.1, 0.35)  # a folding one, half open
    bottom = split if keys else rng.uniform(0.08, 0.16)
    shade = rng.choice([body, rng.uniform(0.1, 0.85)])
    parts = [
        block((lean, 0, 0), (0, 0, split), (thick, width), body),
        block((0, 0, split), (lean, 0, height), (thick, width), shade),
    ]

    def face(z: float) -> float:
        return thick / 2 + lean * abs(z - split) / (1 - split if z > split else split)

    low, high = bottom + 0.05, rng.uniform(0.85, 0.95)
    parts.append(
        block((face(low) - 0.01, 0, low), (face(high) - 0.01, 0, high), (0.04, width * rng.uniform(0.75, 0.92)), screen)
    )
    rows = int(rng.integers(3, 5)) if keys else 1
    columns = 3 if keys else 1
    for row in range(rows):
        for column in range(columns):
            z = bottom * (row + 0.7) / (rows + 0.4)
            y = width * 0.28 * (column - (columns - 1) / 2)
            parts.append(
                block((face(z) - 0.03, y, z), (face(z) + 0.02, y, z), (width * 0.18, bottom / rows * 0.5), key)
            )
    if _chance(rng, 0.4):
        y = rng.choice(_SIDES) * width * 0.38
        parts.append(
            cone((lean - 0.02, y, height), (lean - 0.02, y, height + rng.uniform(0.1, 0.5)), (0.07, 0.07), key)
        )
    y, z = rng.uniform(-0.3, 0.3) * width, rng.uniform(0.75, 0.9)
    back = lean * (z - split) / (1 - split) - thick / 2
    if lean == 0:
        parts.append(cone((back, y, z), (back - 0.03, y, z), (0.15, 0.15), rng.uniform(0.05, 0.9)))
        parts.append(block((back, 0, 0.3), (back - 0.02, 0, 0.3), (width * 0.8, rng.uniform(0.1, 0.4)), key))
    return parts


def _chair(rng: _Draw) -> list[Primitive]:
    frame, seat, back_shade = rng.uniform(0.08, 0.9, 3)
    width, depth = rng.uniform(0.42, 0.62), rng.uniform(0.42, 0.58)
    height, thick = rng.uniform(0.35, 0.5), rng.uniform(0.04, 0.14)
    make: Callable[..., Primitive] = block if _chance(rng, 0.75) else cone
    top = height + thick
    parts = [make((0, 0, height), (0, 0, top), (depth, width), seat)]
    legs = rng.choice(["four", "star", "sled", "solid"], p=[0.55, 0.2, 0.15, 0.1])
    if legs == "four":
        parts += _four_legs(rng, depth, width, height, frame)
        if _chance(rng, 0.4):
            for j in _SIDES:
                y, z = j * width * 0.46, height * 0.4
                parts.append(block((-depth / 2, y, z), (depth / 2, y, z), (0.03, 0.03), frame))
    elif legs == "star":
        parts.append(cone((0, 0, 0.06), (0, 0, height), (0.07, 0.07), frame))
        for angle in np.arange(5) * (2 * np.pi / 5) + rng.uniform(0, 1):
            x, y = 0.28 * np.cos(angle), 0.28 * np.sin(angle)
            parts.append(block((0, 0, 0.08), (x, y, 0.06), (0.06, 0.06), frame))
            parts.append(ball((x, y, 0.035), (0.07, 0.07, 0.07), 0.08))
    elif legs == "sled":
        for j in _SIDES:
            y, x = j * width * 0.47, depth * 0.46
            parts.append(block((-x, y, 0.02), (x, y, 0.02), (0.05, 0.04), frame))
            parts.append(block((x, y, 0.0), (x, y, height), (0.04, 0.05), frame))
            if _chance(rng, 0.5):
                parts.append(block((-x, y, 0.0), (-x, y, height), (0.04, 0.05), frame))
    else:
        parts.append(block((0, 0, 0), (0, 0, height), (depth * 0.9, width * 0.9), frame, (rng.uniform(0.7, 1.1), 1)))
    lean, rise, x = rng.uniform(0, 0.18), rng.uniform(0.25, 0.75), -depth / 2 + 0.03
    low = top + rng.choice([0.0, rng.uniform(0.05, 0.2)])

    def at(share: float, y: float) -> tuple[float, float, float]:
        return x - lean * share, y, low + (rise - low + top) * share

    style = rng.choice(["panel", "bars", "rungs", "round"], p=[0.4, 0.2, 0.2, 0.2])
    if style == "panel":
        parts.append(
            block(
                at(0, 0),
                at(1, 0),
                (rng.uniform(0.04, 0.1), width * rng.uniform(0.7, 1)),
                back_shade,
                (1, rng.uniform(0.7, 1)),
            )
        )
    elif style == "round":
        parts.append(ball(at(0.55, 0), (0.1, width * rng.uniform(0.8, 1.1), (rise - low + top) * 0.95), back_shade))
    else:
        for y in np.linspace(-0.46, 0.46, int(rng.integers(3, 7)) if style == "bars" else 2) * width:
            parts.append(block(at(0, y), at(1, y), (0.04, 0.04), back_shade))
        for share in np.linspace(0.95, 0.3, 1 if style == "bars" else int(rng.integers(2, 4))):
            parts.append(
                block(at(share, -width / 2), at(share, width / 2), (0.04, rng.uniform(0.06, 0.13)), back_shade)
            )
    if low > top:
        for y in (-width * 0.25, width * 0.25):
            parts.append(block((x, y, height), at(0.3, y), (0.03, 0.04), frame))
    for j in _sides(rng, both=0.35, none=0.5):
        y, z, front = j * width * 0.52, top + rng.uniform(0.14, 0.25), rng.uniform(0, 0.45) * depth
        parts.append(block((x, y, z), (front, y, z), (0.07, 0.04), rng.choice([frame, seat])))
        parts.append(block((front - 0.03, y, height), (front - 0.03, y, z), (0.05, 0.05), frame))
    if _chance(rng, 0.2):
        parts.append(block(at(0.95, 0), at(1.25, 0), (0.08, width * 0.5), seat))
    return parts


def _display(rng: _Draw) -> list[Primitive]:
    case, screen, stand = rng.uniform(0.1, 0.9), rng.uniform(0.05, 0.9), rng.uniform(0.08, 0.85)
    width, thick = 1.0, rng.uniform(0.04, 0.12)
    height = width * rng.choice([0.56, 0.62, 0.75]) * rng.uniform(0.9, 1.1)
    lift, lean, shift = rng.uniform(0.06, 0.3), rng.uniform(-0.05, 0.15), 0.0
    x = thick / 2
    parts = [block((0, 0, lift), (-lean, 0, lift + height), (thick, width), case)]

    def front(z: float, above: float) -> tuple[float, float]:
        return x - lean * (z - lift) / height + above, z

    def panel(y: float, low: float, high: float, wide: float, shade: float, above: float) -> Primitive:
        (first, bottom), (second, end) = front(lift + low * height, above), front(lift + high * height, above)
        return block((first, y, bottom), (second, y, end), (0.02, wide), shade)

    bezel = rng.uniform(0.03, 0.1)
    parts.append(panel(0, bezel * rng.uniform(1, 2.5), 1 - bezel * 1.5, width - 2 * bezel, screen, -0.005))
    for _ in range(int(rng.integers(0, 4))):  # what it shows
        y, low = rng.uniform(-0.25, 0.25), rng.uniform(0.2, 0.6)
        parts.append(panel(y, low, low + rng.uniform(0.1, 0.25), rng.uniform(0.1, 0.4), rng.uniform(0.05, 0.95), 0))
    if _chance(rng, 0.3):  # a tube behind it
        deep = rng.uniform(0.3, 0.6)
        z = lift + height / 2
        taper = rng.uniform(0.4, 0.8)
        parts.append(block((-lean / 2, 0, z), (-deep, 0, z), (width * 0.95, height * 0.9), case, (taper, taper)))
        shift = -deep / 2
    style = rng.integers(3)
    if style == 0:
        for j in _SIDES:
            y = j * rng.uniform(0.3, 0.4)
            parts.append(block((shift, y, 0), (0, y, lift + 0.02), (0.3, 0.06), stand, (0.3, 1)))
    else:
        round_foot, neck = style == 1, rng.uniform(0.06, 0.25)
        size = (rng.uniform(0.25, 0.4), rng.uniform(0.3, 0.6))
        make: Callable[..., Primitive] = cone if round_foot else block
        parts.append(make((shift, 0, 0), (shift, 0, 0.04), size, stand))
        parts.append(block((shift - 0.03, 0, 0.02), (shift - 0.03, 0, lift + height * 0.4), (0.06, neck), stand))
    if _chance(rng, 0.3):
        y = rng.choice(_SIDES) * (width / 2 + 0.06)
        parts.append(block((0, y, lift), (-lean, y, lift + height), (thick * 1.2, 0.11), rng.uniform(0.1, 0.9)))
    return parts


def _lamp(rng: _Draw) -> list[Primitive]:
    metal, cloth = rng.uniform(0.08, 0.7), rng.uniform(0.3, 0.95)
    pole, foot = rng.uniform(0.03, 0.06), rng.uniform(0.25, 0.5)
    style = rng.choice(["table", "floor", "desk", "ceiling"], p=[0.3, 0.25, 0.25, 0.2])
    make: Callable[..., Primitive] = cone if _chance(rng, 0.75) else block

    def shade(x: float, y: float, bottom: float, high: float, wide: float) -> Primitive:
        taper = rng.uniform(0.3, 1.0)
        if make is block:
            return block((x, y, bottom), (x, y, bottom + high), (wide, wide), cloth, (taper, taper))
        return cone((x, y, bottom), (x, y, bottom + high), (wide, wide), cloth, taper)

    if style == "table":
        tall, wide = rng.uniform(0.3, 0.6), rng.uniform(0.2, 0.4)
        vase = rng.choice(["ball", "cone", "pole"])
        parts = [
            make((0, 0, 0), (0, 0, 0.05), (foot, foot), metal),
            cone((0, 0, 0), (0, 0, tall + 0.1), (pole, pole), metal),
        ]
        if vase == "ball":
            parts.append(ball((0, 0, tall / 2 + 0.05), (wide, wide, tall), rng.uniform(0.1, 0.9)))
        elif vase == "cone":
            parts.append(
                make((0, 0, 0.04), (0, 0, tall), (wide, wide), rng.uniform(0.1, 0.9), *([0.4] if make is cone else []))
            )
        parts.append(shade(0, 0, tall + 0.03, rng.uniform(0.2, 0.4), rng.uniform(0.4, 0.75)))
        return parts
    if style == "ceiling":
        arms, drop = int(rng.integers(1, 6)), rng.uniform(0.3, 0.8)
        parts = [
            cone((0, 0, drop), (0, 0, drop + 0.05), (0.25, 0.25), metal),
            cone((0, 0, 0), (0, 0, drop), (pole, pole), metal),
        ]
        reach, wide = (0.0 if arms == 1 else rng.uniform(0.25, 0.5)), rng.uniform(0.18, 0.45) / (1 if arms < 3 else 1.5)
        for angle in np.arange(arms) * (2 * np.pi / arms) + rng.uniform(0, 2 * np.pi):
            x, y = reach * np.cos(angle), reach * np.sin(angle)
            if arms > 1:
                parts.append(block((0, 0, 0.1), (x, y, 0.08), (pole, pole), metal))
            if arms > 1 and make is cone and wide > 0.2:
                parts.append(ball((x, y, -0.02), (wide, wide, wide), cloth))
            else:
                parts.append(shade(x, y, -0.15, rng.uniform(0.15, 0.3), wide))
        return parts
    if style == "floor":
        tall = rng.uniform(1, 1.5)
        lean = rng.choice([0.0, rng.uniform(0, 0.4)])
        angle = rng.uniform(0, 2 * np.pi)
        x, y = lean * np.cos(angle), lean * np.sin(angle)
        parts = [make((0, 0, 0), (0, 0, 0.05), (foot, foot), metal), cone((0, 0, 0), (0, 0, tall), (pole, pole), metal)]
        if lean:
            parts.append(block((0, 0, tall - 0.02), (x, y, tall + 0.02), (pole, pole), metal))
        parts.append(shade(x, y, tall - (0.25 if lean else 0.05), rng.uniform(0.2, 0.35), rng.uniform(0.3, 0.6)))
        if _chance(rng, 0.35):
            z, j = tall * rng.uniform(0.4, 0.7), float(rng.choice(_SIDES))
            parts.append(block((0, 0, z), (0, j * 0.22, z), (pole, pole), metal))
            parts.append(shade(0, j * 0.22, z, 0.15, 0.18))
        return parts
    elbow, tip = rng.uniform(-0.35, 0.0), rng.uniform(0.2, 0.5)
    low, high, side = rng.uniform(0.4, 0.6), rng.uniform(0.55, 0.85), rng.uniform(-0.3, 0.3)
    head = rng.uniform(0.2, 0.35)
    return [
        make((0, 0, 0), (0, 0, 0.06), (foot, foot), metal),
        cone((0, 0, 0.03), (elbow, side / 2, low), (pole, pole), metal),
        block((elbow, side / 2, low), (tip, side, high), (pole, pole), metal),
        ball((elbow, side / 2, low), (0.09, 0.09, 0.09), cloth),
        cone((tip + 0.1, side, high - 0.16), (tip, side, high + 0.06), (head, head), cloth, rng.uniform(0.3, 0.6)),
    ]


def _speaker(rng: _Draw) -> list[Primitive]:
    case, cone_shade, ring = rng.uniform(0.1, 0.85), rng.uniform(0.05, 0.6), rng.uniform(0.1, 0.95)
    width, depth, height = rng.uniform(0.3, 0.55), rng.uniform(0.25, 0.55), rng.uniform(0.5, 1.2)
    taper = rng.choice([1.0, rng.uniform(0.6, 0.95)])
    foot = rng.choice([0.0, 0.05, rng.uniform(0.1, 0.5)], p=[0.4, 0.35, 0.25])
    parts = [block((0, 0, foot), (depth * (1 - taper) / 2, 0, foot + height), (depth, width), case, (taper, 1))]
    if foot > 0.05:
        parts.append(block((0, 0, 0), (0, 0, 0.04), (depth, width * 1.1), ring))
        parts.append(cone((0, 0, 0), (0, 0, foot), (0.1, 0.1), ring))
    elif foot:
        for j in _SIDES:
            parts.append(block((0, j * width * 0.35, 0), (0, j * width * 0.35, foot), (depth * 0.8, 0.06), ring))
    drivers = int(rng.integers(1, 4))
    front = depth / 2
    if _chance(rng, 0.3):
        z = foot + height * 0.3
        parts.append(block((0, 0, z), (front + 0.02, 0, z), (width * 0.9, height * 0.5), cone_shade))
    shares = np.cumsum(np.sort(rng.uniform(0.5, 1.0, drivers))[::-1])
    span, below = height * 0.92 / shares[-1], 0.0
    for share in shares:
        size = min((share - below) * span * 0.9, width * 0.88)
        y = 0.0 if size > width * 0.6 else rng.choice([0, 0, 1, -1]) * (width - size) * 0.4
        z = foot + height * 0.04 + (share + below) / 2 * span
        below = share
        parts.append(cone((0, y, z), (front + 0.03, y, z), (size, size), ring))
        parts.append(cone((0, y, z), (front + 0.035, y, z), (size * 0.8, size * 0.8), cone_shade))
        parts.append(ball((front + 0.03, y, z), (size * 0.25, size * 0.35, size * 0.35), ring))
    if _chance(rng, 0.5):
        y, z = rng.uniform(-0.25, 0.25) * width, foot + height * rng.uniform(0.1, 0.5)
        parts.append(block((-depth / 2 - 0.02, y, z), (0, y, z), (width * 0.4, height * 0.15), ring))
    if _chance(rng, 0.25):
        y = rng.choice(_SIDES) * width * 0.8
        high = height * rng.uniform(0.3, 0.7)
        parts.append(block((0, y, 0), (0, y, high), (depth * 0.7, width * 0.5), case))
        parts.append(cone((0, y, high / 2), (depth * 0.37, y, high / 2), (width * 0.35, width * 0.35), cone_shade))
    return parts


def _sofa(rng: _Draw) -> list[Primitive]:
    cloth, cushion, pillow = rng.uniform(0.12, 0.9), rng.uniform(0.12, 0.9), rng.uniform(0.1, 0.95)
    cushion = rng.choice([cloth * 0.9, cushion])
    width, depth, seat = rng.uniform(0.9, 2.1), rng.uniform(0.7, 0.9), rng.uniform(0.22, 0.32)
    foot, back, arm = rng.uniform(0.03, 0.12), rng.uniform(0.3, 0.5), rng.uniform(0.1, 0.22)
    rear = -depth / 2
    parts = [block((0, 0, foot), (0, 0, foot + seat), (depth, width), cloth)]
    parts += _four_legs(rng, depth * 0.85, width * 0.92, foot, rng.uniform(0.08, 0.6))
    lean = rng.uniform(0, 0.12)
    high = foot + seat + back
    parts.append(block((rear + 0.1, 0, foot), (rear + 0.1 - lean, 0, high), (0.2, width), cloth))
    arms = _sides(rng, both=0.7, none=0.1)
    arm_height, rolled = rng.uniform(0.12, 0.3), _chance(rng, 0.35)
    for j in arms:
        y, z = j * (width - arm) / 2, foot + seat + arm_height
        parts.append(block((0.01, y, foot), (0.01, y, z), (depth, arm), cloth))
        if rolled:
            parts.append(cone((rear, y, z), (depth / 2 + 0.02, y, z), (arm * 1.3, arm * 1.3), cloth))
    right, left = (width / 2 - (arm if j in arms else 0) for j in (-1, 1))
    seats = max(1, round((right + left) / 0.6))
    wide = (right + left) / seats
    for number in range(seats):
        y, z = -right + wide * (number + 0.5), foot + seat
        parts.append(block((0.1, y, z), (0.1, y, z + 0.09), (depth * 0.78, wide * 0.95), cushion, (0.97, 0.95)))
        x = rear + 0.24
        parts.append(block((x, y, z + 0.08), (x - lean, y, z + back * 0.95), (0.13, wide * 0.92), cushion, (0.7, 0.95)))
    if width > 1.4 and _chance(rng, 0.4):
        end, out = rng.choice(_SIDES), rng.uniform(0.4, 0.8)
        x, y, z = depth / 2 + out / 2, end * (width / 2 - 0.35), foot + seat
        parts.append(block((x, y, foot), (x, y, z), (out, 0.7), cloth))
        parts.append(block((x, y, z), (x, y, z + 0.08), (out * 0.96, 0.66), cushion))
    for _ in range(int(rng.integers(0, 3))):
        y = rng.uniform(-right + 0.2, left - 0.2)
        parts.append(ball((rear + 0.38, y, foot + seat + 0.25), (0.16, 0.36, 0.34), pillow))
    return parts


def _table(rng: _Draw) -> list[Primitive]:
    top_shade, leg, extra = rng.uniform(0.1, 0.9, 3)
    height, thick = rng.uniform(0.35, 0.85), rng.uniform(0.03, 0.09)
    width = rng.uniform(0.6, 1.7)
    depth = min(width, rng.uniform(0.5, 0.95))
    style = rng.choice(["rectangle", "round", "desk"], p=[0.5, 0.25, 0.25])
    make: Callable[..., Primitive] = cone if style == "round" else block
    parts = [make((0, 0, height), (0, 0, height + thick), (depth, width), top_shade)]
    legs = rng.choice(["four", "panels", "column"], p=[0.65, 0.2, 0.15])
    if style == "round":
        legs = rng.choice(["column", "four"])
    if style == "desk":
        wide = rng.uniform(0.25, 0.42) * width
        for j in _sides(rng, both=0.25, none=0.0):
            y, drawers = j * (width - wide) / 2, int(rng.integers(1, 4))
            bottom = rng.choice([0.02, height * 0.5])
            parts.append(block((0, y, bottom), (0, y, height), (depth * 0.92, wide), extra))
            high = (height - bottom) / drawers
            for number in range(drawers):
                z = bottom + (number + 0.5) * high
                parts.append(block((0, y, z), (depth * 0.48, y, z), (wide * 0.85, high * 0.8), leg))
                parts.append(block((0, y, z), (depth * 0.52, y, z), (wide * 0.3, 0.04), top_shade))
        if _chance(rng, 0.4):
            y, x = rng.uniform(-0.2, 0.2) * width, -depth * 0.35
            parts.append(block((x, y, height), (x, y, height + 0.3), (depth * 0.25, width * 0.5), extra))
    inner = 0.68 if style == "round" else 0.95
    if legs == "four":
        parts += _four_legs(rng, depth * inner, width * inner, height, leg)
    elif legs == "panels":
        for j in _SIDES:
            y = j * width * rng.uniform(0.3, 0.46)
            parts.append(block((0, y, 0), (0, y, height), (depth * rng.uniform(0.4, 0.95), 0.06), leg))
    else:
        size = rng.uniform(0.06, 0.25)
        parts.append(cone((0, 0, 0), (0, 0, height), (size, size), leg))
        parts.append(make((0, 0, 0), (0, 0, 0.06), (depth * 0.6, width * 0.6), leg))
    if style != "desk" and _chance(rng, 0.3):
        z = height * rng.uniform(0.2, 0.5)
        parts.append(make((0, 0, z), (0, 0, z + 0.03), (depth * inner * 0.95, width * inner * 0.95), extra))
    if _chance(rng, 0.25):
        x, y = rng.uniform(-0.25, 0.25) * depth, rng.uniform(-0.3, 0.3) * width
        parts.append(cone((x, y, height), (x, y, height + thick + rng.uniform(0.1, 0.25)), (0.15, 0.15), extra, 0.7))
    return parts


def _boat(rng: _Draw) -> list[Primitive]:
    hull, deck, cabin, cloth = rng.uniform(0.1, 0.9, 4)
    style = rng.choice(["sail", "motor", "ship"])
    wide, high = rng.uniform(0.18, 0.32), rng.uniform(0.09, 0.2)
    stern, front = -0.5, rng.uniform(0.05, 0.25)
    keel = rng.uniform(0.4, 0.8)
    sheer = rng.uniform(0, 0.08)
    middle, length = (stern + front) / 2, front - stern
    parts = [block((middle, 0, 0), (middle, 0, high), (length, wide * keel), hull, (1, 1 / keel))]
    parts.append(
        block((front, 0, high / 2), (0.5, 0, high / 2 + sheer), (wide * (1 + keel) / 2, high), hull, (0.05, 0.9))
    )
    parts.append(block((middle, 0, high), (middle, 0, high + 0.02), (length * 0.95, wide * 0.85), deck))
    if _chance(rng, 0.4):
        parts.append(block((middle, 0, high * 0.6), (middle, 0, high * 0.8), (length * 1.01, wide * 1.01), cabin))
    if style == "sail":
        mast, tall = rng.uniform(-0.05, 0.2), rng.uniform(0.6, 1.1)
        parts.append(cone((mast, 0, 0), (mast, 0, high + tall), (0.03, 0.03), deck))
        swing, boom = rng.uniform(-0.2, 0.2), rng.uniform(0.3, 0.5)
        low, top = high + 0.12, high + tall * rng.uniform(0.8, 0.97)
        parts.append(block((mast - boom / 2, swing, low), (mast - 0.02, 0, top), (boom, 0.02), cloth, (0.05, 1)))
        if _chance(rng, 0.6):
            parts.append(block((mast + 0.14, 0, low), (mast + 0.03, 0, top * 0.8), (0.25, 0.015), cloth, (0.05, 1)))
        if _chance(rng, 0.6):
            parts.append(block((-0.1, 0, high), (-0.1, 0, high + 0.07), (0.3, wide * 0.6), cabin, (0.8, 0.8)))
        return parts
    start, long = rng.uniform(-0.4, -0.1), rng.uniform(0.15, 0.4)
    level, floors = high, int(rng.integers(1, 4)) if style == "ship" else 1
    for floor in range(floors):
        rise, shrink = rng.uniform(0.07, 0.13), 0.85**floor
        x = start + long / 2
        size = (long * shrink, wide * 0.75 * shrink)
        parts.append(block((x, 0, level), (x - 0.02, 0, level + rise), size, cabin, (rng.uniform(0.7, 1), 0.95)))
        glass = (size[0] * 1.01, size[1] * 1.01)
        parts.append(block((x - 0.01, 0, level + rise * 0.45), (x - 0.013, 0, level + rise * 0.75), glass, 0.1))
        level += rise
    if style == "ship":
        for x in np.linspace(start + long * 0.3, start + long * 0.7, int(rng.integers(1, 3))):
            parts.append(cone((x, 0, level - 0.02), (x - 0.03, 0, level + rng.uniform(0.08, 0.2)), (0.07, 0.07), cloth))
        for x in np.linspace(start + long + 0.1, front, int(rng.integers(0, 4))):
            y = rng.uniform(-0.03, 0.03)
            load = rng.uniform(0.1, 0.9)
            parts.append(block((x, y, high), (x, y, high + rng.uniform(0.05, 0.14)), (0.09, wide * 0.6), load))
    else:
        parts.append(block((-0.58, 0, 0.02), (-0.55, 0, high + 0.07), (0.07, 0.08), 0.12))
    if _chance(rng, 0.6):
        x, y = rng.uniform(-0.4, 0.3), rng.uniform(-0.3, 0.3) * wide
        parts.append(cone((x, y, high), (x, y, level + rng.uniform(0.1, 0.4)), (0.025, 0.025), deck))
    return parts


CATEGORIES: dict[str, Callable[[_Draw], list[Primitive]]] = {
    "airplane": _airplane,
    "bench": _bench,
    "cabinet": _cabinet,
    "car": _car,
    "phone": _phone,
    "chair": _chair,
    "display": _display,
    "lamp": _lamp,
    "speaker": _speaker,
    "sofa": _sofa,
    "table": _table,
    "boat": _boat,
}
"""The paper's categories, and what draws an object of each."""

OBJECTS = _OBJECTS_PER_CATEGORY * len(CATEGORIES)
"""How many objects there are."""
