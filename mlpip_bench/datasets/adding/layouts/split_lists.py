"""Lists of the splits: ``train.csv``, ``val.csv`` and ``test.csv`` (filename,label) next to ``images/``."""

from __future__ import annotations

from pathlib import Path

from mlpip_bench.datasets.adding.lists import from_list
from mlpip_bench.datasets.adding.material import Material, split_named
from mlpip_bench.datasets.adding.splitting import pooled


def find(top: Path) -> Material | None:
    """The pictures that the lists of a folder name: in ``images/``, there in a folder of the class, or next to it."""
    lists = sorted(top.glob("*.csv")) if top.is_dir() else []
    of_split = {split: path for path in lists if (split := split_named(path.stem))}
    if len(of_split) < 2:
        return None
    folder = top / "images" if (top / "images").is_dir() else top
    splits = {split: pooled(from_list(path, folder).splits) for split, path in of_split.items()}
    return Material("lists of the splits", splits)
