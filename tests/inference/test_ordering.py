"""Points keep their targets in every order; evaluation has one order, which is not that of classes."""

import pytest
import torch

from mlpip_bench.inference.ordering import ordered
from mlpip_bench.tasks.batch import Labeled


def sorted_by_class(tasks: int, way: int, shots: int) -> Labeled:
    y = torch.arange(way).repeat_interleave(shots).expand(tasks, -1)
    return Labeled(torch.arange(tasks * way * shots).view(tasks, -1, 1).float(), y, way)


@pytest.mark.parametrize("training", [False, True])
def test_points_keep_their_targets_and_none_is_lost(training):
    support = sorted_by_class(3, 4, 2)
    torch.manual_seed(0)
    found = ordered(support, training=training)
    for task in range(3):
        before = dict(zip(support.x[task].flatten().tolist(), support.y[task].tolist(), strict=True))
        after = dict(zip(found.x[task].flatten().tolist(), found.y[task].tolist(), strict=True))
        assert before == after


def test_an_evaluation_has_one_order_and_draws_nothing():
    support = sorted_by_class(2, 5, 3)
    state = torch.random.get_rng_state()
    first, again = (ordered(support, training=False) for _ in range(2))
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(first.x, again.x)
    assert torch.equal(first.y[0], first.y[1])
    assert not torch.equal(first.y, support.y)


def test_each_task_of_a_training_has_an_order_of_its_own():
    support = sorted_by_class(2, 5, 3)
    torch.manual_seed(0)
    first, again = (ordered(support, training=True) for _ in range(2))
    assert not torch.equal(first.y[0], first.y[1])
    assert not torch.equal(first.y, again.y)


def test_every_place_is_as_likely_for_every_point():
    support = sorted_by_class(20_000, 4, 1)
    torch.manual_seed(0)
    found = ordered(support, training=True).y
    shares = torch.stack([(found == label).float().mean(0) for label in range(4)])
    assert (shares - 0.25).abs().max() < 5 * (0.25 * 0.75 / 20_000) ** 0.5
