"""Pooling with moments, and normalization with ReLU, on a CPU in one pass each, with first and second derivatives.

The loops are in :mod:`mlpip_bench.nn.kernels` and take numba, the extra ``fast``; :func:`usable` says where these
functions take the place of torch's own, which give the same but for rounding.
"""

from __future__ import annotations

import functools
import importlib.util
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

MOST_THREADS = 4
"""Threads of torch up to which its own operations, which share the work among them, take longer than these loops."""


@functools.cache
def _kernels() -> ModuleType | None:
    if importlib.util.find_spec("numba") is None:
        return None
    from mlpip_bench.nn import kernels

    return kernels


def usable(images: Tensor) -> bool:
    """Whether the functions of this module are for such images: on a CPU, in single or half precision, with numba."""
    return (
        images.device.type == "cpu"
        and images.dtype in (torch.float32, torch.bfloat16)
        and images.numel() > 0
        and torch.get_num_threads() <= MOST_THREADS
        and not torch.compiler.is_compiling()
        and _kernels() is not None
    )


def pool(images: Float[Tensor, "point channel height width"], *, ceil_mode: bool) -> Tensor:
    """2x2 max pooling.

    Args:
        images: activations, channels innermost in memory.
        ceil_mode: whether sizes are rounded up.
    """
    pooled: Tensor = _Pool.apply(images, ceil_mode, False)[0]  # type: ignore[no-untyped-call]
    return pooled


def pool_with_moments(
    images: Float[Tensor, "point channel height width"], *, ceil_mode: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """2x2 max pooling, with mean and population variance of each channel before it, at least in float32.

    Arguments are those of :func:`pool`.
    """
    result: tuple[Tensor, Tensor, Tensor] = _Pool.apply(images, ceil_mode, True)  # type: ignore[no-untyped-call]
    return result


def affine_relu(
    x: Float[Tensor, "point channel height width"],
    factor: Float[Tensor, "rows channel"],
    offset: Float[Tensor, "rows channel"],
) -> Tensor:
    """``relu(x * factor + offset)``, at least in float32.

    Args:
        x: activations, channels innermost in memory.
        factor: for all points (one row), or for each.
        offset: likewise.
    """
    result: Tensor = _AffineReLU.apply(x, factor, offset)  # type: ignore[no-untyped-call]
    return result


def _array(x: Tensor) -> Any:
    """The memory of images, channels innermost; bfloat16 as its bits."""
    x = x.detach().permute(0, 2, 3, 1)
    x = x if x.is_contiguous() else x.contiguous()
    return (x.view(torch.uint16) if x.dtype == torch.bfloat16 else x).numpy()


def _new(like: Tensor, height: int, width: int, *, dtype: torch.dtype | None = None) -> Tensor:
    points, channels = like.shape[:2]
    return like.new_empty(points, height, width, channels, dtype=dtype).permute(0, 3, 1, 2)


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, ceil_mode: bool, moments: bool) -> tuple[Tensor, Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        height, width = ((side + ceil_mode) // 2 for side in images.shape[2:])
        pooled, where = _new(images, height, width), _new(images, height, width, dtype=torch.uint8)
        mean, variance = torch.empty(2, images.shape[1], dtype=torch.promote_types(images.dtype, torch.float32))
        arrays = [_array(x) for x in (images, pooled, where)]
        _kernels().pool(*arrays, mean.numpy(), variance.numpy(), moments)  # type: ignore[union-attr]
        # Without moments the activations are not needed again: their memory is the next task's, and still in the cache.
        ctx.save_for_backward(where, *((images, mean) if moments else ()))
        ctx.shape, ctx.dtype = images.shape, images.dtype
        return pooled, mean, variance

    @staticmethod
    def backward(ctx: Any, of_pooled: Tensor | None, of_mean: Tensor | None, of_variance: Tensor | None) -> Any:
        where, *of_moments = ctx.saved_tensors
        if of_pooled is None:
            of_pooled = torch.zeros_like(where, dtype=ctx.dtype)
        images, mean = of_moments or (None, None)
        gradient = _PoolBackward.apply(of_pooled, of_mean, of_variance, where, images, mean, ctx.shape)  # type: ignore[no-untyped-call]
        return gradient, None, None


class _PoolBackward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        of_pooled: Tensor,
        of_mean: Tensor | None,
        of_variance: Tensor | None,
        where: Tensor,
        images: Tensor | None,
        mean: Tensor | None,
        shape: torch.Size,
    ) -> Tensor:
        moments = of_mean is not None or of_variance is not None
        gradient = _new(of_pooled, *shape[2:])
        zeros = torch.zeros(shape[1], dtype=torch.promote_types(gradient.dtype, torch.float32))
        rows = [zeros if row is None else row.detach().contiguous() for row in (mean, of_mean, of_variance)]
        arrays = [_array(x) for x in (of_pooled, where, gradient if images is None else images, gradient)]
        *read, written = arrays
        _kernels().unpool(*read, *[row.numpy() for row in rows], written, moments)  # type: ignore[union-attr]
        ctx.save_for_backward(where, *((images, mean, of_variance) if moments else ()))
        return gradient

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_gradient: Tensor) -> Any:
        where, *of_moments = ctx.saved_tensors
        of_pooled = _new(of_gradient, *where.shape[2:])
        _kernels().gather(_array(of_gradient), _array(where), _array(of_pooled))  # type: ignore[union-attr]
        if not of_moments:
            return of_pooled, None, None, None, None, None, None
        images, mean, of_variance = of_moments
        count = images.numel() / images.shape[1]
        wide, over = of_gradient.to(mean.dtype), (0, 2, 3)
        average = wide.mean(over)
        of_variances = of_images = None
        if of_variance is not None:
            centered = images - mean.view(-1, 1, 1)
            of_variances = (wide * centered).sum(over) * (2 / count)
            of_images = (wide - average.view(-1, 1, 1)) * (2 / count * of_variance).view(-1, 1, 1)
            of_images = of_images.to(images.dtype)
        return of_pooled, average, of_variances, None, of_images, None, None


