"""A convolutional block in few operations, each of which an accelerator starts as a kernel of its own.

On a GPU a step of a small network takes as long as starting its kernels. Derivatives that torch puts together out of
many small operations are written down here in few; :func:`usable` says where.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

_aten = torch.ops.aten


def usable(images: Tensor) -> bool:
    """Whether the functions of this module are for such images: anywhere but on a CPU, which starts nothing."""
    return images.device.type != "cpu"


def convolve(
    images: Float[Tensor, "point group_and_channel height width"],
    weight: Float[Tensor, "group_and_filter channel 3 3"],
    groups: int,
) -> Tensor:
    """A 3x3 convolution in groups, whose second derivatives do not go through them one by one, as torch's do."""
    kind = images.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        precision = torch.get_autocast_dtype(kind)  # cast here: autocast sees no derivatives that are written down
        images, weight = images.to(precision), weight.to(precision)
    convolved: Tensor = _Convolution.apply(images, weight, groups)  # type: ignore[no-untyped-call]
    return convolved


def batch_norm(
    images: Float[Tensor, "point channel height width"],
    scale: Float[Tensor, " channel"],
    shift: Float[Tensor, " channel"],
    epsilon: float,
) -> Tensor:
    """Each channel normalized by its own moments over all images, with second derivatives in a fifth of torch's steps.

    At least in float32.
    """
    images = images.to(torch.promote_types(images.dtype, torch.float32))
    normalized: Tensor = _BatchNorm.apply(images, scale, shift, epsilon)[0]  # type: ignore[no-untyped-call]
    return normalized


