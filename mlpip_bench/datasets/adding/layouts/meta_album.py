"""Meta-Album: ``images/``, ``labels.csv`` and ``info.json``, which names the columns of the list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mlpip_bench.datasets.adding.lists import from_list
from mlpip_bench.datasets.adding.material import Material
from mlpip_bench.datasets.archives import broken
from mlpip_bench.utils.files import read_file

_MOST = 2**20  # bytes of info.json


def find(top: Path) -> Material | None:
    """A data set of Meta-Album."""
    path = top / "labels.csv"
    if not ((top / "images").is_dir() and path.is_file()):
        return None
    info = _info(top / "info.json")
    columns = str(info.get("image_column_name", "FILE_NAME")), str(info.get("category_column_name", "CATEGORY"))
    facts = {name: info[name] for name in ("license", "citation") if isinstance(info.get(name), str)}
    return from_list(path, top / "images", "Meta-Album", columns, facts)


def _info(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        info = json.loads(read_file(path, _MOST))
        if not isinstance(info, dict):
            raise ValueError("it is no object")
    except (OSError, ValueError) as error:
        raise broken(path, "a description in JSON", error) from error
    return info
