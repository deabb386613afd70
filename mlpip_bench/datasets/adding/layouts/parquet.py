"""Parquet files with encoded images and labels, as dataset hubs export them; needs pyarrow, the extra ``parquet``.

One column holds images, as bytes or as records with ``bytes``, and one the labels. Where the files say the names of
labels in their metadata (``ClassLabel`` of Hugging Face's datasets), classes are called so. Where each of several files
has a word for a split in its name, as ``train-00000-of-00002.parquet`` and ``test-00000-of-00001.parquet``, the data
say their splits; a class in two of them is refused, as in every form of data.
"""

from __future__ import annotations

import json
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

from mlpip_bench.datasets.adding.material import UNSPLIT, Item, Material, encoded
from mlpip_bench.datasets.archives import broken
from mlpip_bench.datasets.array_rows import splits_of_names
from mlpip_bench.datasets.reading import Picture, listed
from mlpip_bench.utils.errors import UserError

_IMAGES = ("image", "img", "picture")
_LABELS = ("label", "fine_label", "labels", "class", "category")


def find(path: Path) -> Material | None:
    """The images of a Parquet file, or of all in a folder or its ``data/``.

    Raises:
        UserError: pyarrow is not installed, or a file has not the columns or is damaged.
    """
    paths = [path] if path.suffix.lower() == ".parquet" else []
    for folder in (path, path / "data"):
        paths = paths or (sorted(folder.glob("*.parquet")) if folder.is_dir() else [])
    if not paths:
        return None
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(
            f"{paths[0]} is a Parquet file, which pyarrow reads, and it is not installed. Install the extra: "
            "pip install 'mlpip_bench[parquet]'."
        ) from error
    splits: dict[str, dict[str, list[Item]]] = defaultdict(lambda: defaultdict(list))
    split_of = {file: split for split, file in splits_of_names(paths)}
    is_split = len(split_of) == len(paths) and len(set(split_of.values())) > 1
    for file in paths:
        try:
            schema = parquet.read_schema(file)
            image, label = _column(file, schema.names, _IMAGES), _column(file, schema.names, _LABELS)
            names = _names_of_labels(schema.metadata or {}, label)
            table = parquet.read_table(file, columns=[image, label])
            labels, images = table[label].to_pylist(), table[image].to_pylist()
        except UserError:
            raise
        except Exception as error:  # Arrow raises many kinds
            raise broken(file, "a Parquet file", error) from error
        for row, (value, content) in enumerate(zip(labels, images, strict=True)):
            if isinstance(value, bool) or not isinstance(value, int | str):
                raise UserError(f"labels must be names or whole numbers; in {file} row {row} has {value!r}.")
            name = names[value] if isinstance(value, int) and 0 <= value < len(names) else _text(value)
            item = encoded(Picture(f"row {row} of {file}", partial(_bytes, content, f"row {row} of {file}")))
            splits[split_of[file] if is_split else UNSPLIT][name].append(item)
    return Material("Parquet", splits)


def _column(path: Path, there: list[str], wanted: tuple[str, ...]) -> str:
    chosen = [name for name in wanted if name in there]
    if not chosen:
        raise UserError(
            f"{path} must have a column {' or '.join(wanted)}; it has {listed(there, 20)}. Rename the right one."
        )
    return chosen[0]


def _names_of_labels(metadata: dict[bytes, bytes], label: str) -> list[str]:
    try:
        return list(map(str, json.loads(metadata[b"huggingface"])["info"]["features"][label]["names"]))
    except (KeyError, TypeError, ValueError):
        return []


def _text(value: int | str) -> str:
    return f"{value:04d}" if isinstance(value, int) else value


def _bytes(content: Any, name: str) -> bytes:
    found = content.get("bytes") if isinstance(content, dict) else content
    if not found:
        path = content.get("path") if isinstance(content, dict) else None
        held = f"the path {path!r} alone" if path else "nothing"
        raise UserError(
            f"a Parquet file must hold the pictures themselves; {name} holds {held}. Export the data with their "
            "pictures, or add the folder that has them."
        )
    return bytes(found)
