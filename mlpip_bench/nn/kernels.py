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

STOPPED = 4
"""In the place of a maximum's place in its window: that none was kept, or that it was not above 0: ReLU stops it."""
DROPPED = -1e30
"""In the place of an activation that dropout does not keep: no maximum, and finite, so that 0 times it is 0."""


def compiled(function: Callable[..., None]) -> Any:
    """A loop as machine code, which is kept on the disk where that can be."""
    options: Any = {"nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # numba finds no folder that it may write to: compiled anew in each process
        return njit(**options)(function)


def widened(value: Any) -> Any:
    """A float; of the bits of a bfloat16, as float32."""
    raise NotImplementedError


def narrowed(value: Any, like: Any) -> Any:
    """A float in the type of ``like``; to the bits of the nearest bfloat16 where that is an integer."""
    raise NotImplementedError


@overload(widened, strict=False)
def _widened_in_numba(value: Any) -> Any:
    if isinstance(value, types.Float):
        return lambda value: value
    return lambda value: np.uint32(np.uint32(value) << np.uint32(16)).view(np.float32)


@overload(narrowed, strict=False)  # our annotations are not in its signatures
def _narrowed_in_numba(value: Any, like: Any) -> Any:  # noqa: ARG001
    if isinstance(like, types.Float):
        return lambda value, like: value  # noqa: ARG005

    def rounded(value: Any, like: Any) -> Any:  # noqa: ARG001
        bits = np.float32(value).view(np.uint32)
        odd = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1))  # ties go to even
        return np.uint16(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))

    return rounded


@njit(inline="always")
def highest(a: Any, b: Any, d: Any, e: Any) -> Any:
    """The highest of a window, and its place; what is not a number stays so, as in torch."""
    above = b if (b > a) | (b != b) else a
    below = e if (e > d) | (e != e) else d
    most = below if (below > above) | (below != below) else above
    left = np.uint8(0) if most == a else np.uint8(1)
    return most, left if most == above else (np.uint8(2) if most == d else np.uint8(3))


@njit(inline="always")
def _maxima(y0: Any, y1: Any, y2: Any, y3: Any, out: Any, at: Any, like: Any) -> None:
    for c in range(out.shape[0]):
        most, at[c] = highest(widened(y0[c]), widened(y1[c]), widened(y2[c]), widened(y3[c]))
        out[c] = narrowed(most, like)


@njit(inline="always")
def _drop(y: Any, kept: Any, out: Any) -> None:
    none = out.dtype.type(DROPPED)
    for c in range(out.shape[0]):
        out[c] = widened(y[c]) if kept[c] else none


@njit(inline="always")
def _maxima_of_kept(values: Any, out: Any, at: Any, like: Any) -> None:
    """The same of the values of a window, ``[4, channel]``, of which some are ``DROPPED``."""
    none = values.dtype.type(DROPPED)
    v0, v1, v2, v3 = values[0], values[1], values[2], values[3]
    for c in range(out.shape[0]):
        most, place = highest(v0[c], v1[c], v2[c], v3[c])
        at[c] = np.uint8(STOPPED) if most == none else place
        out[c] = narrowed(most, like)


@njit(forceinline=True)  # by LLVM, so that numba compiles the one branch that there is for its types
def _pool_window(
    y: Any, kept: Any, n: Any, i: Any, j: Any, whole: Any, values: Any, out: Any, at: Any, like: Any
) -> None:
    """The maxima of a window, and their places; where it is not whole, its last row or column counts twice."""
    low, right = min(2 * i + 1, y.shape[1] - 1), min(2 * j + 1, y.shape[2] - 1)
    if kept is not None:
        across, down = right - 2 * j, 2 * (low - 2 * i)  # 0 where a place is the one before it again
        _drop(y[n, 2 * i, 2 * j], kept[0, n, i, j], values[0])
        _drop(y[n, 2 * i, right], kept[across, n, i, j], values[1])
        _drop(y[n, low, 2 * j], kept[down, n, i, j], values[2])
        _drop(y[n, low, right], kept[down + across, n, i, j], values[3])
        _maxima_of_kept(values, out, at, like)
    elif whole:  # of its own, so that the compiler sees how the four lie to each other
        y0, y1 = y[n, 2 * i, 2 * j], y[n, 2 * i, 2 * j + 1]
        y2, y3 = y[n, 2 * i + 1, 2 * j], y[n, 2 * i + 1, 2 * j + 1]
        _maxima(y0, y1, y2, y3, out, at, like)
    else:
        _maxima(y[n, 2 * i, 2 * j], y[n, 2 * i, right], y[n, low, 2 * j], y[n, low, right], out, at, like)


