"""Causal layers against torch's own convolution and attention; one more point against the pass over all of them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mlpip_bench.nn.causal import CausalAttention, DenseConvolution

TASKS, POINTS, WIDTH = 2, 9, 5
LAYERS = {
    "convolution": lambda: DenseConvolution(WIDTH, 3, 2),
    "convolution that reaches before the start": lambda: DenseConvolution(WIDTH, 3, 16),
    "attention": lambda: CausalAttention(WIDTH, 4, 3),
}


def made(layer: str) -> nn.Module:
    torch.manual_seed(0)
    return LAYERS[layer]().double()


def sequence(points: int = POINTS, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(TASKS, points, WIDTH, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("name", LAYERS)
def test_a_point_is_seen_from_its_own_place_on(name):
    layer, before = made(name), sequence()
    for place in range(POINTS):
        after = before.clone()
        after[:, place] += 1.0
        changed = (layer(after) != layer(before)).any(-1)
        assert not changed[:, :place].any()
        assert changed[:, place].all()


@pytest.mark.parametrize("name", LAYERS)
def test_what_comes_in_stays_as_it_is(name):
    assert torch.equal(made(name)(sequence())[..., :WIDTH], sequence())


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("points", [1, 2, 3, POINTS])
def test_a_point_that_follows_is_the_last_one_of_the_whole_pass(name, points):
    layer, before, others = made(name), sequence(points), sequence(4, seed=2)
    found = layer.following(before, others)
    for number in range(4):
        whole = layer(torch.cat([before, others[:, number : number + 1]], 1))
        torch.testing.assert_close(found[:, number], whole[:, -1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("dilation", [1, 2, 4])
def test_a_convolution_is_torchs_with_a_gate(dilation):
    layer, x = DenseConvolution(WIDTH, 3, dilation).double(), sequence()
    kernel = torch.stack([layer.taps.weight[:, :WIDTH], layer.taps.weight[:, WIDTH:]], -1)
    padded = F.pad(x.mT, (dilation, 0))
    candidate, gate = F.conv1d(padded, kernel, layer.taps.bias, dilation=dilation).mT.split(3, -1)
    torch.testing.assert_close(layer(x)[..., WIDTH:], torch.tanh(candidate) * torch.sigmoid(gate))


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_convolutions_of_doubled_dilations_reach_every_point_as_far_back_as_their_number_says(layers):
    x, width = sequence().requires_grad_(), WIDTH
    out = x
    for number in range(layers):
        out = DenseConvolution(width, 3, 2**number).double()(out)
        width += 3
    out[:, -1, WIDTH:].sum().backward()
    reached = (x.grad != 0).any(-1)
    assert reached.sum(-1).tolist() == [2**layers] * TASKS
    assert reached[:, -(2**layers) :].all()


def test_attention_is_torchs_under_a_causal_mask():
    layer, x = made("attention"), sequence()
    expected = F.scaled_dot_product_attention(layer.query(x), layer.key(x), layer.value(x), is_causal=True)
    torch.testing.assert_close(layer(x)[..., WIDTH:], expected)


def test_weights_of_attention_sum_to_one_over_what_a_point_reads():
    weights = made("attention").weights(sequence())
    torch.testing.assert_close(weights.sum(-1), torch.ones(TASKS, POINTS, dtype=torch.float64))
    assert not weights.triu(1).any()
    assert (weights.sum(1) - 1).abs().max() > 0.1  # and not over those that read a point