def pooled_by_support(
    images: Float[Tensor, "task point channel height width"],
    support: int,
    scale: Float[Tensor, "channel 1 1"],
    shift: Float[Tensor, "channel 1 1"],
    epsilon: float,
    *,
    ceil_mode: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Support set and queries at once, normalized by the support set's moments; then ReLU and 2x2 max pooling.

    Args:
        images: activations of a task's support set, and after them those of its queries.
        support: how many images the support set has.
        scale: of the normalization.
        shift: likewise.
        epsilon: added to variances.
        ceil_mode: whether pooling rounds sizes up.

    Returns:
        The pooled images, and mean and population variance of the support set's, ``[task, 1, channel, 1, 1]``.
    """
    result: tuple[Tensor, Tensor, Tensor] = _PooledBySupport.apply(  # type: ignore[no-untyped-call]
        images, scale, shift, support, epsilon, ceil_mode
    )
    return result


def _convolution_backward(
    gradient: Tensor, images: Tensor, weight: Tensor, groups: int, wanted: tuple[bool, bool]
) -> tuple[Tensor, Tensor]:
    by_images, by_weight, _ = _aten.convolution_backward(
        gradient, images, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups, [*wanted, False]
    )
    return by_images, by_weight


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, groups: int) -> Tensor:
        ctx.save_for_backward(images, weight)
        ctx.groups = groups
        return F.conv2d(images, weight, padding=1, groups=groups)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return *_ConvolutionBackward.apply(gradient, *ctx.saved_tensors, ctx.groups, ctx.needs_input_grad[:2]), None  # type: ignore[no-untyped-call]


class _ConvolutionBackward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, gradient: Tensor, images: Tensor, weight: Tensor, groups: int, wanted: tuple[bool, bool]
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(gradient, images, weight)
        ctx.groups = groups
        return _convolution_backward(gradient, images, weight, groups, wanted)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_images: Tensor | None, of_weight: Tensor | None) -> Any:
        # The gradients are products of two of the three: what is linear in one has the other's convolution behind it.
        gradient, images, weight = ctx.saved_tensors
        by_gradient = by_images = by_weight = None
        if of_images is not None:
            by_gradient = F.conv2d(of_images, weight, padding=1, groups=ctx.groups)
            _, by_weight = _convolution_backward(gradient, of_images, weight, ctx.groups, (False, True))
        if of_weight is not None:
            more = F.conv2d(images, of_weight, padding=1, groups=ctx.groups)
            by_gradient = more if by_gradient is None else by_gradient + more
            if ctx.needs_input_grad[1]:
                by_images, _ = _convolution_backward(gradient, images, of_weight, ctx.groups, (True, False))
        return by_gradient, by_images, by_weight, None, None


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        normalized, mean, inverse = torch.native_batch_norm(x, scale, shift, None, None, True, 0.0, epsilon)
        ctx.save_for_backward(x, scale, mean, inverse)
        ctx.epsilon = epsilon
        ctx.mark_non_differentiable(mean, inverse)
        return normalized, mean, inverse

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> Any:
        return *_BatchNormBackward.apply(gradient, *ctx.saved_tensors, ctx.epsilon), None  # type: ignore[no-untyped-call]


class _BatchNormBackward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, gradient: Tensor, x: Tensor, scale: Tensor, mean: Tensor, inverse: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.epsilon = epsilon
        by_x, by_scale, by_shift = _batch_norm_backward(gradient, x, scale, mean, inverse, epsilon)
        ctx.save_for_backward(gradient, x, scale, mean, inverse, by_scale, by_shift)
        return by_x, by_scale, by_shift

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_x: Tensor, of_scale: Tensor, of_shift: Tensor) -> Any:
        # With n images and positions in a channel, N(u) = u - mean(u) - x' mean(u x'), and x' = (x - mean) inverse,
        # the backward pass is by_x = scale inverse N(g), by_scale = sum(g x'), by_shift = sum(g). Here are the
        # derivatives by g, x and scale of L = sum(of_x by_x) + of_scale by_scale + of_shift by_shift.
        g, x, scale, mean, inverse, by_scale, by_shift = ctx.saved_tensors
        count = x.numel() // x.shape[1]
        plain = torch.native_batch_norm(x, None, None, None, None, True, 0.0, ctx.epsilon)[0]  # x'
        projected, of_plain, summed = _batch_norm_backward(of_x, x, scale, mean, inverse, ctx.epsilon)
        product = (of_x * g).sum((0, 2, 3))
        product = torch.sub(product, torch.addcmul(summed * by_shift, of_plain, by_scale), alpha=1 / count)
        by_scale_again = inverse * product
        minus = (scale * inverse).div_(-count)
        by_gradient = torch.addcmul(projected + _wide(of_shift), plain, _wide(of_scale))
        # L by x' is v below, and by ``inverse`` it is scale product.
        v = torch.addcmul(of_x * _wide(minus * by_scale), g, _wide(torch.addcmul(of_scale, minus, of_plain)))
        by_x = _batch_norm_backward(v, x, None, mean, inverse, ctx.epsilon)[0]
        by_x = torch.addcmul(by_x, plain, _wide(minus * by_scale_again))
        return by_gradient, by_x, by_scale_again, None, None, None


def _batch_norm_backward(
    gradient: Tensor, x: Tensor, scale: Tensor | None, mean: Tensor, inverse: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    result: tuple[Tensor, Tensor, Tensor] = _aten.native_batch_norm_backward(
        gradient, x, scale, None, None, mean, inverse, True, epsilon, [True, scale is not None, scale is not None]
    )
    return result


def _wide(of_channels: Tensor) -> Tensor:
    return of_channels.view(-1, 1, 1)


_POINTS = (1, 3, 4)
"""Dimensions of images of tasks over which a channel has moments."""


class _PooledBySupport(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, images: Tensor, scale: Tensor, shift: Tensor, support: int, epsilon: float, ceil_mode: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        variance, mean = _moments(images[:, :support])
        inverse = torch.rsqrt(variance + epsilon)
        factor = scale * inverse
        # A maximum passes through ReLU and through a factor that is not negative; through a negative one, the minimum.
        sign = scale.sign().to(images.dtype)
        largest, where = F.max_pool2d((images * sign).flatten(0, 1), 2, ceil_mode=ceil_mode, return_indices=True)
        pooled = largest.unflatten(0, images.shape[:2]).mul_(sign)
        out = torch.addcmul(torch.addcmul(shift, mean, factor, value=-1), pooled, factor).relu_()
        ctx.save_for_backward(images, scale, shift, mean, inverse, pooled, where, out)
        ctx.arguments = support, epsilon, ceil_mode
        return out, mean, variance

    @staticmethod
    def backward(ctx: Any, of_out: Tensor | None, of_mean: Tensor | None, of_variance: Tensor | None) -> Any:
        images, scale, shift, mean, inverse, pooled, where, out = ctx.saved_tensors
        support, epsilon, ceil_mode = ctx.arguments
        if torch.is_grad_enabled():  # second derivatives, by torch's own operations
            plain = _plainly(images, scale, shift, support, epsilon, ceil_mode=ceil_mode)
            used = [(o, g) for o, g in zip(plain, (of_out, of_mean, of_variance), strict=True) if g is not None]
            found = torch.autograd.grad(
                [o for o, _ in used],
                (images, scale, shift),
                [g for _, g in used],
                create_graph=True,
                allow_unused=True,
            )
            return *found, None, None, None
        of_out = torch.zeros_like(out) if of_out is None else of_out
        gradient = _aten.threshold_backward(of_out, out, 0)
        by_shift = gradient.sum(_POINTS, keepdim=True)
        by_scale = torch.addcmul((gradient * pooled).sum(_POINTS, keepdim=True), mean, by_shift, value=-1).mul_(inverse)
        factor = scale * inverse
        by_images = _aten.max_pool2d_with_indices_backward(
            (gradient * factor).to(images.dtype).flatten(0, 1),
            *(images.flatten(0, 1), [2, 2], [2, 2], [0, 0], [1, 1], ceil_mode, where),
        ).unflatten(0, images.shape[:2])
        # What comes through mean and variance: -factor / n (by_shift + x' by_scale), with x' = (x - mean) inverse.
        own = images[:, :support]
        count = own[0, :, 0].numel()
        factor.div_(-count)
        slope = factor * by_scale * inverse
        if of_variance is not None:
            slope += of_variance * (2 / count)
        offset = torch.addcmul(factor * by_shift, mean, slope, value=-1)
        if of_mean is not None:
            offset += of_mean / count
        by_images[:, :support].add_(torch.addcmul(offset, own, slope))
        return by_images, by_scale.sum((0, 1)), by_shift.sum((0, 1)), None, None, None


def _moments(support: Tensor) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(support.dtype, torch.float32)
    return torch.var_mean(support.to(wide), _POINTS, correction=0, keepdim=True)


def _plainly(
    images: Tensor, scale: Tensor, shift: Tensor, support: int, epsilon: float, *, ceil_mode: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`pooled_by_support` by torch's own operations."""
    variance, mean = _moments(images[:, :support])
    normalized = (images - mean) * torch.rsqrt(variance + epsilon) * scale + shift
    pooled = F.max_pool2d(F.relu(normalized).flatten(0, 1), 2, ceil_mode=ceil_mode)
    return pooled.unflatten(0, images.shape[:2]), mean, variance
