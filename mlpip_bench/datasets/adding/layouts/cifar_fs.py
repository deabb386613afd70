"""CIFAR-FS in folders: ``data/<class>/*.png`` with ``splits/bertinetto/{train,val,test}.txt``, a class a line."""

from __future__ import annotations

from pathlib import Path

from mlpip_bench.datasets.adding.folders import classes_in
from mlpip_bench.datasets.adding.material import Classes, Material, split_named
from mlpip_bench.datasets.reading import listed
from mlpip_bench.utils.errors import UserError


def find(top: Path) -> Material | None:
    """The classes of CIFAR-FS, or of a folder in its form."""
    lists = sorted((top / "splits").glob("*/*.txt")) if (top / "data").is_dir() else []
    of_split = {split: path for path in lists if (split := split_named(path.stem))}
    if not of_split:
        return None
    classes, left_out = classes_in(top / "data")
    splits = {split: _listed(path, classes) for split, path in of_split.items()}
    return Material("CIFAR-FS in folders", splits, size=32, left_out=left_out)


def _listed(path: Path, classes: Classes) -> Classes:
    names = path.read_text(encoding="utf-8", errors="replace").split()
    if missing := [name for name in names if name not in classes]:
        raise UserError(f"the folder data/ must hold the classes of {path}; it lacks {listed(missing)}.")
    return {name: classes[name] for name in names}
