"""Loops over activations on a CPU, compiled by numba (the extra ``fast``): one pass where torch takes several.

Arrays are laid out as the memory of convolutions' outputs is, ``[point, height, width, channel]``, so that the
innermost loops are over channels and take whole vector registers. Those of bfloat16 come as their bits,
``uint16``, since numpy has no such type; within a loop they are float32.

Where the sides of images are odd and pooling rounds up, the last windows are read as if the last row or column came
twice, which changes no maximum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload


def _compiled(function: Callable[..., None]) -> Any:
    options: Any = {"nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # numba finds no folder that it may write to: compiled anew in each process
        return njit(**options)(function)


def _widened(value: Any) -> Any:
    """A float; of the bits of a bfloat16, as float32."""
    raise NotImplementedError


def _narrowed(value: Any, like: Any) -> Any:
    """A float in the type of ``like``; to the bits of the nearest bfloat16 where that is an integer."""
    raise NotImplementedError


@overload(_widened, strict=False)
def _widened_in_numba(value: Any) -> Any:
    if isinstance(value, types.Float):
        return lambda value: value
    return lambda value: np.uint32(np.uint32(value) << np.uint32(16)).view(np.float32)


@overload(_narrowed, strict=False)  # our annotations are not in its signatures
def _narrowed_in_numba(value: Any, like: Any) -> Any:  # noqa: ARG001
    if isinstance(like, types.Float):
        return lambda value, like: value  # noqa: ARG005

    def rounded(value: Any, like: Any) -> Any:  # noqa: ARG001
        bits = np.float32(value).view(np.uint32)
        odd = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1))  # ties go to even
        return np.uint16(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))

    return rounded


@njit(inline="always")
def _maxima(y0: Any, y1: Any, y2: Any, y3: Any, out: Any, at: Any, like: Any) -> None:
    for c in range(out.shape[0]):
        a, b, d, e = _widened(y0[c]), _widened(y1[c]), _widened(y2[c]), _widened(y3[c])
        above = b if (b > a) | (b != b) else a  # not a number stays so, as in torch
        below = e if (e > d) | (e != e) else d
        most = below if (below > above) | (below != below) else above
        out[c] = _narrowed(most, like)
        left = np.uint8(0) if most == a else np.uint8(1)
        at[c] = left if most == above else (np.uint8(2) if most == d else np.uint8(3))


@_compiled
def pool(y: Any, pooled: Any, where: Any, mean: Any, variance: Any, moments: Any) -> None:
    """2x2 maxima of each channel, and its moments.

    Args:
        y: activations.
        pooled: to be filled with the maxima.
        where: to be filled with the place of each in its window, row by row, uint8.
        mean: of each channel; filled with ``moments``.
        variance: of each channel, of the population; filled with ``moments``.
        moments: whether to compute them.
    """
    points, height, width, channels = y.shape
    rows, columns = pooled.shape[1:3]
    like = y.dtype.type(0)
    # Sums of a row of windows in the type of the moments, all others in float64, of what is left after a shift by one
    # of the values: so nothing is lost where a channel's mean is far above its deviation.
    first, second, shift = np.empty_like(mean), np.empty_like(mean), np.empty_like(mean)
    sums = np.zeros((2, channels))
    for c in range(channels):
        shift[c] = _widened(y[0, 0, 0, c])
    for n in range(points):
        for i in range(rows):
            first[:] = 0
            second[:] = 0
            low = min(2 * i + 1, height - 1)
            for j in range(columns):
                right = min(2 * j + 1, width - 1)
                if low > 2 * i and right > 2 * j:
                    # Written so that the compiler sees how the four lie to each other, and takes vectors.
                    y0, y1 = y[n, 2 * i, 2 * j], y[n, 2 * i, 2 * j + 1]
                    y2, y3 = y[n, 2 * i + 1, 2 * j], y[n, 2 * i + 1, 2 * j + 1]
                    _maxima(y0, y1, y2, y3, pooled[n, i, j], where[n, i, j], like)
                    if moments:
                        for c in range(channels):
                            a, b = _widened(y0[c]) - shift[c], _widened(y1[c]) - shift[c]
                            d, e = _widened(y2[c]) - shift[c], _widened(y3[c]) - shift[c]
                            first[c] += (a + b) + (d + e)
                            second[c] += (a * a + b * b) + (d * d + e * e)
                    continue
                y0, y1, y2, y3 = y[n, 2 * i, 2 * j], y[n, 2 * i, right], y[n, low, 2 * j], y[n, low, right]
                _maxima(y0, y1, y2, y3, pooled[n, i, j], where[n, i, j], like)
                if moments:
                    for h in range(2 * i, low + 1):
                        for w in range(2 * j, right + 1):
                            _add(y[n, h, w], shift, first, second)
            if moments:
                for h in range(2 * i, low + 1):  # what pooling that rounds down leaves out counts here
                    for w in range(2 * columns, width):
                        _add(y[n, h, w], shift, first, second)
                for c in range(channels):
                    sums[0, c] += first[c]
                    sums[1, c] += second[c]
        if moments:
            first[:] = 0
            second[:] = 0
            for h in range(2 * rows, height):
                for w in range(width):
                    _add(y[n, h, w], shift, first, second)
            for c in range(channels):
                sums[0, c] += first[c]
                sums[1, c] += second[c]
    if moments:
        for c in range(channels):
            average = sums[0, c] / (points * height * width)
            mean[c] = average + shift[c]
            variance[c] = max(sums[1, c] / (points * height * width) - average * average, 0.0)


@_compiled
def _add(row: Any, shift: Any, first: Any, second: Any) -> None:
    for c in range(row.shape[0]):
        d = _widened(row[c]) - shift[c]
        first[c] += d
        second[c] += d * d


@_compiled
def unpool(
    gradient: Any, where: Any, y: Any, mean: Any, of_mean: Any, of_variance: Any, out: Any, moments: Any
) -> None:
    """The backward pass of :func:`pool`: gradients of maxima to where they came from, and those of the moments.

    Args:
        gradient: of the maxima.
        where: as of :func:`pool`.
        y: activations; read only with ``moments``, as what follows.
        mean: of each channel.
        of_mean: gradient in the mean of each channel.
        of_variance: gradient in its variance.
        out: to be filled with the gradient of ``y``.
        moments: whether there are gradients of moments.
    """
    points, height, width, channels = out.shape
    rows, columns = gradient.shape[1:3]
    like = out.dtype.type(0)
    zero = mean.dtype.type(0)
    slope, offset = np.zeros_like(mean), np.zeros_like(mean)
    if moments:
        for c in range(channels):
            slope[c] = 2 * of_variance[c] / (points * height * width)
            offset[c] = of_mean[c] / (points * height * width) - slope[c] * mean[c]
    for n in range(points):
        for i in range(rows):
            for h in range(2 * i, min(2 * i + 2, height)):
                for j in range(columns):
                    g, at = gradient[n, i, j], where[n, i, j]
                    for w in range(2 * j, min(2 * j + 2, width)):
                        # One row written in a loop: the compiler takes vectors where few arrays may overlap.
                        here = np.uint8(2 * (h - 2 * i) + (w - 2 * j))
                        o, v = out[n, h, w], y[n, h, w]
                        if moments:
                            for c in range(channels):
                                own = _widened(g[c]) if at[c] == here else zero
                                o[c] = _narrowed(own + slope[c] * _widened(v[c]) + offset[c], like)
                        else:
                            for c in range(channels):
                                o[c] = _narrowed(_widened(g[c]) if at[c] == here else zero, like)
                for w in range(2 * columns, width):
                    _line(y[n, h, w], slope, offset, out[n, h, w], like, moments)
        for h in range(2 * rows, height):
            for w in range(width):
                _line(y[n, h, w], slope, offset, out[n, h, w], like, moments)


@_compiled
def _line(row: Any, slope: Any, offset: Any, out: Any, like: Any, moments: Any) -> None:
    for c in range(row.shape[0]):
        out[c] = _narrowed(slope[c] * _widened(row[c]) + offset[c] if moments else slope[c] * 0, like)


@_compiled
def gather(y: Any, where: Any, out: Any) -> None:
    """What ``y`` has at the places of the maxima; arguments as of :func:`pool`."""
    points, height, width, channels = y.shape
    for n in range(points):
        for i in range(where.shape[1]):
            low = min(2 * i + 1, height - 1)
            for j in range(where.shape[2]):
                right = min(2 * j + 1, width - 1)
                y0, y1, y2, y3 = y[n, 2 * i, 2 * j], y[n, 2 * i, right], y[n, low, 2 * j], y[n, low, right]
                o, at = out[n, i, j], where[n, i, j]
                for c in range(channels):
                    o[c] = y0[c] if at[c] == 0 else (y1[c] if at[c] == 1 else (y2[c] if at[c] == 2 else y3[c]))


@_compiled
def affine_relu(x: Any, factor: Any, offset: Any, out: Any) -> None:
    """``max(x * factor + offset, 0)``, with factor and offset ``[point or 1, channel]``."""
    points, height, width, channels = x.shape
    zero = factor.dtype.type(0)
    for n in range(points):
        f, b = factor[n % factor.shape[0]], offset[n % offset.shape[0]]
        for i in range(height):
            for j in range(width):
                v, o = x[n, i, j], out[n, i, j]
                for c in range(channels):
                    line = _widened(v[c]) * f[c] + b[c]
                    o[c] = zero if line <= zero else line


@_compiled
def affine_relu_backward(g: Any, x: Any, factor: Any, out: Any, of_x: Any, of_factor: Any, of_offset: Any) -> None:
    """Gradients of :func:`affine_relu` in ``x``, to be filled, and in factor and offset, to be added to."""
    points, height, width, channels = x.shape
    like = of_x.dtype.type(0)
    zero = factor.dtype.type(0)
    first, second = np.empty(channels, factor.dtype), np.empty(channels, factor.dtype)
    for n in range(points):
        row = n % factor.shape[0]
        f = factor[row]
        first[:] = 0
        second[:] = 0
        for i in range(height):
            for j in range(width):
                gradient, v, o, ox = g[n, i, j], x[n, i, j], out[n, i, j], of_x[n, i, j]
                for c in range(channels):
                    ox[c] = _narrowed(gradient[c] * f[c] if o[c] > zero else zero, like)
                for c in range(channels):  # a loop of its own: the compiler takes vectors where few arrays may overlap
                    passed = gradient[c] if o[c] > zero else zero
                    first[c] += passed * _widened(v[c])
                    second[c] += passed
        for c in range(channels):
            of_factor[row, c] += first[c]
            of_offset[row, c] += second[c]
