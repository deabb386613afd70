"""Running averages of all methods: one move a pass over a batch, as many tasks as it may have."""

import pytest
import torch
from torch.nn import functional as F

from builders import make_batch, make_method
from mlpip_bench import registry
from mlpip_bench.inference import gradient_steps
from mlpip_bench.tasks.batch import Labeled, TaskBatch


def averages(method) -> list[torch.Tensor]:
    return [value for name, value in method.state_dict().items() if "running_" in name]


def copies(tasks: int) -> TaskBatch:
    """A task, so many times."""
    one = make_batch(1, queries=2)
    return TaskBatch(
        *(Labeled(p.x.repeat(tasks, 1, 1, 1, 1), p.y.repeat(tasks, 1), p.way) for p in (one.support, one.query))
    )


CLASSIFIERS = [n for n in registry.method_names() if "classification" in registry.method(n).handles]


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_running_averages_move_as_often_for_many_tasks_as_for_one(name):
    found = []
    for tasks in (1, 6):
        torch.manual_seed(0)
        batch = copies(tasks)
        method = make_method(name, "running").double().train()
        torch.manual_seed(1)
        method.loss(batch)
        found.append(averages(method))
    assert found[0]
    for one, many in zip(*found, strict=True):
        assert not torch.equal(one, torch.zeros_like(one))
        torch.testing.assert_close(many, one)


@pytest.mark.parametrize("at_once", [1, 4, 7, 100])
def test_running_averages_of_adapted_networks_do_not_depend_on_groups(at_once, monkeypatch):
    """The groups in which tasks are adapted fit the caches of a device."""
    monkeypatch.setattr(gradient_steps, "_tasks_at_once", lambda _: at_once)
    torch.manual_seed(0)
    batch = make_batch(7, queries=2)
    method = make_method("maml", "running", train_steps=0).double().train()
    block = method.network.backbone.blocks[0]
    mean = torch.zeros(4, dtype=torch.float64)
    for _ in range(3):
        method.loss(batch)
        for x in (batch.support.x, batch.query.x):  # one pass each
            mean = 0.9 * mean + 0.1 * F.conv2d(x.flatten(0, 1), block.conv.weight, padding=1).mean((0, 2, 3))
    torch.testing.assert_close(block.norm.running_mean.flatten(), mean)
