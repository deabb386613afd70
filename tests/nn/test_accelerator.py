"""Few operations give what torch's many give, with first and second derivatives."""

import pytest
import torch
from torch.nn import functional as F

from mlpip_bench.nn import accelerator


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


def gradients(function, inputs):
    """Of something that no gradient of is constant."""
    output = function(*inputs)
    weights = random(*output.shape, seed=9).detach()
    return torch.autograd.grad((output.square() * weights).sum(), inputs)


def test_a_convolution_in_groups_has_torchs_derivatives():
    inputs = random(3, 4, 5, 4), random(6, 2, 3, 3, seed=1)

    def ours(x, weight):
        return accelerator.convolve(x, weight, 2)

    def torchs(x, weight):
        return F.conv2d(x, weight, padding=1, groups=2)

    torch.testing.assert_close(ours(*inputs), torchs(*inputs))
    torch.testing.assert_close(gradients(ours, inputs), gradients(torchs, inputs))
    assert torch.autograd.gradgradcheck(ours, inputs)
    images = inputs[0].detach()  # of the first block: their gradient is nothing to anyone
    assert torch.autograd.gradgradcheck(lambda weight: ours(images, weight), inputs[1:])


def test_batch_norm_has_torchs_derivatives():
    inputs = random(3, 4, 3, 2), random(4, seed=1), random(4, seed=2)

    def ours(x, scale, shift):
        return accelerator.batch_norm(x, scale, shift, 1e-3)

    def torchs(x, scale, shift):
        return F.batch_norm(x, None, None, scale, shift, training=True, eps=1e-3)

    torch.testing.assert_close(ours(*inputs), torchs(*inputs))
    torch.testing.assert_close(gradients(ours, inputs), gradients(torchs, inputs))
    assert torch.autograd.gradgradcheck(ours, inputs)


@pytest.mark.parametrize("ceil_mode", [False, True])
def test_pooling_of_support_and_queries_has_torchs_derivatives(ceil_mode):
    signs = torch.tensor([1.0, -0.5]).double().view(-1, 1, 1)
    inputs = random(2, 3, 2, 3, 2), signs.requires_grad_(), random(2, 1, 1, seed=2)

    def ours(x, scale, shift):
        return accelerator.pooled_by_support(x, 2, scale, shift, 1e-3, ceil_mode=ceil_mode)

    def torchs(x, scale, shift):
        support = x[:, :2].transpose(1, 2).flatten(2)
        mean, variance = (m.view(2, 1, 2, 1, 1) for m in (support.mean(-1), support.var(-1, correction=0)))
        y = ((x - mean) / (variance + 1e-3).sqrt() * scale + shift).relu()
        return torch.stack([F.max_pool2d(task, 2, ceil_mode=ceil_mode) for task in y]), mean, variance

    torch.testing.assert_close(ours(*inputs), torchs(*inputs))

    def together(results):
        return torch.cat([result.flatten() for result in results])

    for kept in (slice(0, 1), slice(1, 3), slice(0, 3)):  # what a method makes use of

        def of_ours(*given, kept=kept):
            return together(ours(*given)[kept])

        def of_torchs(*given, kept=kept):
            return together(torchs(*given)[kept])

        wanted = inputs if kept.start == 0 else inputs[:1]  # moments are not functions of scale and shift
        fixed = inputs[len(wanted) :]
        torch.testing.assert_close(
            gradients(lambda *given, f=of_ours, fixed=fixed: f(*given, *fixed), wanted),
            gradients(lambda *given, f=of_torchs, fixed=fixed: f(*given, *fixed), wanted),
        )
        assert torch.autograd.gradgradcheck(lambda *given, f=of_ours, fixed=fixed: f(*given, *fixed), wanted)


def test_half_precision_has_statistics_in_single():
    images = random(2, 5, 3, 4, 4).detach().to(torch.bfloat16).requires_grad_()
    scale, shift = torch.ones(3, 1, 1, requires_grad=True), torch.zeros(3, 1, 1, requires_grad=True)
    pooled, mean, variance = accelerator.pooled_by_support(images, 2, scale, shift, 1e-5, ceil_mode=False)
    assert {t.dtype for t in (pooled, mean, variance)} == {torch.float32}
    pooled.sum().backward()
    assert images.grad is not None
    assert images.grad.dtype == torch.bfloat16
    normalized = accelerator.batch_norm(images[0].detach(), scale.flatten(), shift.flatten(), 1e-5)
    assert normalized.dtype == torch.float32