@compiled
def pool(y: Any, kept: Any, pooled: Any, where: Any, mean: Any, variance: Any, moments: Any) -> None:
    """2x2 maxima of each channel, and its moments over equally many images that follow each other.

    Args:
        y: activations.
        kept: those that dropout keeps, ``[place, point, height, width, channel]``; None for all. Moments are of all.
        pooled: to be filled with the maxima.
        where: to be filled with the place of each in its window, row by row, uint8.
        mean: of each channel, ``[row, channel]``, as many rows as there are groups of images; filled with ``moments``.
        variance: likewise, of the population.
        moments: whether to compute them.
    """
    points, height, width, channels = y.shape
    rows, columns = pooled.shape[1:3]
    like = y.dtype.type(0)
    group = points // mean.shape[0]
    # Sums of a row of windows in the type of the moments, all others in float64, of what is left after a shift by one
    # of the values: so nothing is lost where a channel's mean is far above its deviation.
    first, second, shift = np.empty_like(mean[0]), np.empty_like(mean[0]), np.empty_like(mean[0])
    sums = np.zeros((2, channels))
    values = np.empty((4, channels), mean.dtype)
    for n in range(points):
        if moments and n % group == 0:
            sums[:] = 0
            for c in range(channels):
                shift[c] = widened(y[n, 0, 0, c])
        for i in range(rows):
            first[:] = 0
            second[:] = 0
            low = min(2 * i + 1, height - 1)
            for j in range(columns):
                right = min(2 * j + 1, width - 1)
                whole = low > 2 * i and right > 2 * j
                _pool_window(y, kept, n, i, j, whole, values, pooled[n, i, j], where[n, i, j], like)
                if not moments:
                    continue
                if whole:
                    # Written so that the compiler sees how the four lie to each other, and takes vectors.
                    y0, y1 = y[n, 2 * i, 2 * j], y[n, 2 * i, 2 * j + 1]
                    y2, y3 = y[n, 2 * i + 1, 2 * j], y[n, 2 * i + 1, 2 * j + 1]
                    for c in range(channels):
                        a, b = widened(y0[c]) - shift[c], widened(y1[c]) - shift[c]
                        d, e = widened(y2[c]) - shift[c], widened(y3[c]) - shift[c]
                        first[c] += (a + b) + (d + e)
                        second[c] += (a * a + b * b) + (d * d + e * e)
                    continue
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
        if moments and n % group == group - 1:
            for c in range(channels):
                average = sums[0, c] / (group * height * width)
                mean[n // group, c] = average + shift[c]
                variance[n // group, c] = max(sums[1, c] / (group * height * width) - average * average, 0.0)


@compiled
def _add(row: Any, shift: Any, first: Any, second: Any) -> None:
    for c in range(row.shape[0]):
        d = widened(row[c]) - shift[c]
        first[c] += d
        second[c] += d * d


@compiled
def unpool(
    gradient: Any, where: Any, y: Any, mean: Any, of_mean: Any, of_variance: Any, out: Any, moments: Any
) -> None:
    """The backward pass of :func:`pool`: gradients of maxima to where they came from, and those of the moments.

    Args:
        gradient: of the maxima.
        where: as of :func:`pool`.
        y: activations; read only with ``moments``, as what follows.
        mean: of each channel, ``[row, channel]``.
        of_mean: gradient in the mean of each channel, likewise.
        of_variance: gradient in its variance.
        out: to be filled with the gradient of ``y``.
        moments: whether there are gradients of moments.
    """
    points, height, width, channels = out.shape
    rows, columns = gradient.shape[1:3]
    like = out.dtype.type(0)
    zero = mean.dtype.type(0)
    group = points // mean.shape[0]
    slope, offset = np.zeros_like(mean[0]), np.zeros_like(mean[0])
    for n in range(points):
        if moments and n % group == 0:
            r = n // group
            for c in range(channels):
                slope[c] = 2 * of_variance[r, c] / (group * height * width)
                offset[c] = of_mean[r, c] / (group * height * width) - slope[c] * mean[r, c]
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
                                own = widened(g[c]) if at[c] == here else zero
                                o[c] = narrowed(own + slope[c] * widened(v[c]) + offset[c], like)
                        else:
                            for c in range(channels):
                                o[c] = narrowed(widened(g[c]) if at[c] == here else zero, like)
                for w in range(2 * columns, width):
                    _line(y[n, h, w], slope, offset, out[n, h, w], like, moments)
        for h in range(2 * rows, height):
            for w in range(width):
                _line(y[n, h, w], slope, offset, out[n, h, w], like, moments)


@compiled
def _line(row: Any, slope: Any, offset: Any, out: Any, like: Any, moments: Any) -> None:
    for c in range(row.shape[0]):
        out[c] = narrowed(slope[c] * widened(row[c]) + offset[c] if moments else slope[c] * 0, like)


@compiled
def gather(y: Any, where: Any, out: Any) -> None:
    """What ``y`` has at the places of the maxima, 0 where ``where`` is ``STOPPED``; arguments as of :func:`pool`."""
    points, height, width, channels = y.shape
    zero = y.dtype.type(0)
    part = np.empty_like(y[0, 0, 0])
    for n in range(points):
        for i in range(where.shape[1]):
            for j in range(where.shape[2]):
                o, at = out[n, i, j], where[n, i, j]
                o[:] = zero
                for place in range(4):
                    here = np.uint8(place)
                    row = y[n, min(2 * i + place // 2, height - 1), min(2 * j + place % 2, width - 1)]
                    for c in range(channels):  # loops that the compiler makes vectors of
                        part[c] = row[c] if at[c] == here else zero
                    for c in range(channels):
                        o[c] += part[c]


@compiled
def pool_relu(y: Any, kept: Any, offset: Any, out: Any, where: Any) -> None:
    """2x2 maxima of each channel, ``max(maximum + offset, 0)`` of them.

    Args:
        y: activations.
        kept: as of :func:`pool`.
        offset: ``[row, channel]``; as many images have a row in common as there are images to a row.
        out: to be filled.
        where: to be filled with the place of each maximum as of :func:`pool`, or ``STOPPED``.
    """
    points, height, width, channels = y.shape
    like = out.dtype.type(0)
    values = np.empty((4, channels), offset.dtype)
    for n in range(points):
        b = offset[n // (points // offset.shape[0])]
        for i in range(out.shape[1]):
            whole = width // 2 if 2 * i + 1 < height else 0
            for j in range(whole):  # a loop of its own, of which the compiler makes more
                _pool_window(y, kept, n, i, j, True, values, out[n, i, j], where[n, i, j], like)
                _rectify(out[n, i, j], b, where[n, i, j])
            for j in range(whole, out.shape[2]):
                _pool_window(y, kept, n, i, j, False, values, out[n, i, j], where[n, i, j], like)
                _rectify(out[n, i, j], b, where[n, i, j])


@njit(inline="always")
def _rectify(out: Any, offset: Any, at: Any) -> None:
    like, zero = out.dtype.type(0), offset.dtype.type(0)
    for c in range(out.shape[0]):
        line = widened(out[c]) + offset[c]
        out[c] = narrowed(zero if line <= zero else line, like)
    for c in range(out.shape[0]):  # a loop of its own: the compiler takes vectors where few arrays may overlap
        at[c] = np.uint8(STOPPED) if out[c] == like else at[c]


@compiled
def sum_passed(gradient: Any, where: Any, out: Any) -> None:
    """Add to ``[row, channel]`` the gradients that ReLU lets pass, the gradient of :func:`pool_relu` in its offset."""
    points, height, width, channels = gradient.shape
    zero = out.dtype.type(0)
    sums, passed = np.empty(channels, out.dtype), np.empty(channels, out.dtype)
    for n in range(points):
        sums[:] = 0
        for i in range(height):
            for j in range(width):
                g, at = gradient[n, i, j], where[n, i, j]
                for c in range(channels):
                    passed[c] = widened(g[c]) if at[c] != np.uint8(STOPPED) else zero
                for c in range(channels):  # a loop of its own, of which the compiler makes vectors
                    sums[c] += passed[c]
        row = out[n // (points // out.shape[0])]
        for c in range(channels):
            row[c] += sums[c]


@compiled
def affine_relu(x: Any, factor: Any, offset: Any, out: Any) -> None:
    """``max(x * factor + offset, 0)``, with factor and offset ``[row, channel]``.

    As many images have a row in common as there are images to a row.
    """
    points, height, width, channels = x.shape
    like, zero = out.dtype.type(0), factor.dtype.type(0)
    for n in range(points):
        row = n // (points // factor.shape[0])
        f, b = factor[row], offset[row]
        for i in range(height):
            for j in range(width):
                v, o = x[n, i, j], out[n, i, j]
                for c in range(channels):
                    line = widened(v[c]) * f[c] + b[c]
                    o[c] = narrowed(zero if line <= zero else line, like)


@compiled
def affine_relu_backward(g: Any, x: Any, factor: Any, out: Any, of_x: Any, of_factor: Any, of_offset: Any) -> None:
    """Gradients of :func:`affine_relu` in ``x``, to be filled, and in factor and offset, to be added to."""
    points, height, width, channels = x.shape
    like = of_x.dtype.type(0)
    zero = factor.dtype.type(0)
    first, second, passed = np.empty_like(factor[0]), np.empty_like(factor[0]), np.empty_like(factor[0])
    for n in range(points):
        row = n // (points // factor.shape[0])
        f = factor[row]
        first[:] = 0
        second[:] = 0
        for i in range(height):
            for j in range(width):
                gradient, v, o, ox = g[n, i, j], x[n, i, j], out[n, i, j], of_x[n, i, j]
                # Loops of their own: the compiler takes vectors where few arrays may overlap.
                for c in range(channels):
                    passed[c] = widened(gradient[c]) if widened(o[c]) > zero else zero
                for c in range(channels):
                    ox[c] = narrowed(passed[c] * f[c], like)
                for c in range(channels):
                    first[c] += passed[c] * widened(v[c])
                for c in range(channels):
                    second[c] += passed[c]
        for c in range(channels):
            of_factor[row, c] += first[c]
            of_offset[row, c] += second[c]
