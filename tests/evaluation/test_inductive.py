"""Whether predictions owe something to the other queries, measured on models of which it is known."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.distributions import Categorical

from mlpip_bench.evaluation.inductive import is_inductive
from mlpip_bench.tasks.batch import Labeled, TaskBatch


class Model(nn.Module):
    """All but sure of a class that is never the target, by a sum over what it sees."""

    problem = SimpleNamespace(kind="classification")

    def __init__(self, others: bool) -> None:
        super().__init__()
        self.others = others

    def amortize(self, support: Labeled) -> None:
        del support

    def predictive(self, q: None, x: torch.Tensor) -> Categorical:
        seen = x + x.sum(1, keepdim=True) if self.others else x
        guess = 1 + (10 * seen.squeeze(-1)).long() % 3
        return Categorical(logits=200.0 * nn.functional.one_hot(guess, 4))


@pytest.mark.parametrize("others", [False, True])
def test_all_classes_are_compared_since_a_wrong_model_has_no_density_at_the_target(others):
    y = torch.zeros(1, 6, dtype=torch.long)
    points = Labeled(torch.arange(6.0).view(1, 6, 1) / 10, y, 4)
    assert is_inductive(Model(others), TaskBatch(points, points)) is not others
