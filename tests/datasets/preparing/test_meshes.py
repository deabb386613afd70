"""Views of meshes, compared with projections computed here; the meshes are made here, too."""

import csv
import functools
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from builders import invoke, skip_where_nothing_renders
from mlpip_bench.datasets import shapenet
from mlpip_bench.datasets.preparing import meshes
from mlpip_bench.datasets.preparing import shapenet as shapenet_meshes
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.locks import locked
from mlpip_bench.utils.progress import Quiet

QUADS = ((0, 2, 3, 1), (4, 5, 7, 6), (0, 1, 5, 4), (2, 6, 7, 3), (0, 4, 6, 2), (1, 3, 7, 5))
POINT = "v 1 1 1\n"


def box(low=(-1, -1, -1), high=(1, 1, 1), first=1) -> str:
    """A box in OBJ's words; its faces begin with vertex ``first``."""
    corners = np.array([(x, y, z) for z in (0, 1) for y in (0, 1) for x in (0, 1)])
    points = np.where(corners, high, low)
    vertices = "".join(f"v {x} {y} {z}\n" for x, y, z in points)
    return vertices + "".join("f " + " ".join(str(first + i) for i in quad) + "\n" for quad in QUADS)


def put(root: Path, name: str, obj: str | bytes, mtl: str | None = None) -> Path:
    mesh = root / name / "models" / "model_normalized.obj"
    mesh.parent.mkdir(parents=True)
    mesh.write_bytes(obj.encode() if isinstance(obj, str) else obj)
    if mtl is not None:
        mesh.with_suffix(".mtl").write_text(mtl)
    return mesh


class Said(Quiet):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, message: str) -> None:
        self.lines.append(message)


def prepare(source: Path, target: Path, **settings) -> tuple[int, str]:
    said = Said()
    failed = shapenet_meshes.prepare(source, target, said, **{"jobs": 2, **settings})
    return failed, "\n".join(said.lines)


def pixels(folder: Path) -> np.ndarray:
    return np.stack([np.asarray(Image.open(folder / f"{view:02d}.png")) for view in range(36)])


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


@pytest.fixture(scope="module", autouse=True)
def _can_render() -> None:
    """Skips where pyvista is not installed or the machine has no OpenGL; tried out in another process."""
    skip_where_nothing_renders()


@pytest.fixture(scope="module")
def scene() -> meshes._Scene:
    return meshes._Scene()


# -- geometry --------------------------------------------------------------------------------------------------------


def projected_hull(points: np.ndarray, azimuth_degrees: float, side: int = 128) -> np.ndarray:
    """Signed distance, in pixels, of each pixel's center to the convex hull of the points' projections; inside > 0.

    The object is turned and tilted before a camera that stays on -Z, unlike in the renderer.
    """
    a, e, half = np.radians([azimuth_degrees, 30.0, 15.0])
    points = points - (points.min(0) + points.max(0)) / 2
    points = points / np.sqrt((points**2).sum(1)).max()
    turn = np.array([[np.cos(a), 0, -np.sin(a)], [0, 1, 0], [np.sin(a), 0, np.cos(a)]])
    tilt = np.array([[1, 0, 0], [0, np.cos(e), np.sin(e)], [0, -np.sin(e), np.cos(e)]])
    x, y, z = tilt @ turn @ points.T
    depth = z + 1 / np.sin(half)
    column = side / 2 * (1 - x / depth / np.tan(half))  # from -Z, +X is on the left
    row = side / 2 * (1 - y / depth / np.tan(half))
    centers = np.arange(side) + 0.5
    inside = np.full((side, side), np.inf)
    for i in range(len(points)):
        for j in range(len(points)):
            normal = np.array([row[i] - row[j], column[j] - column[i]])
            if i == j or np.hypot(*normal) < 1e-9:
                continue
            sides = (column - column[i]) * normal[0] + (row - row[i]) * normal[1]
            if (sides >= -1e-9).all():  # an edge of the hull
                distance = (centers[None] - column[i]) * normal[0] + (centers[:, None] - row[i]) * normal[1]
                inside = np.minimum(inside, distance / np.hypot(*normal))
    return inside


@pytest.mark.parametrize(
    ("low", "high"), [((-1, -1, -1), (1, 1, 1)), ((3, 5, 100), (4, 8, 107)), ((0, 0, 0), (1e-6, 1e-6, 2e-6))]
)
def test_silhouettes_of_boxes_are_their_projections(scene, low, high, tmp_path):
    scene.views(put(tmp_path, "box", box(low, high)))
    corners = np.array([(x, y, z) for x in (0, 1) for y in (0, 1) for z in (0, 1)])
    for azimuth in (0, 45, 90, 200):
        drawn = np.asarray(scene.picture(azimuth)) < 250
        expected = projected_hull(np.where(corners, high, low).astype(float), azimuth)
        assert drawn[expected > 0.6].all(), azimuth
        assert not drawn[expected < -0.6].any(), azimuth
        assert 0.05 < drawn.mean() < 0.7


