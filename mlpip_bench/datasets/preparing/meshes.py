"""Renders meshes to the views that view reconstruction reads (paper, appendix E).

An object has ``VIEWS`` views, one every 10 degrees of azimuth: rendered at 128x128, made gray, reduced to 32x32
(Lanczos). The files written are the 32x32 ones: ``<category>/<object>/{00..35}.png``, 8-bit gray. The paper gives the
sizes and the azimuths; the rest was chosen here:

- Camera: perspective, 30 degrees wide, 30 degrees above the horizon, level (up is +Y). The object stands at
  the middle of its bounding box, scaled so that the sphere around it which holds all vertices just fills the picture.
- Azimuth 0 looks from -Z, at the front of ShapeNet v2; the camera then goes counter-clockwise as seen from above, to -X
  (the object's left side) at 90 degrees.
- Light: from above and left of the camera, moving with it. Faces are shaded flat and from both sides: neither the
  file's normals nor the order of its vertices counts, both being inconsistent in ShapeNet.
- Surface: the material's texture where there is one that can be read, else its diffuse color; gray where the mesh has
  no ``model_normalized.mtl``. No highlights, no transparency: what is drawn depends on no order of drawing.
- Background: white.

Each renderer is a process of its own, started anew after a crash or a time-out: a bad mesh costs itself only.
"""

from __future__ import annotations

import contextlib
import csv
import faulthandler
import importlib
import importlib.util
import json
import math
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mlpip_bench.datasets.views import SIDE, VIEWS
from mlpip_bench.utils.errors import UserError, one_line
from mlpip_bench.utils.progress import Reporter

FAILURES = "failed.csv"
RENDER_SIDE = 128
ELEVATION_DEGREES = 30.0
FIELD_OF_VIEW_DEGREES = 30.0
TIMEOUT_SECONDS = 300.0

_NAMES = [f"{view:02d}.png" for view in range(VIEWS)]
_GRAY = 0.6
_AMBIENT = 0.4
_SHOWN = 20  # failures on the screen; the file has them all
_COMMAND = [sys.executable, "-m", "mlpip_bench.datasets.preparing.meshes"]


class MeshError(Exception):
    """One mesh cannot be rendered; the others can."""


def checked_jobs(jobs: int | None) -> int:
    """How many meshes are rendered at once; one a core where that is left open.

    Raises:
        UserError: none, or there is no pyvista to render any.
    """
    jobs = (os.cpu_count() or 1) if jobs is None else jobs
    if jobs < 1:
        raise UserError(f"--jobs must be at least 1; got {jobs}.")
    if importlib.util.find_spec("pyvista") is None:
        raise UserError("rendering meshes needs pyvista, which is not installed: pip install 'mlpip_bench[render]'.")
    return jobs