class _AffineReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor, offset: Tensor) -> Tensor:
        out = _new(x, *x.shape[2:], dtype=factor.dtype)
        rows = [row.detach().contiguous().numpy() for row in (factor, offset)]
        _kernels().affine_relu(_array(x), *rows, _array(out))  # type: ignore[union-attr]
        ctx.save_for_backward(x, factor, out)
        return out

    @staticmethod
    def backward(ctx: Any, of_out: Tensor) -> Any:
        return _AffineReLUBackward.apply(of_out, *ctx.saved_tensors)  # type: ignore[no-untyped-call]


class _AffineReLUBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, of_out: Tensor, x: Tensor, factor: Tensor, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        of_x = _new(x, *x.shape[2:])
        of_factor, of_offset = torch.zeros(2, *factor.shape, dtype=factor.dtype)
        arrays = [_array(of_out), _array(x), factor.detach().contiguous().numpy(), _array(out), _array(of_x)]
        _kernels().affine_relu_backward(*arrays, of_factor.numpy(), of_offset.numpy())  # type: ignore[union-attr]
        ctx.save_for_backward(of_out, x, factor, out)
        return of_x, of_factor, of_offset

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_x: Tensor, by_factor: Tensor, by_offset: Tensor) -> Any:
        of_out, x, factor, out = ctx.saved_tensors
        passed = (out > 0).to(out.dtype)
        f, b, c = (row[:, :, None, None] for row in (factor, by_factor, by_offset))
        gradient = passed * of_out
        of_factor = (by_x * gradient).sum((2, 3))
        if len(factor) == 1:
            of_factor = of_factor.sum(0, keepdim=True)
        return passed * (by_x * f + b * x + c), (gradient * b).to(x.dtype), of_factor, None
