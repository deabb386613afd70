"""The names of benches, and what they say."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from mlpip_bench.benches.families import DATASETS, Dataset
from mlpip_bench.nn.backbones import ExtractorSpec
from mlpip_bench.tasks.batch import TaskShape
from mlpip_bench.utils.errors import UserError, unknown_name

LISTED = (
    *("omni5w1s", "omni5w5s", "omni20w1s", "omni20w5s", "mini5w1s", "mini5w5s"),  # the paper's six
    *("tiny5w1s", "tiny5w5s"),
    *("toy5", "toy10", "toyfresh5", "toyfresh10"),  # the paper's other experiments
    *("context16", "context2", "views1s", "views5s"),
    *("linear5s", "linear20s"),  # the posterior is known
)

_LARGEST = 10_000  # no data set here has so many classes, or images in one

_FORMS = {
    naming: [name for name, data in DATASETS.items() if data.naming == naming]
    for naming in dict.fromkeys(data.naming for data in DATASETS.values())
}

GRAMMAR = (
    "Any number works in "
    + ", ".join(f"{'|'.join(names)}{naming.replace('{', '<').replace('}', '>')}" for naming, names in _FORMS.items())
    + "; for example omni10w3s."
)


@dataclass(frozen=True)
class BenchSpec:
    """A bench: a data set, and what its tasks are trained and tested with.

    Attributes:
        name: the data set's name, and its ``naming`` filled in; for example ``mini5w5s``.
        dataset: key of :data:`DATASETS`.
        way: classes of a task; 1 where there are none.
        shot: support images per class; support points in regression, given views in reconstruction.
        features: dimension of h(x), of a last linear layer; None for that of the convolutions.
    """

    name: str
    dataset: str
    way: int
    shot: int
    features: int | None = None

    @property
    def data(self) -> Dataset:
        """What its data set brings with it."""
        return DATASETS[self.dataset]

    @property
    def extractor(self) -> ExtractorSpec:
        """Shape of the shared feature extractor."""
        return replace(self.data.extractor, last=self.features)

    def task_shape(self, queries: int) -> TaskShape:
        """Shape of its tasks with so many queries per class."""
        return TaskShape(self.way, self.shot, queries)


def parse_bench(name: str) -> BenchSpec:
    """Read a bench's name.

    Raises:
        UserError: not of the grammar, an unknown data set, or a number that is too small or too large.
    """
    parts = re.fullmatch(r"([a-z]+)(\d.*)", name)
    data = DATASETS.get(parts[1]) if parts else None
    match = re.fullmatch(re.sub(r"{(\w+)}", r"(?P<\1>\\d+)", data.naming), parts[2]) if parts and data else None
    if parts is None or data is None or match is None:
        raise UserError(f"{unknown_name('bench', name, LISTED)} {GRAMMAR}")
    numbers = {field: int(digits) for field, digits in match.groupdict().items()}
    for field, value in numbers.items():
        least = 2 if field == "way" else 1
        if value < least:
            raise UserError(f"{field} of a bench is at least {least}; {name!r} has {value}.")
        if value > _LARGEST:
            raise UserError(f"{field} of a bench is at most {_LARGEST}; got {name!r}.")
    canonical = parts[1] + data.naming.format(**numbers)
    return BenchSpec(canonical, parts[1], **{"way": data.way, "shot": data.shot, **numbers})