def render(
    objects: Sequence[str],
    mesh_of: Callable[[str], AbstractContextManager[Path]],
    target: Path,
    reporter: Reporter,
    *,
    jobs: int,
    timeout_seconds: float = TIMEOUT_SECONDS,
    front_degrees: int = 0,
) -> int:
    """Render objects, except for what is rendered already; for whom holds the lock of the folder.

    Args:
        objects: ``<category>/<object>``, sorted.
        mesh_of: the OBJ file of one of them, with its materials next to it, while it is rendered.
        target: gets ``<category>/<object>/{00..35}.png``, the views of an object all at once, and ``failed.csv`` where
            meshes failed.
        reporter: shows the progress and, at the end, which meshes failed and why.
        jobs: how many meshes are rendered at once, each in a process of its own.
        timeout_seconds: the most that one mesh may take.
        front_degrees: azimuth of the camera that looks at the front, which view 0 is to show; a multiple of 10.

    Returns:
        How many meshes failed.

    Raises:
        UserError: no OpenGL: no mesh can be rendered.
    """
    todo = []
    with reporter.stage("looking for rendered views", len(objects)) as step:
        for count, name in enumerate(objects, start=1):
            if not _rendered(target / name):
                todo.append(name)
            step(count)

    def views_of(renderer: _Renderer, name: str) -> bool:
        with mesh_of(name) as mesh:
            views, textured = renderer.render(mesh)
        _write_views(target / name, np.roll(views, -front_degrees * VIEWS // 360, axis=0))
        return textured

    failed, untextured = _render_all(views_of, todo, len(objects), reporter, jobs, timeout_seconds)
    _write_failures(target / FAILURES, failed)
    there = len(objects) - len(todo)
    counts = f"{len(todo) - len(failed)} objects rendered, {there} were there, {len(failed)} failed"
    reporter.say(f"{counts}; the views are in {target}")
    if untextured:
        reporter.say(f"{len(untextured)} objects lack textures and have plain colors there, the first {untextured[0]}")
    for name, reason in list(failed.items())[:_SHOWN]:
        reporter.say(f"failed: {name}: {reason}")
    if failed:
        more = f"{len(failed) - _SHOWN} more and " if len(failed) > _SHOWN else ""
        reporter.say(f"{more}all reasons are in {target / FAILURES}; the same command tries these again")
    return len(failed)


def _rendered(folder: Path) -> bool:
    """Whether all views are there and whole; a power cut may leave some empty."""
    try:
        for name in _NAMES:
            with Image.open(folder / name, formats=("PNG",)) as image:
                if image.size != (SIDE, SIDE) or image.mode != "L":
                    return False
                image.load()
    except Exception:  # on damaged input Pillow raises OSError, SyntaxError, ValueError, struct.error ...
        return False
    return True


def _render_all(
    views_of: Callable[[_Renderer, str], bool],
    todo: list[str],
    total: int,
    reporter: Reporter,
    jobs: int,
    timeout_seconds: float,
) -> tuple[dict[str, str], list[str]]:
    """Render objects; returns what failed with its reason, and what lacks textures."""
    if not todo:
        return {}, []
    renderers = [_Renderer(timeout_seconds) for _ in range(min(jobs, len(todo)))]
    idle: queue.SimpleQueue[_Renderer] = queue.SimpleQueue()
    for renderer in renderers:
        idle.put(renderer)

    def render_one(name: str) -> bool:
        renderer = idle.get()
        try:
            return views_of(renderer, name)
        finally:
            idle.put(renderer)

    failed: dict[str, str] = {}
    untextured = []
    pool = ThreadPoolExecutor(len(renderers))
    try:
        _check_machine(renderers[0])
        with reporter.stage("rendering", total, total - len(todo)) as step:
            futures = {pool.submit(render_one, name): name for name in todo}
            for count, future in enumerate(as_completed(futures), start=total - len(todo) + 1):
                try:
                    if not future.result():
                        untextured.append(futures[future])
                except MeshError as error:
                    failed[futures[future]] = str(error)
                step(count, f"{len(failed)} failed" if failed else "")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for renderer in renderers:
            renderer.close()
        pool.shutdown()
    return dict(sorted(failed.items())), sorted(untextured)


def _check_machine(renderer: _Renderer) -> None:
    """Render a known mesh: where that fails, all would."""
    with tempfile.TemporaryDirectory() as folder:
        mesh = Path(folder, "check.obj")
        mesh.write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n", encoding="ascii")
        try:
            renderer.render(mesh)
        except MeshError as error:
            raise UserError(
                "rendering needs VTK 9.4 or later and OpenGL, by a display, EGL or OSMesa; here even a tetrahedron "
                f"could not be rendered: {error}. On Debian and Ubuntu: apt-get install libegl1 libgl1-mesa-dri."
            ) from error


def _write_views(folder: Path, views: NDArray[np.uint8]) -> None:
    """Write the views of an object, all or none."""
    partial = folder.parent / f".{folder.name}.partial"
    if partial.exists():  # left by a run that was killed
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    for name, view in zip(_NAMES, views, strict=True):
        Image.fromarray(view).save(partial / name)
    if folder.exists():  # with views that are not whole; a folder with anything else in it is left alone
        for name in _NAMES:
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()
    partial.rename(folder)


def _write_failures(path: Path, failed: dict[str, str]) -> None:
    if not failed:
        path.unlink(missing_ok=True)
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["category", "object", "reason"])
        writer.writerows([*name.split("/"), reason] for name, reason in failed.items())


class _Renderer:
    """A renderer in another process, which a mesh may crash or stall."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout = timeout_seconds
        self._process: subprocess.Popen[bytes] | None = None

    def render(self, mesh: Path) -> tuple[NDArray[np.uint8], bool]:
        """Render a mesh.

        Returns:
            ``[VIEWS, SIDE, SIDE]``, gray, and whether all of its textures were found.

        Raises:
            MeshError: the mesh is bad, crashed the renderer, or took too long.
        """
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Event()

        def stop() -> None:
            late.set()
            process.kill()

        watchdog = threading.Timer(self._timeout, stop)
        watchdog.start()
        header = content = b""
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(str(mesh.absolute())).encode() + b"\n")
                process.stdin.flush()
            header = process.stdout.readline()
            if header.endswith(b"\n"):
                content = process.stdout.read(json.loads(header)["bytes"])
        finally:
            watchdog.cancel()
        answer = json.loads(header) if header.endswith(b"\n") else None
        if late.is_set() or answer is None or len(content) != answer["bytes"]:
            self.close()
            if late.is_set():
                raise MeshError(f"it took more than {self._timeout:g} s")
            raise MeshError(f"it crashed the renderer ({_ending(process.returncode)})")
        if answer["reason"]:
            raise MeshError(answer["reason"])
        return np.frombuffer(content, dtype=np.uint8).reshape(VIEWS, SIDE, SIDE), answer["textured"]

    def close(self) -> None:
        """End the process; the next mesh gets a new one."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*_COMMAND, str(2 * self._timeout)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # VTK tells of each texture that is missing
            env={**os.environ, "LP_NUM_THREADS": "1"},  # Mesa's threads: with a process a core they are in the way
            start_new_session=True,  # an interrupt at the terminal reaches the parent alone
        )


