"""Furniture: the meshes of Debian's package ``sweethome3d-furniture``, rendered.

The package has catalogs, zip archives ``*.sh3f`` with a ``PluginFurnitureCatalog.properties`` that names the pieces:
title, category, creator, OBJ file, and for some the rotation that sets them upright. Up is +Y and the front is +Z, so
view 0 is that of a camera at an azimuth of 180 degrees.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from mlpip_bench.datasets.archives import broken, read_zip
from mlpip_bench.datasets.furniture import CATEGORIES
from mlpip_bench.datasets.preparing import meshes
from mlpip_bench.datasets.preparing.preparer import Preparer, cell, folder_errors, write_facts, writing_to
from mlpip_bench.datasets.reading import listed
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.progress import Reporter

CATALOG = PurePosixPath("PluginFurnitureCatalog.properties")
INSTALLED = Path("/usr/share/sweethome3d/furniture")

_PROPERTY = re.compile(r"^(\w+)(?:#(\d+))?[ \t]*=[ \t]*(.*?)[ \t]*$", re.M)


@dataclass(frozen=True)
class Piece:
    """A piece of a catalog.

    Attributes:
        name: ``<category>/<object>``.
        catalog: the archive.
        mesh: its OBJ file there.
        rotation: nine numbers by rows that set it upright; empty where it stands.
        title, creator, license, version: for the attribution; the version is that of the catalog.
    """

    name: str
    catalog: Path
    mesh: PurePosixPath
    rotation: tuple[float, ...]
    title: str
    creator: str
    license: str
    version: str


def prepare(
    source: Path,
    target: Path,
    reporter: Reporter,
    jobs: int | None = None,
    *,
    timeout_seconds: float = meshes.TIMEOUT_SECONDS,
) -> int:
    """Render the pieces of all catalogs, except for what is rendered already.

    Args:
        source: folder of ``*.sh3f``.
        target: gets ``<category>/<object>/{00..35}.png``, the facts, and ``failed.csv`` where meshes failed.
        reporter: shows the progress and, at the end, which meshes failed and why.
        jobs: how many meshes are rendered at once, each in a process of its own; None for one a core.
        timeout_seconds: the most that one mesh may take.

    Returns:
        How many meshes failed.

    Raises:
        UserError: bad folders, no pyvista, or no OpenGL; no mesh can be rendered.
    """
    jobs = meshes.checked_jobs(jobs)
    with folder_errors(target):
        pieces = {piece.name: piece for path in _catalogs(source) for piece in pieces_of(path)}
        with writing_to(target, source):
            failed = meshes.render(
                sorted(pieces),
                lambda name: _unpacked(pieces[name]),
                target,
                reporter,
                jobs=jobs,
                timeout_seconds=timeout_seconds,
                front_degrees=180,
            )
            _write(target, list(pieces.values()), failed)
    return failed


def _catalogs(source: Path) -> list[Path]:
    if not source.is_dir():
        raise UserError(f"--from must be the folder of Sweet Home 3D's furniture; {source} is not a folder.")
    paths = sorted(source.glob("*.sh3f"))
    if not paths:
        held = listed(sorted(path.name for path in source.iterdir())) or "nothing"
        raise UserError(
            f"--from must hold catalogs of Sweet Home 3D, *.sh3f; {source} holds {held}. Install Debian's package "
            f"sweethome3d-furniture, whose folder is {INSTALLED}."
        )
    return paths


def pieces_of(path: Path) -> list[Piece]:
    """The pieces of a catalog.

    Raises:
        UserError: it is no catalog.
    """
    content = read_zip(path, lambda name: name == CATALOG).get(CATALOG)
    if content is None:
        raise broken(path, f"a catalog with {CATALOG}", "that is not in it")
    catalog: dict[str, str] = {}
    numbered: dict[str, dict[str, str]] = {}
    for key, number, value in _PROPERTY.findall(content.decode("latin-1").replace("\r\n", "\n")):
        (numbered.setdefault(number, {}) if number else catalog)[key] = _plain(value)
    try:
        return [_piece(path, of, catalog) for of in numbered.values() if "model" in of]
    except (KeyError, ValueError) as error:
        raise broken(path, f"a catalog whose {CATALOG} says what each piece is", error) from error


def _plain(text: str) -> str:
    r"""A value of a properties file, in which other letters are written as ``\u00e9``."""
    return re.sub(r"\\u([0-9a-fA-F]{4})", lambda match: chr(int(match[1], 16)), text)


def _piece(path: Path, of: Mapping[str, str], catalog: Mapping[str, str]) -> Piece:
    category = of["category"].lower().replace(" ", "-")
    if category not in CATEGORIES:
        raise ValueError(f"{of['category']!r} is no known category")
    mesh = PurePosixPath(of["model"].lstrip("/"))
    rotation = tuple(map(float, of.get("modelRotation", "").split()))
    if len(rotation) not in (0, 9):
        raise ValueError(f"a rotation has 9 numbers, not {len(rotation)}")
    name = re.sub(r"[^\w-]+", "-", "-".join(mesh.parent.parts))
    said = of["name"], of.get("creator", ""), catalog.get("license", ""), catalog.get("version", "")
    return Piece(f"{category}/{name}", path, mesh, rotation, *said)


@contextmanager
def _unpacked(piece: Piece) -> Iterator[Path]:
    """The mesh with all that lies next to it in its catalog, upright."""
    members = read_zip(piece.catalog, lambda name: piece.mesh.parent in name.parents)
    if piece.mesh not in members:
        raise meshes.MeshError(f"there is no {piece.mesh} in {piece.catalog.name}")
    with tempfile.TemporaryDirectory() as folder:
        for name, content in members.items():
            path = Path(folder, *name.relative_to(piece.mesh.parent).parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(turned(content, piece.rotation) if name == piece.mesh and piece.rotation else content)
        yield Path(folder, piece.mesh.name)


def turned(obj: bytes, rotation: Sequence[float]) -> bytes:
    """An OBJ file whose vertices are rotated; normals are left as they are, since the renderer takes none."""
    matrix = np.array(rotation).reshape(3, 3)
    lines = obj.split(b"\n")
    for i, line in enumerate(lines):
        words = line.split()
        if words[:1] == [b"v"]:
            x, y, z = matrix @ np.array([float(word) for word in words[1:4]])
            lines[i] = f"v {x:.9g} {y:.9g} {z:.9g}".encode()
    return b"\n".join(lines)


def _write(target: Path, pieces: Sequence[Piece], failed: int) -> None:
    catalogs = sorted({f"{piece.catalog.name} {piece.version}".strip() for piece in pieces})
    facts = {
        "name": "furniture",
        "title": "Furniture: human-made meshes of Sweet Home 3D's catalogs, 36 views each",
        "source": "Debian package sweethome3d-furniture: " + ", ".join(catalogs),
        "made_by": "data prepare furniture",
        "citation": "Sweet Home 3D, additional 3D models; ATTRIBUTION.md names the creator of each piece.",
        "license": dict(Counter(piece.license for piece in pieces).most_common()),
        "counts": {"objects": len(pieces) - failed, "failed": failed}
        | {"categories": dict(sorted(Counter(piece.name.partition("/")[0] for piece in pieces).items()))},
    }
    rows = [
        f"| {piece.name} | {cell(piece.title)} | {cell(piece.creator)} | {cell(piece.license)} |"
        for piece in sorted(pieces, key=lambda piece: piece.name)
    ]
    head = "| object | title | creator | license |\n| --- | --- | --- | --- |"
    text = f"# {facts['title']}\n\nMade of {facts['source']}. The meshes were rendered, gray, at 32x32 pixels.\n\n"
    write_facts(target, facts, text + "\n".join([head, *rows]) + "\n")


PREPARER = Preparer(
    "views of Sweet Home 3D's furniture, 32x32",
    "the folder of Debian's sweethome3d-furniture, with *.sh3f",
    "furniture",
    prepare,
    INSTALLED,
)
