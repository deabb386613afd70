"""CUB-200-2011: ``images/<class>/*.jpg`` next to ``images.txt``, ``classes.txt`` and others.

``train_test_split.txt`` splits the pictures of each class and not the classes, so it is not used. Few-shot splits are
``base.json``, ``val.json`` and ``novel.json``, as Chen et al. (2019, A Closer Look at Few-shot Classification) write
them; their ``image_names`` are paths of another machine, of which the last folder is the class.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath

from mlpip_bench.datasets.adding.folders import classes_in
from mlpip_bench.datasets.adding.material import UNSPLIT, Classes, Material
from mlpip_bench.datasets.archives import broken
from mlpip_bench.datasets.reading import listed
from mlpip_bench.utils.errors import UserError
from mlpip_bench.utils.files import read_file

_SPLIT_FILES = {"train": "base.json", "validation": "val.json", "test": "novel.json"}
_MOST = 2**26  # bytes of a split file


def find(top: Path) -> Material | None:
    """The classes of CUB-200-2011, or of a folder in its form."""
    if not ((top / "images").is_dir() and (top / "images.txt").is_file()):
        return None
    classes, left_out = classes_in(top / "images")
    files = {split: top / name for split, name in _SPLIT_FILES.items() if (top / name).is_file()}
    splits = {split: _listed(path, classes) for split, path in files.items()} or {UNSPLIT: classes}
    return Material("CUB-200-2011", splits, left_out=left_out)


def _listed(path: Path, classes: Classes) -> Classes:
    try:
        names = {PurePosixPath(name).parent.name for name in json.loads(read_file(path, _MOST))["image_names"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise broken(path, "a list with image_names", error) from error
    if missing := sorted(names - classes.keys()):
        raise UserError(f"{path.parent / 'images'} must hold the classes of {path.name}; it lacks {listed(missing)}.")
    return {name: classes[name] for name in sorted(names)}
