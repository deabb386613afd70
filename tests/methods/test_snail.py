"""SNAIL: its cached step against the whole causal pass, and what it can be asked."""

import pytest
import torch
from mlpip_bench.methods.snail import SNAILSettings
from torch.nn import functional as F

from builders import make_batch, make_method
from mlpip_bench.inference.ordering import ordered
from mlpip_bench.nn.causal import DenseConvolution
from mlpip_bench.tasks.batch import Labeled, TaskBatch
from mlpip_bench.utils.errors import UserError


def make(way: int = 3, norm: str = "metabn", **settings: object):
    return make_method("snail", norm, way, **settings).double()


def batch(shots: int = 2, way: int = 3) -> TaskBatch:
    torch.manual_seed(1)
    return make_batch(tasks=2, way=way, shots=shots, queries=2)


def whole_pass(method, tasks: TaskBatch) -> torch.Tensor:
    """Logits ``[task, query, way]``: for each query alone, the sequence of support set and query from start to end."""
    features, statistics = method.backbone(tasks.support.x)
    of_queries, _ = method.backbone(tasks.query.x, statistics)
    support = ordered(Labeled(features, tasks.support.y, 3), training=method.training)
    labels = F.one_hot(support.y, 3).double()
    read = torch.cat([method.embedding(support.x), labels], -1)
    logits = []
    for number in range(of_queries.shape[1]):
        query = method.embedding(of_queries[:, number : number + 1])
        sequence = torch.cat([read, torch.cat([query, torch.zeros(2, 1, 3, dtype=torch.float64)], -1)], 1)
        for layer in method.layers:
            sequence = layer(sequence)
        logits.append(method.output(sequence[:, -1]))
    return torch.stack(logits, 1)


@pytest.mark.parametrize("shots", [1, 2, 7])
def test_the_cached_step_is_the_whole_causal_pass(shots):
    method, tasks = make().eval(), batch(shots)
    with torch.no_grad():
        predictive = method.predictive(method.amortize(tasks.support), tasks.query.x)
        expected = whole_pass(method, tasks).log_softmax(-1)
    torch.testing.assert_close(predictive.logits, expected, rtol=0, atol=1e-10)


def test_the_loss_is_that_of_the_last_point_alone():
    method, tasks = make().train(), batch()
    torch.manual_seed(5)
    loss = method.loss(tasks)
    torch.manual_seed(5)
    expected = F.cross_entropy(whole_pass(method, tasks).flatten(0, 1), tasks.query.y.flatten())
    torch.testing.assert_close(loss, expected)


def test_without_weights_in_its_layers_it_is_linear_in_the_querys_embedding():
    method, tasks = make().eval(), batch()
    with torch.no_grad():
        for parameter in method.layers.parameters():
            parameter.zero_()
        _, statistics = method.backbone(tasks.support.x)
        embedded = method.embedding(method.backbone(tasks.query.x, statistics)[0])
        logits = embedded @ method.output.weight[:, :64].mT + method.output.bias
        predictive = method.predictive(method.amortize(tasks.support), tasks.query.x)
    torch.testing.assert_close(predictive.probs, logits.softmax(-1))


@pytest.mark.parametrize(("way", "dilations"), [(5, [1, 2, 4, 8, 16]), (20, [1, 2, 4, 8, 16, 32, 64])])
def test_convolutions_reach_back_over_five_shots_of_each_class(way, dilations):
    found = [layer.dilation for layer in make(way).layers if isinstance(layer, DenseConvolution)]
    assert found == dilations * 2
    assert sum(dilations) >= 5 * way > sum(dilations[:-1])


def test_attention_reads_points_that_convolutions_do_not_reach():
    method, tasks = make(norm="layer", shots=1).eval(), batch(shots=4)  # where no statistics link points
    assert sum(layer.dilation for layer in method.layers if isinstance(layer, DenseConvolution)) == 6  # of 12 points
    x = tasks.support.x.clone().requires_grad_()
    q = method.amortize(Labeled(x, tasks.support.y, 3))
    method.predictive(q, tasks.query.x).logits[..., 0].sum().backward()
    assert (x.grad.flatten(2) != 0).any(-1).all()


def test_a_task_of_another_way_is_one_error_that_says_what_to_do():
    with pytest.raises(UserError, match=r"way of its training alone, 3; got tasks of 5 classes\. Train it at 5 ways"):
        make().amortize(batch(way=5).support)


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="from 1 to 1000; got 0"):
        SNAILSettings(shots=0)
