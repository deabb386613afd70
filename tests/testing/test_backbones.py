"""All installed backbones conform, and a backbone that breaks a rule is found out."""

from dataclasses import dataclass

import pytest
import torch

from mlpip_bench import registry
from mlpip_bench.nn.backbone import Backbone
from mlpip_bench.nn.backbones.conv4 import Conv4, Conv4Settings
from mlpip_bench.nn.backbones.mlp import MLP
from mlpip_bench.nn.normalization import task_statistics
from mlpip_bench.testing import assert_backbone_conforms


@pytest.mark.parametrize("name", registry.names("backbone"))
def test_an_installed_backbone_conforms(name):
    assert_backbone_conforms(registry.backbone(name), (3, 16, 17))


class WrongDimension(MLP):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.features += 1


class SeesOtherTasks(MLP):
    def forward(self, x, support=None):
        features, statistics = super().forward(x, support)
        return features - features.mean((0, 1)), statistics


class SeesOtherQueries(MLP):
    def forward(self, x, support=None):
        features, statistics = super().forward(x, support)
        return features - features.mean(1, keepdim=True), statistics


@dataclass(frozen=True)
class OneBlock(Conv4Settings):
    blocks: int = 1


class MovesAveragesOfEachTask(Conv4):
    Settings = OneBlock

    def forward(self, x, support=None):
        features, statistics = super().forward(x, support)
        for task in range(len(x)):
            self.move_averages(task_statistics(statistics, slice(task, task + 1)))
        return features, statistics


class Noisy(MLP):
    def forward(self, x, support=None):
        features, statistics = super().forward(x, support)
        return torch.nn.functional.dropout(features, 0.5), statistics


class Idle(MLP):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.idle = torch.nn.Parameter(torch.ones(1))


@pytest.mark.parametrize(
    ("plugin", "says"),
    [
        (WrongDimension, r"metabn: features must be \(3, 4, 65\) .*; got \(3, 4, 64\)"),
        (SeesOtherTasks, "metabn: a task's features must not depend on the tasks that share its batch"),
        (SeesOtherQueries, "metabn: a query's features must not depend on the other queries"),
        (MovesAveragesOfEachTask, "running: a pass over a batch must move running averages once"),
        (Noisy, "metabn: evaluation must have no noise"),
        (Idle, "metabn: a gradient must reach every parameter; idle has none"),
        (Backbone, "it lacks forward, reference"),
    ],
)
def test_a_backbone_that_breaks_a_rule_fails(plugin, says):
    with pytest.raises(AssertionError, match=says):
        assert_backbone_conforms(plugin, (1, 3, 3))


def test_queries_may_see_each_other_where_the_norm_is_transductive():
    with pytest.raises(AssertionError) as caught:
        assert_backbone_conforms(SeesOtherQueries, (1, 3, 3))
    assert "transductive: " not in str(caught.value)
