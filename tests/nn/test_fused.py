"""Pooling and normalization in one pass, against torch's own operations and finite differences."""

import importlib
import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F

from builders import make_config
from mlpip_bench.execution import planning
from mlpip_bench.nn import fused
from mlpip_bench.nn.conv_block import ConvBlock
from mlpip_bench.utils.choices import NORM_MODES
from mlpip_bench.utils.device import environment

pytest.importorskip("numba")

SIDES = [(4, 4), (5, 3), (2, 7), (1, 1)]
WINDOWS = [(sides, ceil_mode) for sides in SIDES for ceil_mode in (True, False) if ceil_mode or sides != (1, 1)]


def images(sides: tuple[int, int], dtype: torch.dtype = torch.float64, points: int = 4, channels: int = 4) -> Tensor:
    torch.manual_seed(0)
    drawn = 2 + 3 * torch.randn(points, channels, *sides, dtype=torch.float64)
    return drawn.to(dtype).contiguous(memory_format=torch.channels_last)


def plain(x: Tensor, ceil_mode: bool, rows: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    groups, over = x.unflatten(0, (rows, -1)), (1, 3, 4)
    return F.max_pool2d(x, 2, ceil_mode=ceil_mode), groups.mean(over), groups.var(over, correction=0)


def relative(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize(("sides", "ceil_mode"), WINDOWS)
def test_maxima_and_moments_are_torchs_with_both_derivatives(sides, ceil_mode):
    x = images(sides).requires_grad_()
    assert torch.equal(fused.pool(x, ceil_mode=ceil_mode), plain(x, ceil_mode)[0])
    for rows in (1, 2, 4):
        found = fused.pool_with_moments(x, rows, ceil_mode=ceil_mode)
        for part, expected in zip(found, plain(x, ceil_mode, rows), strict=True):
            torch.testing.assert_close(part, expected)
        assert gradcheck(lambda x, r=rows: fused.pool_with_moments(x, r, ceil_mode=ceil_mode), x)
        assert gradgradcheck(lambda x, r=rows: fused.pool_with_moments(x, r, ceil_mode=ceil_mode), x)
    assert gradcheck(lambda x: fused.pool(x, ceil_mode=ceil_mode), x)
    assert gradgradcheck(lambda x: fused.pool(x, ceil_mode=ceil_mode), x)


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_affine_and_relu_are_torchs_with_both_derivatives(rows):
    x = images((3, 2)).requires_grad_()
    lines = torch.randn(2, rows, 4, dtype=torch.float64).requires_grad_()
    of_points = lines.repeat_interleave(4 // rows, 1)
    expected = F.relu(x * of_points[0, :, :, None, None] + of_points[1, :, :, None, None])
    assert 0 < (expected > 0).sum() < expected.numel()
    torch.testing.assert_close(fused.affine_relu(x, *lines), expected)
    assert gradcheck(lambda x, lines: fused.affine_relu(x, *lines), (x, lines))
    assert gradgradcheck(lambda x, lines: fused.affine_relu(x, *lines), (x, lines))


@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize(("sides", "ceil_mode"), WINDOWS)
def test_maxima_and_relu_are_torchs_with_both_derivatives(sides, ceil_mode, rows):
    x, offset = images(sides).requires_grad_(), (torch.randn(rows, 4, dtype=torch.float64) - 3).requires_grad_()

    def ours(x: Tensor, offset: Tensor) -> Tensor:
        return fused.pool_relu(x, offset, ceil_mode=ceil_mode, dtype=torch.float64)

    expected = F.relu(plain(x, ceil_mode)[0] + offset.repeat_interleave(4 // rows, 0)[:, :, None, None])
    assert 0 < (expected > 0).sum() < expected.numel()
    torch.testing.assert_close(ours(x, offset), expected)
    assert gradcheck(ours, (x, offset))
    assert gradgradcheck(ours, (x, offset))


def convolved(images: Tensor, filters: Tensor, offset: Tensor, ceil_mode: bool) -> Tensor:
    """What ``conv_pool_relu`` gives, by torch's operations and a network at a time."""
    rows, groups = filters.shape[:2]
    parts = [
        torch.cat(
            [
                F.relu(
                    F.max_pool2d(F.conv2d(some[:, g], filters[r, g], padding=1), 2, ceil_mode=ceil_mode)
                    + offset[r, g, :, None, None]
                )
                for g in range(groups)
            ],
            1,
        )
        for r, some in enumerate(images.unflatten(0, (rows, -1)))
    ]
    return torch.cat(parts)


@pytest.mark.parametrize(("rows", "groups", "channels"), [(1, 1, 1), (2, 1, 3), (1, 3, 2)])
@pytest.mark.parametrize(("sides", "ceil_mode"), WINDOWS)
def test_the_first_block_is_torchs_with_both_derivatives(sides, ceil_mode, rows, groups, channels):
    torch.manual_seed(0)
    x = torch.randn(4, groups, channels, *sides, dtype=torch.float64)
    filters = torch.randn(rows, groups, 5, channels, 3, 3, dtype=torch.float64).requires_grad_()
    offset = (torch.randn(rows, groups, 5, dtype=torch.float64) - 2).requires_grad_()

    def ours(filters: Tensor, offset: Tensor) -> Tensor:
        return fused.conv_pool_relu(x, filters, offset, ceil_mode=ceil_mode, dtype=torch.float64)

    expected = convolved(x, filters, offset, ceil_mode)
    assert 0 < (expected > 0).sum() < expected.numel()
    torch.testing.assert_close(ours(filters, offset), expected)
    assert gradcheck(ours, (filters, offset))
    assert gradgradcheck(ours, (filters, offset))


@pytest.mark.parametrize("own_filters", [False, True])
def test_moments_of_patches_give_those_of_their_convolution(own_filters):
    torch.manual_seed(0)
    x = 5 + torch.rand(3, 4, 2, 7, 6, dtype=torch.float64)
    filters = torch.randn(3 if own_filters else 1, 5, 2, 3, 3, dtype=torch.float64).requires_grad_()
    outputs = [F.conv2d(images, filters[task if own_filters else 0], padding=1) for task, images in enumerate(x)]
    over = (1, 3, 4)
    expected = torch.stack(outputs).mean(over), torch.stack(outputs).var(over, correction=0)
    torch.testing.assert_close(fused.moments_of_convolution(x, filters), expected)
    single = fused.moments_of_convolution(x.float(), filters.float())
    assert max(relative(found, exact) for found, exact in zip(single, expected, strict=True)) < 1e-6
    assert gradcheck(lambda filters: fused.moments_of_convolution(x, filters), filters)
    assert gradgradcheck(lambda filters: fused.moments_of_convolution(x, filters), filters)


def test_gradients_of_the_first_block_in_single_precision_are_those_of_double():
    torch.manual_seed(0)
    # Sixteenths, so that outputs are exact in both, and the same ones are the highest.
    x = torch.randint(16, (75, 1, 1, 28, 28)) / 16
    filters, offset = (torch.randint(-16, 17, shape) / 16 for shape in ((1, 1, 64, 1, 3, 3), (1, 1, 64)))
    weights = torch.randn(75, 64, 14, 14)
    found, exact = (
        [part.to(dtype).requires_grad_() for part in (filters, offset)] for dtype in (torch.float32, torch.float64)
    )
    out = fused.conv_pool_relu(x, *found, ceil_mode=True, dtype=torch.float32)
    gradients = torch.autograd.grad((out * weights).sum(), found)
    wanted = torch.autograd.grad((convolved(x.double(), *exact, True) * weights).sum(), exact)
    assert all(relative(f, e) < 5e-6 for f, e in zip(gradients, wanted, strict=True))


def test_a_block_in_bfloat16_is_rounded_and_no_more():
    """Against the same in float64 of the numbers that came, rounded once."""
    torch.manual_seed(0)
    offset, ways = torch.randn(2, 4), {"ceil_mode": True, "dtype": torch.bfloat16}
    x = images((6, 5), torch.bfloat16).requires_grad_()
    out = fused.pool_relu(x, offset, **ways)
    exact = F.relu(plain(x.double(), True)[0] + offset.double().repeat_interleave(2, 0)[:, :, None, None])
    torch.testing.assert_close(out, exact.bfloat16(), rtol=2**-8, atol=0)
    weights = torch.randn(out.shape).bfloat16()
    (gradient,) = torch.autograd.grad(out, x, weights)
    (expected,) = torch.autograd.grad(exact, x, weights.double())
    assert torch.equal(gradient, expected)  # each is one of the weights, or none
    pixels, filters = torch.rand(4, 1, 1, 6, 5), torch.randn(2, 1, 4, 1, 3, 3)
    of_pixels = fused.conv_pool_relu(pixels, filters, offset.unsqueeze(1), **ways)
    exact = convolved(pixels.double(), filters.double(), offset.unsqueeze(1).double(), True)
    torch.testing.assert_close(of_pixels, exact.bfloat16(), rtol=2**-7, atol=1e-6)


def passed_through(x: Tensor, lines: Tensor, pooled_with_moments) -> Tensor:
    """A loss of a whole block behind its convolution."""
    pooled, mean, variance = pooled_with_moments(x)
    factor = lines[0] * (variance + 1e-5).rsqrt()
    rows = factor, lines[1] - mean * factor
    if x.dtype == torch.float64:
        out = F.relu(pooled * rows[0][..., None, None] + rows[1][..., None, None])
    else:
        out = fused.affine_relu(pooled, *rows)
    return (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum()


@pytest.mark.parametrize("sides", [(28, 28), (7, 7)])
def test_gradients_in_single_precision_are_those_of_double(sides):
    x, lines = images(sides, torch.float32, 20, 64).requires_grad_(), torch.rand(2, 64).add(0.5).requires_grad_()
    found = torch.autograd.grad(
        passed_through(x, lines, lambda x: fused.pool_with_moments(x, ceil_mode=True)), (x, lines)
    )
    exact = [part.detach().double().requires_grad_() for part in (x, lines)]
    expected = torch.autograd.grad(passed_through(*exact, lambda x: plain(x, True)), exact)
    assert all(relative(f, e) < 5e-6 for f, e in zip(found, expected, strict=True))


def test_a_mean_far_above_the_deviation_loses_nothing():
    x = (1000 + images((8, 8), torch.float32, 5)).contiguous(memory_format=torch.channels_last)
    _, mean, variance = fused.pool_with_moments(x, ceil_mode=True)
    _, expected_mean, expected_variance = plain(x.double(), True)
    assert relative(mean, expected_mean) < 1e-7
    assert relative(variance, expected_variance) < 1e-6


def test_activations_in_bfloat16_have_moments_in_single_precision():
    x = images((7, 6), torch.bfloat16, 20).requires_grad_()
    pooled, mean, variance = fused.pool_with_moments(x, ceil_mode=True)
    exact = x.detach().double().requires_grad_()
    expected = plain(exact, True)
    assert (pooled.dtype, mean.dtype, variance.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    assert torch.equal(pooled.double(), expected[0])
    assert max(relative(mean, expected[1]), relative(variance, expected[2])) < 1e-6
    out = fused.affine_relu(pooled, torch.ones(1, 4), torch.zeros(1, 4))
    assert out.dtype == torch.float32
    weights = torch.randn(pooled.shape)
    (found,) = torch.autograd.grad((pooled * weights).sum() + mean.sum() + (variance * variance).sum(), x)
    (wanted,) = torch.autograd.grad(
        (expected[0] * weights).sum() + expected[1].sum() + (expected[2] * expected[2]).sum(), exact
    )
    assert found.dtype == torch.bfloat16
    assert relative(found, wanted) < 2**-8


def test_rounding_to_bfloat16_is_torchs():
    values = torch.cat(
        [torch.randn(1000), torch.tensor([1.00390625, 1.01171875, -0.0, 3e38, 1e-40, math.inf, math.nan])]
    )
    values = values.view(1, 1, 1, -1).requires_grad_()
    factor = torch.ones(1, 1)
    x = torch.ones_like(values).bfloat16().contiguous(memory_format=torch.channels_last).requires_grad_()
    out = fused.affine_relu(x, factor, torch.zeros(1, 1))
    (rounded,) = torch.autograd.grad(out, x, values.detach())
    torch.testing.assert_close(rounded, values.detach().bfloat16(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_stays_so(place, value):
    x = images((2, 2), torch.float32, 1)
    x[0, 1, place // 2, place % 2] = value
    torch.testing.assert_close(fused.pool(x, ceil_mode=True), F.max_pool2d(x, 2), equal_nan=True, rtol=0, atol=0)
    ones = torch.ones(1, 4)
    torch.testing.assert_close(fused.affine_relu(x, ones, ones), F.relu(x + 1), equal_nan=True)
    found = fused.pool_relu(x, ones, ceil_mode=True, dtype=torch.float32)
    torch.testing.assert_close(found, F.relu(F.max_pool2d(x, 2) + 1), equal_nan=True)
    filters, bias = torch.ones(1, 1, 3, 4, 3, 3), torch.ones(1, 1, 3)
    found = fused.conv_pool_relu(x.unsqueeze(1), filters, bias, ceil_mode=True, dtype=torch.float32)
    torch.testing.assert_close(found, convolved(x.unsqueeze(1), filters, bias, True), equal_nan=True)


@pytest.mark.parametrize("rate", [0, 0.6])
@pytest.mark.parametrize("channels", [2, 5])  # few, and more
@pytest.mark.parametrize("own_filters", [False, True])
@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("norm", NORM_MODES)
def test_a_block_is_what_it_is_in_torch_s_operations(norm, tasks, own_filters, channels, rate, monkeypatch):
    torch.manual_seed(1)
    block = ConvBlock(channels, 4, norm, ceil_mode=tasks == 3, dropout=rate)
    with torch.no_grad():
        block.norm.scale.copy_(torch.tensor([1.0, -0.5, 2.0, -1.0]).view(-1, 1, 1))
        block.norm.shift.normal_()
    if own_filters:
        for module in (block.conv, block.norm):
            for name, value in list(module.named_parameters(recurse=False)):
                if value.dim() > 0:
                    own = value.detach().expand(tasks, *value.shape) * torch.linspace(1, 2, tasks).view(
                        -1, *[1] * value.dim()
                    )
                    setattr(module, name, torch.nn.Parameter(own))
    calls, usable = [], fused.usable
    monkeypatch.setattr(fused, "usable", lambda x: usable(x) and not calls.append(1))
    images = torch.rand(2, tasks, 5, channels, 7, 7)

    def outputs(dtype: torch.dtype) -> list[Tensor]:
        block.to(dtype)
        support, query = images.to(dtype)
        of_support, statistics = block(support, None, range(tasks))
        of_query, _ = block(query, statistics, range(10, 10 + tasks))
        loss = (
            of_support * torch.linspace(0, 1, of_support.numel()).view_as(of_support)
        ).sum() + of_query.square().sum()
        gradients = torch.autograd.grad(loss, list(block.parameters()), create_graph=True, allow_unused=True)
        there = [g for g in gradients if g is not None]
        second = torch.autograd.grad(sum(g.square().sum() for g in there), list(block.parameters()), allow_unused=True)
        return [of_support, of_query, *there, *(g for g in second if g is not None)]

    in_passes = outputs(torch.float32)
    for found, expected in zip(in_passes, outputs(torch.float64), strict=True):  # which torch computes
        torch.testing.assert_close(found.double(), expected, rtol=2e-4, atol=2e-4 * expected.abs().max().item())
    assert bool(calls) == (norm not in ("layer", "running"))


@pytest.mark.parametrize("name", ["protonets", "maml"])
def test_a_training_loss_and_its_gradient_are_those_without_numba(name, monkeypatch):
    (trial,) = planning.plan_trials(make_config(methods=(name,), backbone_settings={"channels": 8}, backbone="conv4"))
    batch, found = trial.streams()["train"].batch(0, 2), []
    for with_numba in (True, False):
        if not with_numba:
            monkeypatch.setattr(fused, "_kernels", lambda: None)
        torch.manual_seed(0)
        method = trial.build_method()
        loss = method.loss(batch)
        loss.backward()
        found.append((loss.item(), torch.cat([p.grad.flatten() for p in method.parameters() if p.grad is not None])))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    assert found[0][0] != found[1][0]  # both ways were taken
    assert relative(found[0][1], found[1][1]) < 1e-3


def test_where_torch_s_own_operations_are_taken(monkeypatch):
    here = images((4, 4), torch.float32)
    assert fused.usable(here)
    assert fused.usable(here.bfloat16())
    assert not fused.usable(here.double())
    assert not fused.usable(here[:0])
    assert not fused.usable(here.to("meta"))
    before = torch.get_num_threads()
    torch.set_num_threads(fused.MOST_THREADS + 1)
    try:
        assert not fused.usable(here)
    finally:
        torch.set_num_threads(before)
    monkeypatch.setattr(fused, "_kernels", lambda: None)
    assert not fused.usable(here)


def test_loops_are_compiled_where_nothing_may_be_written(monkeypatch):
    kernels = importlib.import_module("mlpip_bench.nn.kernels")

    def njit(*, cache: bool = False, **options: object):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: ("compiled", function)

    monkeypatch.setattr(kernels, "njit", njit)
    assert kernels.compiled(len) == ("compiled", len)


def test_a_record_names_numba():
    assert environment(torch.device("cpu"))["numba"] == importlib.import_module("numba").__version__
