"""Two levels of folders: ``domain/class/*.jpg`` as DomainBed has them, or ``family/class/*.jpg``.

Where each upper folder has the same classes, these are domains, and a class has its pictures of all of them. Where none
is in two, the upper folder is a part of the class's name. What lies between may be either, a domain without one of the
classes or ``Greek/character01`` and ``Latin/character01``, so the user has to say it: guessing wrong would put pictures
of one class into two splits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

from mlpip_bench.datasets.adding.folders import classes_in
from mlpip_bench.datasets.adding.material import UNSPLIT, Item, Material, pictures_at, split_named, subfolders
from mlpip_bench.datasets.reading import listed
from mlpip_bench.utils.errors import UserError


def find(top: Path, *, domains: bool | None = None) -> Material | None:
    """The classes of all upper folders of a folder.

    Args:
        top: the folder.
        domains: whether the upper folders are domains of the same classes; None where the names must say it.

    Raises:
        UserError: the names do not say it.
    """
    uppers = subfolders(top) if top.is_dir() else []
    below = {upper: subfolders(upper) for upper in uppers if not pictures_at(upper)}
    is_so = len(uppers) > 1 and len(below) == len(uppers) and all(below.values())
    if not is_so or any(split_named(upper.name) for upper in uppers):
        return None
    names = {upper: frozenset(folder.name for folder in folders) for upper, folders in below.items()}
    if set(names.values()) == {frozenset(["images"])}:
        return None
    if domains is None:
        domains = _are_domains(top, names)
    classes: dict[str, list[Item]] = defaultdict(list)
    left_out: Counter[str] = Counter()
    for upper in uppers:
        found, others = classes_in(upper)
        left_out.update(others)
        for name, items in found.items():
            classes[name if domains else f"{upper.name}/{name}"] += items
    layout = f"domains {', '.join(upper.name for upper in uppers)}" if domains else "folders of class folders"
    return Material(layout, {UNSPLIT: classes}, left_out=left_out)


def _are_domains(top: Path, names: Mapping[Path, frozenset[str]]) -> bool:
    everywhere, anywhere = frozenset.intersection(*names.values()), frozenset.union(*names.values())
    if everywhere == anywhere or len(anywhere) == sum(map(len, names.values())):
        return everywhere == anywhere
    shared = next(name for name in sorted(anywhere) if sum(name in own for own in names.values()) > 1)
    alone = next(name for name in sorted(anywhere - everywhere))
    with_it, without = (
        [upper.name for upper, own in names.items() if (alone in own) is there] for there in (True, False)
    )
    raise UserError(
        f"the folders of {top} must all have the same classes, or none in common; {shared!r} is in several, and "
        f"{alone!r} is in {listed(with_it)} and not in {listed(without)}. Pass --domains if they are domains of the "
        "same classes, or --no-domains if equal names are different classes."
    )
