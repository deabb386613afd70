"""Work grows with tasks, ways and shots as they do, and no faster."""

from collections.abc import Callable

import pytest
import torch

from mlpip_bench import registry
from mlpip_bench.inference.method import Problem
from mlpip_bench.nn.backbone import BackboneSpec
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.training.steps import descend

CONV4 = registry.backbone("conv4")
BACKBONE = BackboneSpec("conv4", CONV4, CONV4.Settings(ceil_mode=True), (1, 28, 28))
SIZES = {"tasks": 8, "ways": 5, "shots": 2, "queries": 3}


def step(name: str, *, tasks: int, ways: int, shots: int, queries: int) -> Callable[[], None]:
    """A training step, with so many shots and queries a class."""
    plugin = registry.method(name)
    method = plugin(Problem(BACKBONE, "metabn", ways), plugin.Settings()).train()
    adam = torch.optim.Adam(method.parameters())

    def labeled(per_class: int) -> Labeled:
        y = torch.arange(ways).repeat_interleave(per_class).expand(tasks, -1)
        return Labeled(torch.rand(*y.shape, *BACKBONE.input_shape), y, ways)

    batch = TaskBatch(labeled(shots), labeled(queries))
    return lambda: descend(method.loss(batch), adam)


@pytest.mark.benchmark(group="growth")
@pytest.mark.parametrize("of", ["tasks", "ways", "shots"])
@pytest.mark.parametrize("name", ["maml", "protonets"])
def test_twice_as_much_takes_at_most_twice_as_long(faster, name, of):
    half = step(name, **SIZES)
    whole = step(name, **{**SIZES, of: 2 * SIZES[of]})

    def two_halves() -> None:
        half()
        half()

    label = f"two halves / whole, training step of {name}, twice the {of}"
    faster(whole, two_halves, label, bar=1 / 1.1, limit=1 / 1.3, turns=5)