def dark_spot(view: np.ndarray) -> tuple[float, float]:
    rows, columns = np.nonzero(view < 70)
    return rows.mean() - 15.5, columns.mean() - 15.5


@pytest.mark.parametrize(
    ("where", "right_of_middle", "nearest"), [((0, -0.8), 27, 0), ((-0.8, 0), 0, 9), ((0.8, 0), 18, 27)]
)
def test_the_front_is_minus_z_and_the_camera_goes_round_to_minus_x(scene, where, right_of_middle, nearest, tmp_path):
    x, z = where
    plate = "usemtl white\n" + box((-1, -0.1, -1), (1, 0, 1))
    block = "usemtl black\n" + box((x - 0.2, 0, z - 0.2), (x + 0.2, 0.1, z + 0.2), first=9)
    views, _ = scene.views(put(tmp_path, "plate", plate + block, "newmtl white\nKd 1 1 1\nnewmtl black\nKd 0 0 0\n"))
    spots = np.array([dark_spot(view) for view in views])
    # From above the horizon what is near is low in the picture.
    assert abs((spots[:, 0].argmax() - nearest + 18) % 36 - 18) <= 1  # pixels are coarse
    assert (
        abs((spots[:, 1].argmax() - right_of_middle + 18) % 36 - 18) <= 3
    )  # perspective moves the extreme toward the camera
    assert abs(spots[nearest, 1]) < 0.3
    assert spots[right_of_middle, 1] > 5
    assert spots[(right_of_middle + 18) % 36, 1] < -5


# -- surface ---------------------------------------------------------------------------------------------------------

# Two quads that face -Z; from there +X is on the left, and a texture's v goes up.
WALL = (
    "mtllib model_normalized.mtl\nv 1 -1 0\nv -1 -1 0\nv -1 1 0\nv 1 1 0\nvt 0 0\nvt 1 0\nvt 1 1\nvt 0 1\n"
    "usemtl paint\nf 1/1 2/2 3/3 4/4\n"
)


def quarters(path: Path) -> None:
    """A texture that is white at its top left and black elsewhere."""
    image = np.zeros((64, 64, 3), dtype=np.uint8)
    image[:32, :32] = 255
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


@pytest.mark.parametrize("name", ["../images/texture0.png", "../images/texture0.jpg", "..\\images\\a b.jpg"])
def test_a_texture_is_seen_upright_and_replaces_the_color(scene, name, tmp_path):
    quarters(tmp_path / "wall" / "images" / name.replace("\\", "/").split("/")[-1])
    mesh = put(tmp_path, "wall", WALL, f"newmtl paint\nKd 0 0 0\nmap_Kd {name}\n")
    views, textured = scene.views(mesh)
    assert textured
    top_left, others = views[0, 10:14, 8:14], (views[0, 10:14, 18:24], views[0, 19:22, 8:14], views[0, 19:22, 18:24])
    assert top_left.min() > 150
    assert max(part.max() for part in others) < 20


def test_what_a_missing_or_broken_texture_leaves_is_the_color(scene, tmp_path):
    plain = "newmtl paint\nKd 0.2 0.5 0.8\n"
    expected, textured = scene.views(put(tmp_path, "plain", WALL, plain))
    assert textured
    # Halfway: Rec. 601's gray of the color, under less than full light.
    assert 0.4 * 115 < expected[0, 16, 16] < 116
    (tmp_path / "broken" / "images").mkdir(parents=True)
    (tmp_path / "broken" / "images" / "a.jpg").write_bytes(b"\xff\xd8 no picture")
    for name in ("missing", "broken"):
        views, textured = scene.views(put(tmp_path, name, WALL, plain + "map_Kd ../images/a.jpg\n"))
        assert not textured
        np.testing.assert_array_equal(views, expected)


def test_gray_without_materials(scene, tmp_path):
    bare, _ = scene.views(put(tmp_path, "bare", box()))
    for name, extra in (("lost", "mtllib none.mtl\nusemtl a\n"), ("named", "usemtl a\n")):
        views, _ = scene.views(put(tmp_path, name, extra + box()))
        np.testing.assert_array_equal(views, bare)
    gray, _ = scene.views(put(tmp_path, "gray", "usemtl a\n" + box(), "newmtl a\nKd 0.6 0.6 0.6\n"))
    np.testing.assert_array_equal(gray, bare)


