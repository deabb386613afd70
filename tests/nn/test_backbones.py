"""The feature extractor against the same layers written plainly, and with parameters of each task's own."""

import pytest
import torch
from torch.func import functional_call
from torch.nn import functional as F

from builders import backbone
from mlpip_bench.nn.backbone import features_once
from mlpip_bench.nn.backbones.conv4 import Conv4
from mlpip_bench.nn.conv_block import ConvBlock
from mlpip_bench.utils.choices import NORM_MODES, NormMode

SPEC = backbone("conv4", (2, 7, 6), blocks=2, channels=3, ceil_mode=True, last=4)
TASKS = 3


def extractor(norm: NormMode) -> Conv4:
    """With scales of both signs, for which pooling may not come first."""
    torch.manual_seed(0)
    network = SPEC.build(norm).double()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if ".norm." in name:
                parameter.copy_(torch.randn_like(parameter))
    assert any(
        bool((p < 0).any()) and bool((p > 0).any()) for n, p in network.named_parameters() if n.endswith("scale")
    )
    return network


def images(seed: int, points: int) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(TASKS, points, *SPEC.input_shape, dtype=torch.float64)


def plain(block: ConvBlock, x: torch.Tensor, support: object) -> tuple[torch.Tensor, object]:
    """Convolution, normalization, ReLU, max pooling, in this order and one task at a time."""
    y = torch.stack([F.conv2d(task, block.conv.weight, padding=1) for task in x])
    y, moments = block.norm(y, support)
    return torch.stack([F.max_pool2d(F.relu(task), 2, ceil_mode=True) for task in y]), moments


@pytest.mark.parametrize("norm", NORM_MODES)
def test_values_and_gradients_are_those_of_the_layers_in_their_order(norm):
    network = extractor(norm)
    support, query = images(1, 4), images(2, 5)
    ours, statistics = network(support, track=False)
    queries, _ = network(query, statistics, track=False)

    by_hand, query_by_hand = support, query
    for block in network.blocks:
        by_hand, moments = plain(block, by_hand, None)
        query_by_hand, _ = plain(block, query_by_hand, moments)
    by_hand, query_by_hand = network.last(by_hand.flatten(2)), network.last(query_by_hand.flatten(2))
    torch.testing.assert_close(ours, by_hand)
    torch.testing.assert_close(queries, query_by_hand)

    parameters = list(network.parameters())
    gradients, expected = (
        torch.autograd.grad((s.square().sum() + q.pow(3).sum()), parameters) for s, q in
        ((ours, queries), (by_hand, query_by_hand))
    )  # fmt: skip
    for gradient, value in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, value)


def of_task(parameters: dict[str, torch.Tensor], task: int) -> dict[str, torch.Tensor]:
    return {name: p[task] for name, p in parameters.items()}


