"""Tiny-ImageNet-32: 100 of Tiny ImageNet's classes, 300 RGB pictures of 32x32 each; ImageNet, for research only.

Layout: ``train.tar``, ``val.tar``, ``test.tar`` with members ``<wnid>/<file>.JPEG``; 64, 16 and 20 classes.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from mlpip_bench.datasets.archives import read_tar
from mlpip_bench.datasets.base import ClassImages, ImageDataset
from mlpip_bench.datasets.reading import (
    Found,
    Picture,
    Sizes,
    assemble,
    decode_classes,
    is_picture_name,
    listed,
    member_picture,
)
from mlpip_bench.utils.errors import UserError

VERSION = 2
"""Version of this reader: change it whenever the arrays that it makes change."""

FOLDERS = ("tiny-imagenet-32",)
LAYOUTS = ("train.tar, val.tar, test.tar with <wnid>/*.JPEG",)
COMPLETE: Sizes = {"train": (64, 300), "validation": (16, 300), "test": (20, 300)}
SIDE = 32

_ARCHIVES = {"train": "train.tar", "validation": "val.tar", "test": "test.tar"}


def find(folder: Path) -> Found | None:
    """Tiny-ImageNet-32 in a folder.

    Raises:
        UserError: only some of its three archives are there.
    """
    paths = {split: folder / name for split, name in _ARCHIVES.items()}
    missing = [path.name for path in paths.values() if not path.is_file()]
    if len(missing) == len(paths):
        return None
    if missing:
        raise UserError(f"{folder} must hold {', '.join(_ARCHIVES.values())}; {listed(missing)} is missing. Fetch it.")
    return Found("tar archives", folder, tuple(paths.values()), {}, COMPLETE, lambda: _read(paths))


def _read(paths: dict[str, Path]) -> ImageDataset:
    splits = {split: _read_split(path) for split, path in paths.items()}
    return assemble("tiny-imagenet-32", splits, {"size": SIDE}, COMPLETE)


def _read_split(path: Path) -> ClassImages:
    members = read_tar(path, lambda name: is_picture_name(name.name))
    if not members:
        raise UserError(f"{path} must hold <wnid>/*.JPEG; it is an archive without pictures. Fetch it again.")
    by_class: dict[str, list[Picture]] = defaultdict(list)
    for name in sorted(members):
        if len(name.parts) < 2:
            raise UserError(f"pictures must lie in a folder of their class; {path} has {str(name)!r}. Fetch it again.")
        by_class[name.parent.name].append(member_picture(path, name, members[name]))
    return decode_classes(by_class, SIDE, resize=False)
