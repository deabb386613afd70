"""ShapeNet: the paper's categories of ShapeNetCore v2, rendered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlpip_bench.datasets.preparing import meshes
from mlpip_bench.datasets.preparing.preparer import Preparer, folder_errors, writing_to
from mlpip_bench.datasets.shapenet import SYNSETS
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.progress import Reporter

MESH = Path("models", "model_normalized.obj")


def prepare(
    source: Path,
    target: Path,
    reporter: Reporter,
    jobs: int | None = None,
    *,
    timeout_seconds: float = meshes.TIMEOUT_SECONDS,
) -> int:
    """Render the paper's categories, except for what is rendered already.

    Args:
        source: ShapeNetCore v2, with ``<synset>/<object>/models/model_normalized.obj``.
        target: gets ``<synset>/<object>/{00..35}.png``, and ``failed.csv`` where meshes failed.
        reporter: shows the progress and, at the end, which meshes failed and why.
        jobs: how many meshes are rendered at once, each in a process of its own; None for one a core.
        timeout_seconds: the most that one mesh may take.

    Returns:
        How many meshes failed.

    Raises:
        UserError: bad folders, no pyvista, or no OpenGL; no mesh can be rendered.
    """
    jobs = meshes.checked_jobs(jobs)

    @contextmanager
    def mesh_of(name: str) -> Iterator[Path]:
        if not (source / name / MESH).is_file():
            raise meshes.MeshError(f"there is no {MESH.as_posix()}")
        yield source / name / MESH

    with folder_errors(target):
        objects = _objects(source, reporter)
        with writing_to(target, source):
            return meshes.render(objects, mesh_of, target, reporter, jobs=jobs, timeout_seconds=timeout_seconds)


def _objects(source: Path, reporter: Reporter) -> list[str]:
    """``<synset>/<object>`` of the paper's categories, sorted."""
    if not source.is_dir():
        raise UserError(f"--from must be the folder of ShapeNetCore v2; {source} is not a folder.")
    missing = [f"{synset} ({title})" for synset, title in SYNSETS.items() if not (source / synset).is_dir()]
    if len(missing) == len(SYNSETS):
        held = ", ".join(sorted(path.name for path in source.iterdir())[:5]) or "nothing"
        raise UserError(
            f"--from must have ShapeNetCore v2's synset folders, such as 02691156/<object>/{MESH.as_posix()}; "
            f"{source} holds {held}. Unpack the archives, or name the folder that has the synsets."
        )
    if missing:
        reporter.say(f"not in {source}, so left out: {', '.join(missing)}")
    if others := sorted(p.name for p in source.iterdir() if p.is_dir() and p.name.isdigit() and p.name not in SYNSETS):
        reporter.say(
            f"none of the paper's categories, so ignored: {', '.join(others[:5])}" + (", ..." if others[5:] else "")
        )
    objects = [
        f"{synset}/{path.name}"
        for synset in SYNSETS
        if (source / synset).is_dir()
        for path in sorted((source / synset).iterdir())
        if path.is_dir() and not path.name.startswith(".")
    ]
    if not objects:
        raise UserError(f"--from must have a folder for each object; the synset folders of {source} have none.")
    return objects


PREPARER = Preparer("views of ShapeNet's meshes, 32x32", "the folder of ShapeNetCore v2", "shapenet", prepare)
