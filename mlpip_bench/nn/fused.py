"""What is around the convolutions of a block, on a CPU in one pass each, with first and second derivatives.

The loops are in :mod:`mlpip_bench.nn.kernels` and take numba, the extra ``fast``; :func:`usable` says where these
functions take the place of torch's own, which give the same but for rounding.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
from collections.abc import Iterator
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

MOST_THREADS = 4
"""Threads of torch up to which its own operations, which share the work among them, take longer than these loops."""


@functools.cache
def _kernels() -> ModuleType | None:
    if importlib.util.find_spec("numba") is None:
        return None
    from mlpip_bench.nn import kernels

    return kernels


@functools.cache
def _pixel_kernels() -> ModuleType:
    from mlpip_bench.nn import pixel_kernels

    return pixel_kernels


_off: ContextVar[bool] = ContextVar("torch's own operations alone", default=False)


@contextlib.contextmanager
def plain_operations() -> Iterator[None]:
    """Within, all is computed by torch's own operations, which its tools see."""
    before = _off.set(True)
    try:
        yield
    finally:
        _off.reset(before)


def usable(images: Tensor) -> bool:
    """Whether the functions of this module are for such images: on a CPU, in single or half precision, with numba."""
    return (
        not torch.compiler.is_compiling()  # first: its tracer stumbles over what follows
        and not _off.get()
        and images.device.type == "cpu"
        and images.dtype in (torch.float32, torch.bfloat16)
        and images.numel() > 0
        and torch.get_num_threads() <= MOST_THREADS
        and _kernels() is not None
    )


@functools.cache
def prepare(dtype: torch.dtype, *, drops: bool) -> None:
    """Have the loops compiled, which takes seconds, and on a machine's first run many.

    Args:
        dtype: of convolutions; all else is in float32.
        drops: whether there is dropout.
    """
    image = torch.zeros(2, 1, 4, 4, requires_grad=True)
    y = image.to(dtype, memory_format=torch.channels_last)
    row, filters = torch.ones(1, 1, requires_grad=True), torch.ones(1, 1, 1, 1, 3, 3, requires_grad=True)
    all_kept = np.ones((4, 2, 2, 2, 1), bool)
    for out, kept in itertools.product({dtype, torch.float32}, [None, all_kept] if drops else [None]):
        ways: dict[str, Any] = {"ceil_mode": True, "dtype": out, "kept": kept}
        pooled, *moments = pool_with_moments(y, ceil_mode=True, kept=kept)
        results = [
            conv_pool_relu(image.detach().unsqueeze(1), filters, row.unsqueeze(0), **ways),
            pool_relu(y, row, **ways),
            pool(y, ceil_mode=True, kept=kept),
            affine_relu(pooled, row, row, dtype=out),
            *moments,
        ]
        inputs = image, row, filters
        loss = torch.cat([r.float().flatten() for r in results]).square().sum()
        gradients = torch.autograd.grad(loss, inputs, create_graph=True)
        torch.autograd.grad(torch.cat([g.flatten() for g in gradients]).square().sum(), inputs)


def pool(images: Float[Tensor, "point channel height width"], *, ceil_mode: bool, kept: Any = None) -> Tensor:
    """2x2 max pooling.

    Args:
        images: activations, channels innermost in memory.
        ceil_mode: whether sizes are rounded up.
        kept: those among which maxima are sought, as of :func:`mlpip_bench.nn.dropout.kept`; None for all. Where a
            window has none, the maximum is -1e30, which ReLU is to stop.
    """
    pooled: Tensor = _Pool.apply(images, 0, ceil_mode, kept)[0]  # type: ignore[no-untyped-call]
    return pooled


def pool_with_moments(
    images: Float[Tensor, "point channel height width"], rows: int = 1, *, ceil_mode: bool, kept: Any = None
) -> tuple[Tensor, Float[Tensor, "rows channel"], Float[Tensor, "rows channel"]]:
    """2x2 max pooling, with mean and population variance of each channel before it, at least in float32.

    Args:
        images: as of :func:`pool`.
        rows: of how many groups of equally many images, which follow each other, there are moments.
        ceil_mode: as of :func:`pool`.
        kept: likewise; moments are of all activations.
    """
    result: tuple[Tensor, Tensor, Tensor] = _Pool.apply(images, rows, ceil_mode, kept)  # type: ignore[no-untyped-call]
    return result