def inner_step(network: Conv4, parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Loss of a gradient step's result, summed over tasks: differentiated, it needs second derivatives."""
    features, _ = functional_call(network, parameters, (x,), {"track": False})
    gradients = torch.autograd.grad(features.square().sum(), list(parameters.values()), create_graph=True)
    moved = {n: p - 0.1 * g for (n, p), g in zip(parameters.items(), gradients, strict=True)}
    features, statistics = functional_call(network, moved, (x,), {"track": False})
    queries, _ = functional_call(network, moved, (x * 0.7 - 0.2, statistics), {"track": False})
    return features.sum() + queries.square().sum()


@pytest.mark.parametrize("norm", NORM_MODES)
def test_parameters_of_each_task_give_what_each_task_gives_alone_to_second_order(norm):
    network, x = extractor(norm).eval(), images(3, 4)
    own = {
        name: (p.detach() + 0.1 * torch.randn(TASKS, *p.shape, dtype=p.dtype)).requires_grad_()
        for name, p in network.named_parameters()
    }
    together = inner_step(network, own, x)
    alone = sum(inner_step(network, of_task(own, t), x[t : t + 1]) for t in range(TASKS))
    torch.testing.assert_close(together, alone)
    for ours, theirs in zip(
        torch.autograd.grad(together, list(own.values())), torch.autograd.grad(alone, list(own.values())), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_features_of_the_same_images_are_computed_once_where_that_is_asked_for(monkeypatch):
    network, x = extractor("metabn").eval(), images(1, 4)
    convolutions = []
    convolve = F.conv2d
    monkeypatch.setattr(F, "conv2d", lambda *args, **kwargs: convolutions.append(1) or convolve(*args, **kwargs))
    with torch.no_grad():
        plain = network(x)[0]
        once = len(convolutions)
        with features_once(network):
            features, statistics = network(x)
            assert network(x)[0] is features
            assert len(convolutions) == 2 * once
            torch.testing.assert_close(features, plain)
            query = network(x, statistics)[0]  # the same images as queries are other features
            assert network(x, statistics)[0] is query
            assert len(convolutions) == 3 * once
            moved = {name: p + 1 for name, p in network.named_parameters()}
            assert not torch.equal(functional_call(network, moved, (x,))[0], features)
        assert network(x)[0] is not features
    with features_once(network):
        assert network(x)[0].requires_grad  # what autograd must see is never kept
        assert network(x)[0] is not network(x)[0]


# -- running averages ------------------------------------------------------------------------------------------------


def moments_of_first_layer(network: Conv4, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean over the tasks of each channel's mean and population variance, behind the first convolution."""
    convolved = F.conv2d(x.flatten(0, 1), network.blocks[0].conv.weight, padding=1).unflatten(0, x.shape[:2])
    return tuple(m.mean(0)[:, None, None] for m in (convolved.mean((1, 3, 4)), convolved.var((1, 3, 4), correction=0)))


@pytest.mark.parametrize("tasks", [1, 16])
@pytest.mark.parametrize("filters", ["shared", "of each task"])
def test_running_averages_move_once_a_batch_whatever_the_number_of_its_tasks(tasks, filters):
    network = extractor("running")
    torch.manual_seed(3)
    x = torch.randn(tasks, 4, *SPEC.input_shape, dtype=torch.float64)
    first = network.blocks[0].norm
    start = first.running_mean.clone(), first.running_variance.clone()
    with torch.no_grad():
        _, statistics = network(x, track=False)
    assert torch.equal(first.running_mean, start[0])
    for _ in range(5):  # the same batch, so that averages approach its moments
        if filters == "shared":
            network(x)
        else:
            functional_call(network, {n: p.expand(tasks, *p.shape) for n, p in network.named_parameters()}, (x,))
    left = 0.9**5
    for got, before, moment in zip(
        (first.running_mean, first.running_variance), start, moments_of_first_layer(network, x), strict=True
    ):
        torch.testing.assert_close(got, left * before + (1 - left) * moment)
    for block, moments in zip(network.blocks, statistics, strict=True):  # the deeper ones, which start at 0
        torch.testing.assert_close(block.norm.running_mean, (1 - left) * moments.mean.mean((0, 1)))


def test_evaluation_and_passes_that_leave_no_trace_move_no_average():
    network = extractor("running")
    x = images(1, 4)
    network(x, track=False)
    network.eval()(x)
    for block in network.blocks:
        assert not block.norm.running_mean.any()
        assert (block.norm.running_variance == 1).all()


# -- fully connected layers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("activation", "function"), [("elu", F.elu), ("relu", F.relu)])
def test_a_fully_connected_network_is_its_layers_with_the_activation_behind_each(activation, function):
    network = backbone("mlp", (1, 1, 1), layers=3, features=5, activation=activation).build("metabn").double()
    x = torch.linspace(-5, 5, 8, dtype=torch.float64).view(2, 4, 1, 1, 1)
    weights = list(network.parameters())
    assert [tuple(p.shape) for p in weights] == [(5, 1), (5,), (5, 5), (5,), (5, 5), (5,)]
    by_hand = x.flatten(2)
    for weight, bias in zip(weights[::2], weights[1::2], strict=True):
        by_hand = function(by_hand @ weight.mT + bias)
    torch.testing.assert_close(network(x)[0], by_hand)
    own = {name: torch.stack([p, 2 * p]) for name, p in network.named_parameters()}  # parameters of each task's own
    found = functional_call(network, own, (x,))[0]
    torch.testing.assert_close(found[0], by_hand[0])
    assert not torch.allclose(found[1], by_hand[1])


def test_kinks_of_relu_are_spread_over_the_inputs():
    torch.manual_seed(0)
    network = backbone("mlp", (1, 1, 1), layers=1, features=400, activation="relu").build("metabn")
    weight, bias = network.parameters()
    kinks = -bias / weight[:, 0]
    assert float((kinks.abs() > 0.5).float().mean()) > 0.4
