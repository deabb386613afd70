"""Tiny ImageNet as its archive unpacks: ``wnids.txt``, ``train/<wnid>/images/*.JPEG``, ``val/images/*.JPEG``.

Both have the same 200 classes, so their pictures are put together. Those of ``test/`` have no labels.
"""

from __future__ import annotations

from pathlib import Path

from mlpip_bench.datasets.adding.folders import classes_in
from mlpip_bench.datasets.adding.material import UNSPLIT, Item, Material, file_items
from mlpip_bench.datasets.reading import listed
from mlpip_bench.utils.errors import UserError

_LIST = "val_annotations.txt"


def find(top: Path) -> Material | None:
    """The 200 classes of Tiny ImageNet."""
    if not ((top / "wnids.txt").is_file() and (top / "train").is_dir()):
        return None
    found, left_out = classes_in(top / "train")
    of_validation = _validation(top / "val")
    classes = {name: [*items, *of_validation.get(name, [])] for name, items in found.items()}
    return Material("Tiny ImageNet", {UNSPLIT: classes}, size=64, left_out=left_out)


def _validation(folder: Path) -> dict[str, list[Item]]:
    path = folder / _LIST
    if not path.is_file():
        return {}
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    pictures = [(folder / "images" / row[0], row[1]) for row in rows if len(row) > 1]
    if missing := [picture.name for picture, _ in pictures if not picture.is_file()]:
        raise UserError(f"{folder / 'images'} must hold what {_LIST} lists; {listed(missing)} are missing.")
    found: dict[str, list[Path]] = {}
    for picture, wnid in pictures:
        found.setdefault(wnid, []).append(picture)
    return {wnid: file_items(paths) for wnid, paths in found.items()}
