"""The stand-in for ShapeNet: its renderer against closed forms and a second one, and what it draws."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial import ConvexHull, Delaunay

from mlpip_bench.datasets.base import SPLITS
from mlpip_bench.datasets.procedural import solids
from mlpip_bench.datasets.procedural.solids import CATEGORIES, Primitive, ball, block, cone, render, solid

AZIMUTHS = np.arange(36) * 10.0
RAYS = 96
# Of the first object of each category, version 1.
FINGERPRINT = "08945392e6b575f781aec479e9b0215d19bb21a05842e08baf3ebc619b211ec8"

Array = NDArray[np.float64]


def to_camera(points: Array, azimuth_degrees: float) -> Array:
    """Right, up and toward the camera: the object is turned to the camera, which is then raised by 30 degrees."""
    a, e = np.deg2rad(azimuth_degrees), np.deg2rad(30)
    x, y, z = np.moveaxis(points, -1, 0)
    ahead, right = np.cos(a) * x + np.sin(a) * y, np.cos(a) * y - np.sin(a) * x
    return np.stack([right, np.cos(e) * z - np.sin(e) * ahead, np.cos(e) * ahead + np.sin(e) * z], axis=-1)


def rays() -> tuple[Array, Array]:
    """Where rays cross the image plane, ``[row, column]`` each."""
    at = (np.arange(RAYS) + 0.5) / RAYS - 0.5
    right, down = np.meshgrid(at, at)
    return right, -down


def to_pixels(picture: NDArray[np.floating]) -> Array:
    """Averages ``[RAYS, RAYS]``, from 0 to 1, to pixels from 0 to 255."""
    return np.asarray(255 * picture.reshape(32, 3, 32, 3).mean(axis=(1, 3)), dtype=np.float64)


def surface(primitive: Primitive) -> Array:
    """Points whose convex hull is the primitive, but for a thousandth."""
    angle = np.linspace(0, 2 * np.pi, 200)
    if primitive.kind == "block":
        corners = [
            (i * w, j * h, k) for i in (-1, 1) for j in (-1, 1) for k, (w, h) in ((-1, (1, 1)), (1, primitive.top))
        ]
        local = np.array(corners)
    elif primitive.kind == "cone":
        ring = np.stack([np.cos(angle), np.sin(angle), -np.ones_like(angle)], axis=-1)
        local = np.concatenate([ring, ring * (*primitive.top, -1)])
    else:
        tilt = np.linspace(0, np.pi, 101)[:, None]
        circle = np.stack([np.sin(tilt) * np.cos(angle), np.sin(tilt) * np.sin(angle), np.cos(tilt) + 0 * angle], -1)
        local = circle.reshape(-1, 3)
    return np.asarray(primitive.center + local @ primitive.axes.T, dtype=np.float64)


def black(primitive: Primitive) -> Primitive:
    return replace(primitive, shade=0.0)


@pytest.mark.parametrize(
    ("azimuth", "width"),
    [(0, 0.5), (45, 0.5 * np.sqrt(2)), (90, 0.5), (20, 0.5 * (np.cos(0.349066) + np.sin(0.349066)))],
)
def test_silhouette_of_a_cube_has_the_area_and_width_of_its_projection(azimuth: float, width: float) -> None:
    cube = block((0, 0, -0.25), (0, 0, 0.25), (0.5, 0.5), 0.0)
    covered = 1 - render([cube], [azimuth])[0] / 255
    corners = np.array([(x, y, z) for x in (-0.25, 0.25) for y in (-0.25, 0.25) for z in (-0.25, 0.25)])
    hull = ConvexHull(to_camera(corners, azimuth)[:, :2])
    assert covered.sum() / 32**2 == pytest.approx(hull.volume, rel=0.02)  # the volume of a plane hull is its area
    assert covered.max(axis=0).sum() / 32 == pytest.approx(width, abs=1.5 / RAYS)
    assert covered.max(axis=1).sum() / 32 == pytest.approx(np.ptp(to_camera(corners, azimuth)[:, 1]), abs=1.5 / RAYS)


def test_a_cube_looks_the_same_from_its_four_sides() -> None:
    views = render([block((0, 0, -0.25), (0, 0, 0.25), (0.5, 0.5), 0.6)], [0, 90, 180, 270, 45])
    for side in views[1:4]:
        np.testing.assert_allclose(side, views[0].astype(float), atol=1)
    assert np.any(np.abs(views[4].astype(float) - views[0]) > 50)


@pytest.mark.parametrize(
    "primitive",
    [
        block((-0.1, 0.05, -0.25), (0.1, -0.05, 0.2), (0.4, 0.3), 0.0, (0.3, 1.2)),
        block((-0.3, 0, 0.1), (0.25, 0.1, 0), (0.02, 0.3), 0.0, (3.0, 0.1)),
        cone((0.1, 0, -0.2), (-0.1, 0.1, 0.2), (0.5, 0.3), 0.0, 0.2),
        cone((0, 0, -0.02), (0, 0, 0.06), (0.8, 0.8), 0.0, 0.1),  # flatter than the camera's elevation
        cone((-0.3, 0, 0), (0.3, 0, 0), (0.4, 0.4), 0.0, 0.0),  # to a point
        cone((0, -0.3, 0), (0, 0.3, 0), (0.3, 0.3), 0.0),
        ball((0.05, -0.05, 0.1), (0.6, 0.2, 0.4), 0.0),
    ],
)
def test_silhouettes_are_the_hulls_of_projected_surfaces(primitive: Primitive) -> None:
    right, up = rays()
    for azimuth, view in zip((0, 35, 90, 200, 310), render([primitive], [0, 35, 90, 200, 310]), strict=True):
        hull = Delaunay(to_camera(surface(primitive), azimuth)[:, :2])
        inside = hull.find_simplex(np.stack([right, up], axis=-1).reshape(-1, 2)) >= 0
        expected = to_pixels(1.0 - inside.reshape(RAYS, RAYS))
        off = np.abs(view - expected)
        assert np.mean(off > 1) < 0.01
        assert off.max() <= 255 / 9 + 1  # a ray next to the polygon that stands for a curve


def test_a_sphere_is_shaded_as_its_closed_form_says() -> None:
    right, up = rays()
    radius, light = 0.4, np.array([-0.48, 0.6, 0.64])
    toward = np.sqrt(np.maximum(radius**2 - right**2 - up**2, 0))
    cosine = (right * light[0] + up * light[1] + toward * light[2]) / radius
    lit = 0.7 * (solids.AMBIENT + (1 - solids.AMBIENT) * np.maximum(cosine, 0))
    expected = to_pixels(np.where(right**2 + up**2 <= radius**2, lit, 1.0))
    for view in render([ball((0, 0, 0), (0.8, 0.8, 0.8), 0.7)], [0, 50, 180]):
        np.testing.assert_allclose(view, expected, atol=0.5 + 1e-6)


def test_light_has_length_one() -> None:
    assert np.linalg.norm(solids.LIGHT) == pytest.approx(1)


@pytest.mark.parametrize("azimuth", [0, 70, 160, 250, 340])
def test_curved_and_slanted_surfaces_are_lit_by_their_normals(azimuth: float) -> None:
    # Points go from the surface to the image, where the renderer goes the other way.
    angle = np.linspace(0, 2 * np.pi, 400)
    height, slope = 0.5, (0.3 - 0.12) / 0.5
    along = np.linspace(0.15, 0.85, 20)[:, None]
    wide = 0.3 - 0.18 * along
    side = np.stack([wide * np.cos(angle), wide * np.sin(angle), height * (along - 0.5) + 0 * angle], -1).reshape(-1, 3)
    side_normal = np.stack([np.cos(angle), np.sin(angle), slope + 0 * angle], -1) + np.zeros((20, 1, 1))
    tilt = np.linspace(0, np.pi, 60)[:, None]
    unit = np.stack([np.sin(tilt) * np.cos(angle), np.sin(tilt) * np.sin(angle), np.cos(tilt) + 0 * angle], -1)
    half = np.array([0.45, 0.2, 0.3])
    cases = [
        (cone((0, 0, -0.25), (0, 0, 0.25), (0.6, 0.6), 0.9, 0.4), side, side_normal.reshape(-1, 3)),
        (ball((0, 0, 0), (0.9, 0.4, 0.6), 0.9), (unit * half).reshape(-1, 3), (unit / half).reshape(-1, 3)),
        (block((0.1, 0, -0.2), (-0.1, 0, 0.2), (0.5, 0.3), 0.9), np.array([[0.25, 0, 0]]), np.array([[0.4, 0, 0.2]])),
    ]
    for primitive, points, normals in cases:
        normal = to_camera(normals / np.linalg.norm(normals, axis=-1, keepdims=True), azimuth)
        shown = normal[:, 2] > 0.5  # clear of the rim, whose pixels are part background
        place = to_camera(points[shown], azimuth)
        expected = 255 * 0.9 * (solids.AMBIENT + (1 - solids.AMBIENT) * np.maximum(normal[shown] @ solids.LIGHT, 0))
        row, column = (0.5 - place[:, 1]) * 32, (place[:, 0] + 0.5) * 32
        got = render([primitive], [azimuth])[0][row.astype(int), column.astype(int)]
        assert primitive.kind == "block" or len(got) > 300
        if len(got):
            assert np.mean(np.abs(got - expected) < 12) > 0.93  # a pixel is wide
            assert np.mean(got - expected) == pytest.approx(0, abs=1)


def test_the_nearest_surface_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solids, "AMBIENT", 1.0)  # shades alone
    scene = [
        block((-0.1, 0.05, -0.3), (0.1, -0.1, 0.2), (0.3, 0.3), 0.1, (0.4, 0.8)),
        cone((0.05, -0.3, 0), (0.0, 0.35, 0.1), (0.3, 0.2), 0.5, 0.3),
        ball((0.15, 0.1, 0.0), (0.3, 0.4, 0.35), 0.8),
    ]

    def inside(primitive: Primitive, points: Array) -> NDArray[np.bool_]:
        x, y, z = np.moveaxis((points - primitive.center) @ np.linalg.inv(primitive.axes).T, -1, 0)
        if primitive.kind == "ball":
            return np.asarray(x**2 + y**2 + z**2 <= 1)
        wide, deep = (1 + (top - 1) * (z + 1) / 2 for top in primitive.top)
        if primitive.kind == "block":
            return np.asarray((np.abs(x) <= wide) & (np.abs(y) <= deep) & (np.abs(z) <= 1))
        return np.asarray((np.hypot(x, y) <= wide) & (np.abs(z) <= 1))

    right, up = rays()
    steps = np.linspace(0.5, -0.5, 200)
    for azimuth in (15, 250):
        frame = to_camera(np.eye(3), azimuth).T  # rows: the camera's axes
        points = right[..., None, None] * frame[0] + up[..., None, None] * frame[1] + steps[:, None] * frame[2]
        entry = [np.where(hit.any(-1), hit.argmax(-1), 999) for hit in (inside(p, points) for p in scene)]
        first = np.argmin(entry, axis=0)
        shades: Array = np.where(np.min(entry, axis=0) < 999, np.array([p.shade for p in scene])[first], 1.0)
        off = np.abs(render(scene, [azimuth])[0] - to_pixels(shades))
        assert len(np.unique(first)) == 3
        assert np.mean(off > 1) < 0.04  # rays between whose steps two surfaces cross
        assert off.mean() < 0.6


@pytest.mark.parametrize("category", CATEGORIES)
def test_turning_an_object_is_moving_the_camera_back(category: str) -> None:
    parts = solid(f"{category}/0003")
    cos, sin = np.cos(np.deg2rad(10)), np.sin(np.deg2rad(10))
    turn = np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]])
    turned = [replace(part, center=turn @ part.center, axes=turn @ part.axes) for part in parts]
    still = render(parts, AZIMUTHS)
    off = np.abs(np.roll(still, 1, axis=0).astype(float) - render(turned, AZIMUTHS))
    assert np.mean(off > 1) < 1e-3
    assert np.any(np.abs(still[0].astype(float) - still[1]) > 1) or category == "lamp"


@pytest.mark.parametrize("category", CATEGORIES)
def test_objects_fit_the_frame_from_everywhere(category: str) -> None:
    for number in range(1, 31):
        parts = solid(f"{category}/{number:04d}")
        points = np.concatenate([surface(part) for part in parts])
        assert np.linalg.norm(points, axis=-1).max() <= 0.5 + 1e-9  # half the frame
        assert np.linalg.norm(np.ptp(points, axis=0)) == pytest.approx(1, abs=2e-3)
        np.testing.assert_allclose(points.max(axis=0), -points.min(axis=0), atol=2e-3)
        assert all(0 <= part.shade <= 1 for part in parts)


@pytest.mark.parametrize("category", CATEGORIES)
def test_objects_of_a_category_differ_and_so_do_their_views(category: str) -> None:
    images = np.stack([render(solid(f"{category}/{number:04d}"), AZIMUTHS[::3]) for number in range(1, 11)]) / 255
    assert np.all((images.min(axis=(2, 3)) < 0.8) & (images.max(axis=(2, 3)) == 1))
    for i in range(len(images)):
        for j in range(i):
            assert np.mean((images[i] - images[j]) ** 2) > 1e-3
    assert np.mean((images - images.mean(axis=0)) ** 2) > 0.008  # no object is guessed from the others
    quarter = np.mean((images - np.roll(images, 3, axis=1)) ** 2, axis=(1, 2, 3))
    assert quarter.mean() > 0.008  # nor a view from another
    half = np.mean((images - np.roll(images, 6, axis=1)) ** 2, axis=(1, 2, 3))
    assert half.mean() > 2e-3  # the front is not the back


def test_what_is_drawn_changes_only_with_the_version() -> None:
    drawn = hashlib.sha256(b"".join(render(solid(f"{category}/0001"), AZIMUTHS).tobytes() for category in CATEGORIES))
    message = "what is drawn has changed: raise VERSION of the data set, and pin the new fingerprint here"
    assert drawn.hexdigest() == FINGERPRINT, message


def test_a_build_is_a_data_set_of_views_and_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solids, "_OBJECTS_PER_CATEGORY", 1)
    reported: list[tuple[int, int]] = []
    dataset = solids.build_solids(lambda done, total: reported.append((done, total)))
    assert reported == [(done, 12) for done in range(1, 13)]
    assert (dataset.name, dataset.source, dataset.options) == ("solids", "procedural", {"version": solids.VERSION})
    names = [name for split in SPLITS for name in dataset.splits[split].class_names]
    assert sorted(names) == sorted(f"{category}/0001" for category in CATEGORIES)
    data = dataset.splits["train"]
    assert data.image_shape == (1, 32, 32)
    np.testing.assert_array_equal(data.images[:36, 0], render(solid(data.class_names[0]), AZIMUTHS))
    assert solids.build_solids().fingerprint == dataset.fingerprint
