"""Two levels of folders: ``domain/class/*.jpg`` as DomainBed has them, or ``family/class/*.jpg``.

Where each domain has the same classes, a class has its pictures of all domains. Else the upper level is a part of the
class's name, so that ``Greek/character01`` and ``Latin/character01`` are two classes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

from mlpip_bench.datasets.adding.folders import classes_in
from mlpip_bench.datasets.adding.material import UNSPLIT, Item, Material, pictures_at, split_named, subfolders


def find(top: Path) -> Material | None:
    """The classes of all domains of a folder."""
    uppers = subfolders(top) if top.is_dir() else []
    below = {upper: subfolders(upper) for upper in uppers if not pictures_at(upper)}
    is_so = len(uppers) > 1 and len(below) == len(uppers) and all(below.values())
    if not is_so or any(split_named(upper.name) for upper in uppers):
        return None
    names = {frozenset(folder.name for folder in folders) for folders in below.values()}
    if names == {frozenset(["images"])}:
        return None
    classes: dict[str, list[Item]] = defaultdict(list)
    left_out: Counter[str] = Counter()
    for upper in uppers:
        found, others = classes_in(upper)
        left_out.update(others)
        for name, items in found.items():
            classes[name if len(names) == 1 else f"{upper.name}/{name}"] += items
    layout = f"domains {', '.join(upper.name for upper in uppers)}" if len(names) == 1 else "folders of class folders"
    return Material(layout, {UNSPLIT: classes}, left_out=left_out)