def _ending(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit status {code}"


class _Scene:
    """Camera, light and window of one renderer."""

    def __init__(self) -> None:
        self._pyvista: Any = importlib.import_module("pyvista")  # an extra: its types need not be there either
        size = (RENDER_SIDE, RENDER_SIDE)
        self._plotter = self._pyvista.Plotter(off_screen=True, window_size=size, lighting="none")
        self._plotter.set_background("white")
        self._plotter.render_window.SetMultiSamples(0)  # drivers differ in them; the reduction smooths edges
        self._plotter.add_light(self._pyvista.Light(position=(-0.5, 0.5, 1.0), light_type="camera light"))

    def views(self, mesh: Path) -> tuple[NDArray[np.uint8], bool]:
        """What :meth:`_Renderer.render` returns and raises."""
        self._plotter.renderer.RemoveAllViewProps()
        with self._pyvista.VtkErrorCatcher(raise_errors=False, send_to_logging=False) as caught:
            self._read(mesh)
        messages = [" ".join(event.alert.split()) for event in caught.events]
        actors = list(self._plotter.renderer.GetActors())
        if not actors:
            raise MeshError(messages[0] if messages else "it holds nothing that can be drawn")
        self._fit(actors)
        self._paint(actors, plain=not mesh.with_suffix(".mtl").is_file())
        pictures = (self.picture(360 * view / VIEWS) for view in range(VIEWS))
        views = np.stack([np.asarray(p.resize((SIDE, SIDE), Image.Resampling.LANCZOS)) for p in pictures])
        if views.min() == 255:
            raise MeshError("its faces have no area: all views are blank")
        return views, not any("texture" in message for message in messages)

    def _read(self, mesh: Path) -> None:
        materials = mesh.with_suffix(".mtl")
        text = materials.read_text(encoding="utf-8", errors="replace") if materials.is_file() else ""
        with tempfile.TemporaryDirectory() as folder:
            plain = Path(folder, "plain.mtl")
            plain.write_text(_plain_materials(text), encoding="utf-8")
            importer = importlib.import_module("vtkmodules.vtkIOImport").vtkOBJImporter()
            importer.SetFileName(str(_with_whole_faces(mesh, Path(folder))))
            importer.SetFileNameMTL(str(plain))
            importer.SetTexturePath(str(mesh.parent))
            importer.SetRenderWindow(self._plotter.render_window)
            importer.Update()

    def _fit(self, actors: list[Any]) -> None:
        """Put the middle of the bounding box at the origin and the farthest vertex at distance 1."""
        corners = []
        for actor in actors:
            data = self._pyvista.wrap(actor.GetMapper().GetInput())
            used = np.unique(self._pyvista.convert_array(data.GetPolys().GetConnectivityArray()))
            if used.size and (used[0] < 0 or used[-1] >= data.n_points):
                raise MeshError(f"a face has vertex {used[-1] + 1}; there are {data.n_points}")
            corners.append(np.asarray(data.points, dtype=np.float64)[used])
        vertices = np.concatenate(corners)
        if not len(vertices):
            raise MeshError("it has no faces")
        if not np.isfinite(vertices).all():
            raise MeshError("a face has a vertex that is not finite")
        middle = (vertices.min(axis=0) + vertices.max(axis=0)) / 2
        radius = float(np.linalg.norm(vertices - middle, axis=1).max())
        if radius == 0:
            raise MeshError("it has no extent: all vertices of its faces are one point")
        for actor in actors:
            actor.SetScale(1 / radius)
            actor.SetPosition(*(-middle / radius))

    def _paint(self, actors: list[Any], *, plain: bool) -> None:
        for actor in actors:
            surface = actor.GetProperty()
            texture = actor.GetTexture()
            if texture is not None:
                texture.MipmapOn()
                texture.InterpolateOn()
                surface.SetColor(1.0, 1.0, 1.0)
            elif plain:
                surface.SetColor(_GRAY, _GRAY, _GRAY)
            else:
                surface.SetColor(surface.GetDiffuseColor())
            surface.SetAmbient(_AMBIENT)
            surface.SetDiffuse(1 - _AMBIENT)
            surface.SetSpecular(0.0)
            surface.SetOpacity(1.0)
            surface.SetInterpolationToFlat()  # VTK then takes each face's own normal, on the side that is seen

    def picture(self, azimuth_degrees: float) -> Image.Image:
        """The mesh at full size, gray."""
        azimuth, elevation = math.radians(azimuth_degrees), math.radians(ELEVATION_DEGREES)
        distance = 1 / math.sin(math.radians(FIELD_OF_VIEW_DEGREES / 2))  # the unit sphere just fills the view
        level = distance * math.cos(elevation)
        camera = self._plotter.camera
        camera.position = (-level * math.sin(azimuth), distance * math.sin(elevation), -level * math.cos(azimuth))
        camera.focal_point = (0.0, 0.0, 0.0)
        camera.up = (0.0, 1.0, 0.0)
        camera.view_angle = FIELD_OF_VIEW_DEGREES
        camera.clipping_range = (distance - 1.01, distance + 1.01)
        self._plotter.render_window.Render()
        return Image.fromarray(self._plotter.screenshot(return_img=True)).convert("L")


def _with_whole_faces(mesh: Path, folder: Path) -> Path:
    """The mesh, or its copy in a folder without faces of one or two vertices, which VTK takes for an error."""
    content = mesh.read_bytes()
    whole = _NO_FACE.sub(b"", content)
    if whole == content:
        return mesh
    copy = folder / "whole.obj"
    copy.write_bytes(whole)
    return copy


_NO_FACE = re.compile(rb"^f(?:[ \t]+[^\s\\]+){1,2}[ \t]*\r?$", re.M)


def _plain_materials(text: str) -> str:
    """Diffuse colors and textures of an MTL file, in a form that VTK reads: to it 1e-05 and .5 are no numbers."""
    lines = []
    for words in (line.split(maxsplit=1) for line in text.splitlines()):
        if words[:1] == ["Kd"] and len(words) == 2:
            with contextlib.suppress(ValueError):
                lines.append("Kd " + " ".join(f"{min(max(float(x), 0.0), 1.0):.6f}" for x in words[1].split()[:3]))
        elif words[:1] in (["newmtl"], ["map_Kd"]):
            lines.append(" ".join(words).replace("\\", "/"))
    return "\n".join(lines) + "\n"


def _serve(scene: Callable[[], _Scene] = _Scene) -> None:
    """The renderer's process: a mesh a line comes in, a header and the views go out."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints is no answer
    views_of = None
    for line in sys.stdin.buffer:
        faulthandler.dump_traceback_later(float(sys.argv[1]), exit=True)  # outlives no parent that was killed
        content, reason, textured = b"", "", True
        try:
            views_of = views_of or scene().views
            views, textured = views_of(Path(json.loads(line)))
            content = views.tobytes()
        except Exception as error:  # whatever a mesh makes VTK's wrappers raise, the next mesh is not to blame
            reason = str(error) if isinstance(error, MeshError) else one_line(error)
        header = {"bytes": len(content), "reason": reason, "textured": textured}
        out.write(json.dumps(header).encode() + b"\n" + content)
        out.flush()
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    _serve()