@pytest.mark.parametrize("number", [".25", "2.5e-1", "+0.25", "0.250000000"])
def test_colors_are_read_in_every_form_of_number(scene, number, tmp_path):
    expected, _ = scene.views(put(tmp_path, "usual", "usemtl a\n" + box(), "newmtl a\nKd 0.25 0.25 0.25\n"))
    material = f"# Blender\n\nnewmtl a\r\n\tKd  {number} {number}\t{number}\r\nKs 1e-05 0 0\r\n"
    views, _ = scene.views(put(tmp_path, "other", "usemtl a\n" + box(), material))
    np.testing.assert_array_equal(views, expected)
    assert expected.min() < 64


def test_neither_winding_nor_normals_nor_transparency_nor_highlights_count(scene, tmp_path):
    color = "newmtl a\nKd 0.5 0.5 0.5\n"
    expected, _ = scene.views(put(tmp_path, "plain", "usemtl a\n" + box(), color))
    assert len(np.unique(expected[4, 8:24, 8:24])) > 5  # its faces differ
    lines = box().splitlines()
    turned = lines[:8] + [" ".join(["f", *reversed(line.split()[1:])]) for line in lines[8:11]] + lines[11:]
    wrong = ["vn 0 1 0", *(" ".join(["f", *(f"{v}//1" for v in x.split()[1:])]) if x[0] == "f" else x for x in lines)]
    for name, body, material in (
        ("turned", turned, color),
        ("normals", wrong, color),
        ("glass", lines, color + "d 0\nillum 4\n"),
        ("shiny", lines, color + "Ka 1 1 1\nKs 1 1 1\nNs 900\n"),
    ):
        views, _ = scene.views(put(tmp_path, name, "usemtl a\n" + "\n".join(body) + "\n", material))
        assert np.abs(views.astype(int) - expected).max() <= 1, name


def test_faces_of_one_or_two_vertices_are_passed_over(scene, tmp_path):
    expected, _ = scene.views(put(tmp_path, "box", box()))
    views, _ = scene.views(put(tmp_path, "edges", "f 1 2\n" + box() + "f 3\r\nf 1/1/1\t2/2/2 \nf 4 8"))
    np.testing.assert_array_equal(views, expected)


# -- the whole job ---------------------------------------------------------------------------------------------------

BROKEN = {
    "empty": ("", "no faces"),
    "faceless": (box().split("f")[0], "no faces"),
    "garbage": (np.random.default_rng(0).bytes(5000), ""),
    "nan": (box().replace("v 1 1 1", "v nan 1 1"), "not finite"),
    "infinite": (box().replace("v 1 1 1", "v inf 1 1"), "not finite"),
    "beyond": (box() + "f 1 2 99\n", "a face has vertex 99; there are 8"),
    "zeroth": (box() + "f 0 1 2\n", "indice"),
    "point": (POINT * 3 + "f 1 2 3\n", "no extent"),
    "line": ("v 0 0 0\nv 1 0 0\nv 2 0 0\nf 1 2 3\n", "no area"),
}


def test_failed_meshes_are_listed_and_the_rest_is_rendered(tmp_path):
    source, target = tmp_path / "core", tmp_path / "views"
    for name, (obj, _) in BROKEN.items():
        put(source, f"02691156/{name}", obj)
    (source / "02828884" / "hollow").mkdir(parents=True)
    put(source, "02828884/cube", box())
    put(source, "02828884/wall", WALL, "newmtl paint\nKd 1 0 0\nmap_Kd ../images/gone.jpg\n")
    put(source, "04530566/stray", box() + "v nan nan nan\n")  # no face has it
    put(source, "99999999/other", box())  # not one of the paper's
    failed, said = prepare(source, target)
    assert failed == len(BROKEN) + 1
    with (target / "failed.csv").open(newline="") as file:
        rows = {(row["category"], row["object"]): row["reason"] for row in csv.DictReader(file)}
    assert {name for _, name in rows} == {*BROKEN, "hollow"}
    for name, (_, reason) in BROKEN.items():
        assert reason in rows["02691156", name]
        assert rows["02691156", name]
        assert f"failed: 02691156/{name}: {rows['02691156', name]}" in said
    assert rows["02828884", "hollow"] == "there is no models/model_normalized.obj"
    assert "1 objects lack textures and have plain colors there, the first 02828884/wall" in said
    assert "02933112 (cabinet)" in said
    good = {"02828884/cube", "02828884/wall", "04530566/stray"}
    assert set(content(target)) == {"failed.csv"} | {f"{name}/{view:02d}.png" for name in good for view in range(36)}
    with Image.open(target / "02828884/cube/35.png") as image:
        assert (image.format, image.mode, image.size) == ("PNG", "L", (32, 32))

    # What the reader of rendered views makes of it.
    found = shapenet.find(target)
    assert found is not None
    read = {
        name: images
        for split in found.read().splits.values()
        for name, images in zip(split.class_names, split.images.reshape(-1, 36, 32, 32), strict=True)
    }
    assert set(read) == good
    for name in good:
        np.testing.assert_array_equal(read[name], pixels(target / name))

    # Mended, the list goes.
    for name in (*BROKEN, "../02828884/hollow"):
        (source / "02691156" / name / "models").mkdir(exist_ok=True)
        (source / "02691156" / name / "models" / "model_normalized.obj").write_text(box())
    assert prepare(source, target)[0] == 0
    assert not (target / "failed.csv").exists()


