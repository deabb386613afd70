"""Task families of the data sets that ``data add`` put below a data root: each of them is one."""

from __future__ import annotations

import functools
import math
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mlpip_bench.benches.budgets import PAPER_NATURAL, QUICK, SHORT, SHORTEST
from mlpip_bench.benches.family import TEST_QUERIES
from mlpip_bench.benches.images import ImageClassification

if TYPE_CHECKING:  # names are listed without what reads images
    from mlpip_bench.datasets.added import Description
    from mlpip_bench.datasets.sources import DataSource


class AddedData(ImageClassification):
    """Classes of a user's own images or feature vectors.

    Attributes:
        description: what ``dataset.yaml`` says; the other attributes follow from it.
    """

    description: ClassVar[Description]

    def source(self) -> DataSource:
        """Its folder below the data root."""
        from mlpip_bench.datasets import added
        from mlpip_bench.datasets.sources import DataSource

        name = self.description.name
        return DataSource(name, f"{name}: {self.title}", (name,), (added.LAYOUT,), 1, added.find, decoded=True)


def families_below(data_root: Path | None) -> dict[str, Path]:
    """The folder of each data set below a data root, by the name of its family."""
    if data_root is None:
        return {}
    from mlpip_bench.datasets import added

    return added.folders_below(data_root)


def family_named(name: str, **attributes: Any) -> type[AddedData]:
    """The family of an added data set; without further attributes, for a record, whose data need not be at hand."""
    return type(name, (AddedData,), {"__module__": __name__, "naming": naming_of(name), **attributes})


def family_at(folder: Path, default_methods: tuple[str, ...] = ()) -> type[AddedData]:
    """The family of a data set.

    Args:
        folder: where it is.
        default_methods: that enter it where none is named.

    Raises:
        UserError: its description is damaged.
    """
    from mlpip_bench.datasets import added

    return _family(folder, added.describe(folder).fingerprint, default_methods)


@functools.lru_cache(maxsize=256)
def _family(folder: Path, _fingerprint: str, default_methods: tuple[str, ...]) -> type[AddedData]:
    """The same class for the same data."""
    from mlpip_bench.datasets import added

    description = added.describe(folder)
    naming = naming_of(description.name)
    classes = {split: len(found) for split, found in description.splits.items()}
    ways = [way for way in (5, 20) if way <= classes["test"]] or [classes["test"]]
    items = sum(count for found in description.splits.values() for count in found.values())
    is_features = description.kind == "features"
    channels, side, _ = description.image_shape
    size = f"of {channels} numbers" if is_features else f"{side}x{side}, {'RGB' if channels == 3 else 'gray'}"
    attributes: Mapping[str, Any] = {
        "__doc__": f"{sum(classes.values())} classes, {items} {description.kind}.",
        "description": description,
        "title": f"{'/'.join(map(str, classes.values()))} classes of {items} {description.kind} {size}",
        "needs": f"{description.name}/ below the data root, as data add wrote it",
        "examples": tuple(
            f"{description.name}{naming.format(way=way, shot=shot)}"
            for way in ways
            for shot in (1, 5)
            if shot < description.smallest
        ),
        "image_shape": description.image_shape,
        "default_methods": default_methods,
        "budgets": {"quick": _quick(description), "paper": PAPER_NATURAL},
        "backbone": "identity" if is_features else "conv4",
        "backbone_settings": {} if is_features else conv4_settings(side),
    }
    return family_named(description.name, **attributes)


def first_run(family: type[AddedData], data_root: Path) -> str:
    """A command that a data set's classes are large enough for, with the fewest options that this takes."""
    description = family.description
    train, test = description.splits["train"].values(), description.splits["test"].values()
    way, queries = min(5, len(train), len(test)), min(TEST_QUERIES, min(test) - 1)
    for_training = min(QUICK["train_queries"], min(train) - 1)
    options = f" --queries {queries}" * (queries < TEST_QUERIES)
    options += f" --set train_queries={for_training}" * (for_training < QUICK["train_queries"])
    bench = f"{description.name}{family.naming.format(way=way, shot=1)}"
    return (
        f"python -m mlpip_bench run --bench {bench} --methods {','.join(family.default_methods)}{options} "
        f"--data-root {shlex.quote(str(data_root))}"
    )


def naming_of(name: str) -> str:
    """How a data set's name goes on in those of its benches: with a hyphen where it has digits itself."""
    return f"{'-' if re.search(r'[0-9]', name) else ''}{{way}}w{{shot}}s"


def conv4_settings(side: int) -> Mapping[str, Any]:
    """Blocks that leave 2x2 of an image, which are the paper's at 28 and 84, and its dropout."""
    blocks = max(1, round(math.log2(side)) - 1)
    return {"blocks": blocks, "ceil_mode": 2 ** (blocks + 1) > side, "dropout": 0.1 if side <= 28 else 0.5}


def _quick(description: Description) -> Mapping[str, Any]:
    side = description.image_shape[1]
    return QUICK if side <= 28 else SHORT if side <= 40 else SHORTEST