def affine_relu(
    x: Float[Tensor, "point channel height width"],
    factor: Float[Tensor, "rows channel"],
    offset: Float[Tensor, "rows channel"],
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """``relu(x * factor + offset)``.

    Args:
        x: activations, channels innermost in memory.
        factor: for all points (one row), or for each of equally many that follow each other.
        offset: likewise.
        dtype: of the result; that of the factor where none is named.
    """
    result: Tensor = _AffineReLU.apply(x, factor, offset, dtype or factor.dtype)  # type: ignore[no-untyped-call]
    return result


def pool_relu(
    images: Float[Tensor, "point channel height width"],
    offset: Float[Tensor, "rows channel"],
    *,
    ceil_mode: bool,
    dtype: torch.dtype,
    kept: Any = None,
) -> Tensor:
    """``relu(maximum + offset)`` of 2x2 max pooling.

    Args:
        images: activations, channels innermost in memory.
        offset: for all points (one row), or for each of equally many that follow each other.
        ceil_mode: whether sizes are rounded up.
        dtype: of the result.
        kept: as of :func:`pool`.
    """
    result: Tensor = _PoolReLU.apply(images, offset, ceil_mode, dtype, kept)  # type: ignore[no-untyped-call]
    return result


def conv_pool_relu(
    images: Float[Tensor, "point group channel height width"],
    filters: Float[Tensor, "rows group filter channel 3 3"],
    offset: Float[Tensor, "rows group filter"],
    *,
    ceil_mode: bool,
    dtype: torch.dtype,
    kept: Any = None,
) -> Float[Tensor, "point group*filter height width"]:
    """``relu(maximum + offset)`` of 3x3 convolution with padding and 2x2 max pooling, with no derivative in the images.

    For images of few channels: their convolution takes less time than to keep its result, four times what is pooled.

    Args:
        images: with a group for each network that has filters of its own.
        filters: for all points (one row), or for each of equally many that follow each other.
        offset: likewise.
        ceil_mode: whether sizes are rounded up.
        dtype: of the result; all is computed in that of the filters.
        kept: as of :func:`pool`, of the outputs.
    """
    x = F.pad(images, (1, 2, 1, 2))
    height, width = ((side + ceil_mode) // 2 for side in images.shape[3:])
    arguments = x, filters.movedim(2, -1), offset, (height, width), dtype, kept
    result: Tensor = _ConvPoolReLU.apply(*arguments)  # type: ignore[no-untyped-call]
    return result.flatten(3).permute(0, 3, 1, 2)


def moments_of_convolution(
    images: Float[Tensor, "task point channel height width"],
    filters: Float[Tensor, "#task filter channel 3 3"],
) -> tuple[Float[Tensor, "task filter"], Float[Tensor, "task filter"]]:
    """Mean and population variance of a 3x3 convolution's outputs, by those of the images' 3x3 patches.

    For images of few channels: ``w' E[p]`` and ``w' Cov[p] w`` take no convolution. There is no derivative in the
    images.
    """
    with torch.no_grad():
        patches = F.unfold(images.flatten(0, 1), 3, padding=1).unflatten(0, images.shape[:2])
        patches = patches.transpose(1, 2).flatten(2).double()
        average = patches.mean(2, keepdim=True)
        centered = patches - average
        covariance = centered @ centered.mT / patches.shape[2]
    rows = filters.flatten(2).double()
    mean = (rows @ average).squeeze(2)
    variance = ((rows @ covariance) * rows).sum(2)
    return mean.to(filters.dtype), variance.to(filters.dtype)


def _array(x: Tensor) -> Any:
    """The memory of images, channels innermost; bfloat16 as its bits."""
    x = x.permute(0, 2, 3, 1)
    x = x if x.is_contiguous() else x.contiguous()
    return _bits(x)


def _new(like: Tensor, height: int, width: int, *, dtype: torch.dtype | None = None) -> Tensor:
    points, channels = like.shape[:2]
    return like.new_empty(points, height, width, channels, dtype=dtype).permute(0, 3, 1, 2)


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, rows: int, ceil_mode: bool, kept: Any) -> tuple[Tensor, Tensor, Tensor]:
        moments = rows > 0
        ctx.set_materialize_grads(False)
        height, width = ((side + ceil_mode) // 2 for side in images.shape[2:])
        pooled, where = _new(images, height, width), _new(images, height, width, dtype=torch.uint8)
        dtype = torch.promote_types(images.dtype, torch.float32)
        mean, variance = torch.empty(2, rows or 1, images.shape[1], dtype=dtype)
        read, *written = [_array(x) for x in (images, pooled, where)]
        _kernels().pool(read, kept, *written, mean.numpy(), variance.numpy(), moments)  # type: ignore[union-attr]
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
        return gradient, None, None, None


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
        zeros = torch.zeros(1 if mean is None else len(mean), shape[1])
        zeros = zeros.to(torch.promote_types(gradient.dtype, torch.float32))
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
        rows = len(mean)
        count = images.numel() / mean.numel()
        # [row, point, channel, height, width]
        of_all, all_images = (x.unflatten(0, (rows, -1)).to(mean.dtype) for x in (of_gradient, images))
        average = of_all.mean((1, 3, 4))
        of_variances = of_images = None
        if of_variance is not None:
            of_variances = (of_all * (all_images - _row(mean))).sum((1, 3, 4)) * (2 / count)
            of_images = (of_all - _row(average)) * _row(2 / count * of_variance)
            of_images = of_images.flatten(0, 1).to(images.dtype)
        return of_pooled, average, of_variances, None, of_images, None, None


def _row(x: Float[Tensor, "row channel"]) -> Float[Tensor, "row 1 channel 1 1"]:
    return x[:, None, :, None, None]


class _AffineReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor, offset: Tensor, dtype: torch.dtype) -> Tensor:
        out = _new(x, *x.shape[2:], dtype=dtype)
        rows = [row.detach().contiguous().numpy() for row in (factor, offset)]
        _kernels().affine_relu(_array(x), *rows, _array(out))  # type: ignore[union-attr]
        ctx.save_for_backward(x, factor, out)
        return out

    @staticmethod
    def backward(ctx: Any, of_out: Tensor) -> Any:
        return *_AffineReLUBackward.apply(of_out, *ctx.saved_tensors), None  # type: ignore[no-untyped-call]


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
        rows = len(factor)
        of_out, x, out, by_x = (part.unflatten(0, (rows, -1)) for part in (of_out, x, out, by_x))
        passed = (out > 0).to(factor.dtype)
        f, b, c = (_row(part) for part in (factor, by_factor, by_offset))
        gradient = passed * of_out
        of_factor = (by_x * gradient).sum((1, 3, 4))
        by_out = (passed * (by_x * f + b * x + c)).flatten(0, 1).to(of_out.dtype)
        return by_out, (gradient * b).flatten(0, 1).to(x.dtype), of_factor, None


class _PoolReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, offset: Tensor, ceil_mode: bool, dtype: torch.dtype, kept: Any) -> Tensor:
        height, width = ((side + ceil_mode) // 2 for side in images.shape[2:])
        out, where = _new(images, height, width, dtype=dtype), _new(images, height, width, dtype=torch.uint8)
        row = offset.detach().contiguous().numpy()
        _kernels().pool_relu(_array(images), kept, row, _array(out), _array(where))  # type: ignore[union-attr]
        ctx.save_for_backward(where)
        ctx.made_of = (images.shape, images.dtype), (offset.shape, offset.dtype)
        return out

    @staticmethod
    def backward(ctx: Any, of_out: Tensor) -> Any:
        (where,) = ctx.saved_tensors
        return *_PoolReLUBackward.apply(of_out, where, *ctx.made_of), None, None, None  # type: ignore[no-untyped-call]


class _PoolReLUBackward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        of_out: Tensor,
        where: Tensor,
        images: tuple[torch.Size, torch.dtype],
        offset: tuple[torch.Size, torch.dtype],
    ) -> tuple[Tensor, Tensor]:
        of_images = _new(of_out, *images[0][2:], dtype=images[1])
        of_offset = torch.zeros(offset[0], dtype=offset[1])
        gradient, places, written = _array(of_out), _array(where), _array(of_images)
        none = torch.zeros(1, images[0][1], dtype=offset[1]).numpy()
        _kernels().unpool(gradient, places, written, none, none, none, written, False)  # type: ignore[union-attr]
        _kernels().sum_passed(gradient, places, of_offset.numpy())  # type: ignore[union-attr]
        ctx.save_for_backward(where)
        ctx.dtype = of_out.dtype
        return of_images, of_offset

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_images: Tensor, by_offset: Tensor) -> Any:
        (where,) = ctx.saved_tensors
        of_out = _new(by_images, *where.shape[2:])
        _kernels().gather(_array(by_images), _array(where), _array(of_out))  # type: ignore[union-attr]
        rows = by_offset.repeat_interleave(len(where) // len(by_offset), 0)[:, :, None, None]
        of_out = of_out + (where != _kernels().STOPPED) * rows  # type: ignore[union-attr]
        return of_out.to(ctx.dtype), None, None, None, None


class _ConvPoolReLU(torch.autograd.Function):
    """Takes padded images and filters, their number last."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, filters: Tensor, offset: Tensor, size: tuple[int, int], dtype: torch.dtype, kept: Any
    ) -> Tensor:
        out = x.new_empty(x.shape[0], *size, *offset.shape[1:], dtype=dtype)
        where = torch.empty_like(out, dtype=torch.uint8)
        rows = _filters(filters), offset.detach().contiguous().numpy()
        kept = None if kept is None else kept.reshape(4, *out.shape)
        _pixel_kernels().conv_pool_relu(x.detach().numpy(), kept, *rows, _bits(out), where.numpy())
        ctx.save_for_backward(x, where)
        ctx.filters = filters.shape
        return out

    @staticmethod
    def backward(ctx: Any, of_out: Tensor) -> Any:
        x, where = ctx.saved_tensors
        return None, *_ConvPoolReLUBackward.apply(of_out, x, where, ctx.filters), None, None, None  # type: ignore[no-untyped-call]


class _ConvPoolReLUBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, of_out: Tensor, x: Tensor, where: Tensor, filters: torch.Size) -> tuple[Tensor, Tensor]:
        of_filters = x.new_zeros(*filters[:3], 9 * filters[-1])
        of_offset = x.new_zeros(*filters[:2], filters[-1])
        arrays = _bits(of_out.contiguous()), x.detach().numpy(), where.numpy(), of_filters.numpy(), of_offset.numpy()
        _pixel_kernels().conv_pool_relu_backward(*arrays)
        ctx.save_for_backward(x, where)
        ctx.dtype = of_out.dtype
        return of_filters.view(filters), of_offset

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_filters: Tensor, by_offset: Tensor) -> Any:
        x, where = ctx.saved_tensors
        of_out = torch.empty_like(where, dtype=ctx.dtype)
        rows = _filters(by_filters), by_offset.detach().contiguous().numpy()
        _pixel_kernels().conv_at(x.detach().numpy(), where.numpy(), *rows, _bits(of_out))
        return of_out, None, None, None


def _filters(filters: Float[Tensor, "rows group channel 3 3 filter"]) -> Any:
    return filters.detach().contiguous().flatten(3).numpy()


def _bits(x: Tensor) -> Any:
    """The memory of a tensor; bfloat16 as its bits."""
    x = x.detach()
    return (x.view(torch.uint16) if x.dtype == torch.bfloat16 else x).numpy()
