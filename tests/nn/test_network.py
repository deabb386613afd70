"""Networks of plain torch layers as backbones: batch norm becomes the suite's, and parameters may be of tasks."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from builders import backbone
from mlpip_bench import registry
from mlpip_bench.nn.backbones.resnet12 import ResNet12, ResNet12Settings, dropped
from mlpip_bench.nn.network import NetworkBackbone
from mlpip_bench.utils.choices import NORM_MODES
from mlpip_bench.utils.errors import TrialError, UserError
from mlpip_bench.utils.settings import NoSettings

SHAPE = (2, 8, 9)
TASKS = 3


class Plain(NetworkBackbone):
    """Conv4 of two blocks, as anybody writes it."""

    reference = "none"

    def build_network(self) -> nn.Module:
        block = [nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)]
        other = [nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*block, *other, nn.Flatten())


def images(seed: int, points: int, tasks: int = TASKS) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(tasks, points, *SHAPE, dtype=torch.float64)


def pair(norm: str):
    """The network of plain layers, and Conv4 with the same parameters."""
    plain = Plain(SHAPE, NoSettings(), norm).double()
    conv4 = backbone("conv4", SHAPE, blocks=2, channels=4).build(norm).double()
    torch.manual_seed(0)
    with torch.no_grad():
        for own, other in zip(plain.parameters(), conv4.parameters(), strict=True):
            assert own.shape == other.shape
            own.copy_(torch.randn_like(own))
            other.copy_(own)
    return plain, conv4


@pytest.mark.parametrize("norm", NORM_MODES)
def test_a_plain_network_has_the_features_gradients_and_averages_of_conv4(norm):
    found = []
    for network in pair(norm):
        support, statistics = network(images(1, 4))
        query, _ = network(images(2, 5), statistics)
        gradients = torch.autograd.grad((support.sin().sum() + query.cos().sum()), list(network.parameters()))
        network.eval()
        at_test, _ = network(images(3, 2), network(images(1, 4))[1])
        found.append((support, query, *gradients, at_test))
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(own, other)


@pytest.mark.parametrize("norm", ["metabn", "running"])
def test_tasks_with_parameters_of_their_own_have_the_features_that_each_has_alone(norm):
    network = Plain(SHAPE, NoSettings(), norm).double().eval()
    own = {n: torch.randn(TASKS, *p.shape, dtype=torch.float64) for n, p in network.named_parameters()}
    del own[next(iter(own))]  # one that all share
    support, query = images(1, 4), images(2, 5)
    features, statistics = functional_call(network, own, (support,))
    of_queries, _ = functional_call(network, own, (query, statistics))
    for task in range(TASKS):
        here, parameters = slice(task, task + 1), {name: p[task] for name, p in own.items()}
        alone, moments = functional_call(network, parameters, (support[here],))
        torch.testing.assert_close(features[here], alone)
        torch.testing.assert_close(of_queries[here], functional_call(network, parameters, (query[here], moments))[0])


def test_the_networks_own_norm_is_what_torch_does_with_all_images_of_a_batch():
    network = Plain(SHAPE, NoSettings(), "own").double()
    torch.manual_seed(0)
    plain = Plain(SHAPE, NoSettings(), "own").double()
    plain.load_state_dict(network.state_dict())
    layers = plain.network
    x = images(1, 4)
    features, statistics = network(x)
    torch.testing.assert_close(features, layers(x.flatten(0, 1)).unflatten(0, (TASKS, 4)))
    assert statistics == ()
    torch.testing.assert_close(network.state_dict(), plain.state_dict())  # averages have moved in both


def test_scale_shift_and_averages_of_a_trained_network_are_taken_over():
    class Trained(Plain):
        def build_network(self) -> nn.Module:
            torch.manual_seed(5)
            network = super().build_network()
            for layer in network:
                if isinstance(layer, nn.BatchNorm2d):
                    for tensor in (layer.weight, layer.bias, layer.running_mean, layer.running_var):
                        tensor.data.uniform_(0.5, 2.0)
            return network

    ours, own = (Trained(SHAPE, NoSettings(), norm).double().eval() for norm in ("running", "own"))
    torch.testing.assert_close(ours(images(1, 4))[0], own(images(1, 4))[0])


def test_dropout_layers_drop_where_a_method_wants_it():
    class Dropping(Plain):
        def build_network(self) -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.Dropout(0.5))

    x = images(1, 4)
    torch.manual_seed(0)
    assert (Dropping(SHAPE, NoSettings(), "metabn", dropout=True).double()(x)[0] == 0).double().mean() > 0.3
    torch.testing.assert_close(Dropping(SHAPE, NoSettings(), "metabn").double()(x)[0], x.flatten(2))


def made(network: nn.Module) -> NetworkBackbone:
    return type("Made", (NetworkBackbone,), {"build_network": lambda _: network})(SHAPE, NoSettings(), "metabn")


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (nn.Sequential(nn.BatchNorm2d(2, eps=1e-3), nn.Flatten()), r"0 has epsilon 0\.001.*--norm own"),
        (nn.Linear(7, 3), "must take images of the bench's shape, 2x8x9"),
    ],
)
def test_networks_that_cannot_be_backbones_are_refused(network, message):
    with pytest.raises(UserError, match=message):
        made(network)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left_out = nn.BatchNorm2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Unused(), "left_out is used not at all"),
        (nn.Sequential(*[nn.BatchNorm2d(2)] * 2, nn.Flatten()), "0 is used twice"),
    ],
)
def test_a_norm_layer_has_one_place(network, message):
    with pytest.raises(TrialError, match=message):
        made(network)


def test_resnet12_has_the_parameters_and_features_that_are_published():
    network = ResNet12((3, 84, 84), ResNet12Settings(), "running")
    convolutions = sum(
        9 * i * o + 9 * o * o + 9 * o * o + i * o for i, o in zip((3, 64, 160, 320), (64, 160, 320, 640), strict=True)
    )
    norms = sum(4 * 2 * o for o in (64, 160, 320, 640))
    assert sum(p.numel() for p in network.parameters()) == convolutions + norms == 12_424_320  # "12.4M", Lee et al.
    assert network.features == 640
    assert ResNet12((3, 84, 84), ResNet12Settings(pooled=False), "running").features == 640 * 5 * 5


def test_resnet12_refuses_images_that_are_too_small():
    plugin = registry.backbone("resnet12")
    with pytest.raises(UserError, match="4 blocks leave nothing of 15x30"):
        plugin((3, 15, 30), plugin.Settings(), "metabn")


def test_drop_block_drops_squares_at_the_asked_rate_and_keeps_the_mean():
    torch.manual_seed(0)
    x = torch.ones(400, 10, 10, 10, dtype=torch.float64)
    out = dropped(x, 0.1, 3)
    zero = out == 0
    # Expected share of zeros inside, where all squares that cover a point may lie: 1 - (1 - rate)^9.
    rate = 0.1 * 100 / (9 * 64)
    assert float(zero[..., 2:-2, 2:-2].double().mean()) == pytest.approx(1 - (1 - rate) ** 9, rel=0.02)
    assert float(out.mean()) == pytest.approx(1.0)
    torch.testing.assert_close(dropped(x[:1], 0.0, 3), x[:1])