def test_only_what_is_not_there_and_whole_is_rendered(tmp_path):
    source, target = tmp_path / "core", tmp_path / "views"
    for name in "abcd":
        put(source, f"03001627/{name}", box((0, 0, 0), (1, 2, 3)))
    assert prepare(source, target)[0] == 0
    expected = content(target)
    chairs = target / "03001627"
    (chairs / "a" / "07.png").write_bytes(b"")
    (chairs / "b" / "35.png").unlink()
    Image.new("L", (128, 128)).save(chairs / "c" / "00.png")
    (chairs / ".a.partial").mkdir()  # what a kill leaves
    (chairs / ".a.partial" / "00.png").write_bytes(b"\x89PNG")
    before = (chairs / "d" / "00.png").stat()
    failed, said = prepare(source, target)
    assert failed == 0
    assert "3 objects rendered, 1 were there, 0 failed" in said
    assert content(target) == expected
    assert (chairs / "d" / "00.png").stat().st_mtime_ns == before.st_mtime_ns
    # A folder with anything else in it is somebody's.
    (chairs / "a" / "07.png").unlink()
    (chairs / "a" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        prepare(source, target)
    assert (chairs / "a" / "notes.txt").read_text() == "mine"


UNRULY = """
import os, signal, time
from mlpip_bench.datasets.preparing import meshes

class Unruly(meshes._Scene):
    def views(self, mesh):
        name = mesh.parents[1].name
        if "crash" in name:
            os.kill(os.getpid(), signal.SIGSEGV)
        if "hang" in name:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
            time.sleep(600)
        return super().views(mesh)

meshes._serve(Unruly)
"""


@pytest.mark.slow
def test_a_mesh_that_crashes_or_stalls_its_renderer_costs_itself_only(tmp_path, monkeypatch):
    monkeypatch.setattr(meshes, "_COMMAND", [sys.executable, "-c", UNRULY])
    source, target = tmp_path / "core", tmp_path / "views"
    for name in ("crash1", "crash2", "good1", "good2", "hang"):
        put(source, f"02691156/{name}", box())
    failed, said = prepare(source, target, jobs=1, timeout_seconds=10.0)
    assert failed == 3
    for name in ("crash1", "crash2"):
        assert f"failed: 02691156/{name}: it crashed the renderer (SIGSEGV)" in said
    assert "failed: 02691156/hang: it took more than 10 s" in said
    np.testing.assert_array_equal(pixels(target / "02691156" / "good1"), pixels(target / "02691156" / "good2"))


def test_a_machine_that_cannot_render_is_one_error(tmp_path, monkeypatch):
    monkeypatch.setattr(meshes, "_COMMAND", [sys.executable, "-c", "import os; os.abort()"])
    put(tmp_path / "core", "02691156/cube", box())
    with pytest.raises(UserError, match=r"SIGABRT.*apt-get install libegl1"):
        prepare(tmp_path / "core", tmp_path / "views")


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    """Objects enough to be stopped midway."""
    source = tmp_path_factory.mktemp("many")
    for i in range(40):
        put(source, f"02958343/{i:02d}", box((0, 0, 0), (1, 1 + i / 10, 2)))
    put(source, "02958343/bad", "")
    return source


def command(source: Path, target: Path) -> list[str]:
    arguments = ["--from", str(source), "--to", str(target), "--jobs", "1"]
    return [sys.executable, "-m", "mlpip_bench", "data", "prepare", "shapenet", *arguments]


def stopped(source: Path, target: Path, number: signal.Signals) -> tuple[int, str]:
    """Start the command, stop it when some objects are there, and return its status and standard error."""
    # A shell that starts the tests in the background has its children ignore interrupts; a user's does not.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command(source, target), stderr=subprocess.PIPE, text=True, preexec_fn=heed)
    try:
        deadline = time.monotonic() + 60
        while len(list(target.glob("02958343/[0-9]*"))) < 3:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        (child,) = children(process.pid)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{child}/cmdline").exists() and Path(f"/proc/{child}/cmdline").read_bytes():
        assert time.monotonic() < deadline, "a renderer outlives the command"
        time.sleep(0.05)
    return process.returncode, stderr


def children(pid: int) -> Iterator[int]:
    """Python processes that a process started."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(status.read_text().rpartition(")")[2].split()[1]) == pid:
                yield int(status.parent.name)
        except OSError:
            continue


def whole(target: Path) -> int:
    """How many objects there are; each that there is has all views."""
    objects = list(target.glob("02958343/[0-9]*"))
    assert all(pixels(folder).shape == (36, 32, 32) for folder in objects)
    return len(objects)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")
def test_killed_or_interrupted_the_same_command_goes_on_to_the_same_views(many, tmp_path):
    status, _ = stopped(many, tmp_path / "stopped", signal.SIGKILL)
    assert status == -signal.SIGKILL
    after_kill = whole(tmp_path / "stopped")
    status, stderr = stopped(many, tmp_path / "interrupted", signal.SIGINT)
    assert status == 130
    assert "goes on from what is saved" in stderr
    assert "Traceback" not in stderr
    assert 3 <= after_kill < 40
    assert 3 <= whole(tmp_path / "interrupted") < 40
    for name in ("stopped", "interrupted", "uninterrupted"):
        failed, said = prepare(many, tmp_path / name)
        assert failed == 1
        assert "failed: 02958343/bad: it has no faces" in said
        if name == "stopped":
            assert f"{40 - after_kill} objects rendered, {after_kill} were there, 1 failed" in said
    expected = content(tmp_path / "uninterrupted")
    assert len(expected) == 40 * 36 + 1
    for name in ("stopped", "interrupted"):
        assert content(tmp_path / name) == expected


def call(*arguments: object, **environment: str):
    return invoke("data", "prepare", *arguments, **environment)


def test_views_go_below_the_data_folder_where_nothing_else_is_said(tmp_path):
    put(tmp_path / "core", "02691156/cube", box())
    result = call("shapenet", "--from", tmp_path / "core", MLPIP_BENCH_DATA=str(tmp_path / "data"))
    assert result.exit_code == 0, result.output
    assert pixels(tmp_path / "data" / "shapenet" / "02691156" / "cube").min() < 200


def test_a_second_command_says_that_the_first_is_at_work(tmp_path):
    put(tmp_path / "core", "02691156/cube", box())
    with locked(tmp_path / "views" / ".lock"):
        result = call("shapenet", "--from", tmp_path / "core", "--to", tmp_path / "views")
    assert result.exit_code == 2
    assert f"another is at work on {tmp_path / 'views'}. Wait for it" in result.output


def test_bad_input_is_one_error_with_status_2(tmp_path, monkeypatch):
    put(tmp_path / "core", "02691156/cube", box())
    (tmp_path / "empty").mkdir()
    (tmp_path / "bare" / "02691156").mkdir(parents=True)
    (tmp_path / "zipped").mkdir()
    (tmp_path / "zipped" / "02691156.zip").touch()
    (tmp_path / "file").touch()
    to = ("--to", tmp_path / "views")
    core = ("--from", tmp_path / "core")
    for arguments, message in (
        (("mini", *core, *to), "unknown data set to prepare 'mini'"),
        (("shapenet", *core), "pass --to, or --data-root"),
        (("shapenet", *core, "--to", tmp_path / "core" / "views"), "--to must lie outside --from"),
        (("shapenet", *core, "--to", tmp_path / "file"), "--to writable"),
        (("shapenet", *core, *to, "--jobs", 0), "--jobs must be at least 1; got 0"),
        (("shapenet", "--from", tmp_path / "none", *to), "is not a folder"),
        (("shapenet", "--from", tmp_path / "empty", *to), "holds nothing"),
        (("shapenet", "--from", tmp_path / "bare", *to), "a folder for each object"),
        (("shapenet", "--from", tmp_path / "zipped", *to), "holds 02691156.zip. Unpack"),
    ):
        result = call(*arguments)
        assert (result.exit_code, message in result.output) == (2, True), result.output
    monkeypatch.setitem(sys.modules, "pyvista", None)
    result = call("shapenet", *core, *to)
    assert result.exit_code == 2
    assert result.output.count("error:") == 1
    assert "pip install 'mlpip_bench[render]'" in result.output
    assert not (tmp_path / "views").exists()
