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
"""In the place of a maximum's place in its window: that it was not above 0, and ReLU stops it."""


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
def _highest(a: Any, b: Any, d: Any, e: Any) -> Any:
    """The highest of a window, and its place; what is not a number stays so, as in torch."""
    above = b if (b > a) | (b != b) else a
    below = e if (e > d) | (e != e) else d
    most = below if (below > above) | (below != below) else above
    left = np.uint8(0) if most == a else np.uint8(1)
    return most, left if most == above else (np.uint8(2) if most == d else np.uint8(3))


@njit(inline="always")
def _maxima(y0: Any, y1: Any, y2: Any, y3: Any, out: Any, at: Any, like: Any) -> None:
    for c in range(out.shape[0]):
        most, at[c] = _highest(_widened(y0[c]), _widened(y1[c]), _widened(y2[c]), _widened(y3[c]))
        out[c] = _narrowed(most, like)


@_compiled
def pool(y: Any, pooled: Any, where: Any, mean: Any, variance: Any, moments: Any) -> None:
    """2x2 maxima of each channel, and its moments over equally many images that follow each other.

    Args:
        y: activations.
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
    for n in range(points):
        if moments and n % group == 0:
            sums[:] = 0
            for c in range(channels):
                shift[c] = _widened(y[n, 0, 0, c])
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
        if moments and n % group == group - 1:
            for c in range(channels):
                average = sums[0, c] / (group * height * width)
                mean[n // group, c] = average + shift[c]
                variance[n // group, c] = max(sums[1, c] / (group * height * width) - average * average, 0.0)


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


@_compiled
def pool_relu(y: Any, offset: Any, out: Any, where: Any) -> None:
    """2x2 maxima of each channel, ``max(maximum + offset, 0)`` of them.

    Args:
        y: activations.
        offset: ``[row, channel]``; as many images have a row in common as there are images to a row.
        out: to be filled.
        where: to be filled with the place of each maximum as of :func:`pool`, or ``STOPPED``.
    """
    points, height, width = y.shape[:3]
    like = out.dtype.type(0)
    for n in range(points):
        b = offset[n // (points // offset.shape[0])]
        for i in range(out.shape[1]):
            low = min(2 * i + 1, height - 1)
            whole = width // 2 if low > 2 * i else 0
            for j in range(whole):  # of its own, so that the compiler sees how the four lie to each other
                y0, y1 = y[n, 2 * i, 2 * j], y[n, 2 * i, 2 * j + 1]
                y2, y3 = y[n, 2 * i + 1, 2 * j], y[n, 2 * i + 1, 2 * j + 1]
                _maxima(y0, y1, y2, y3, out[n, i, j], where[n, i, j], like)
                _rectify(out[n, i, j], b, where[n, i, j])
            for j in range(whole, out.shape[2]):
                right = min(2 * j + 1, width - 1)
                y0, y1, y2, y3 = y[n, 2 * i, 2 * j], y[n, 2 * i, right], y[n, low, 2 * j], y[n, low, right]
                _maxima(y0, y1, y2, y3, out[n, i, j], where[n, i, j], like)
                _rectify(out[n, i, j], b, where[n, i, j])


@njit(inline="always")
def _rectify(out: Any, offset: Any, at: Any) -> None:
    like, zero = out.dtype.type(0), offset.dtype.type(0)
    for c in range(out.shape[0]):
        line = _widened(out[c]) + offset[c]
        out[c] = _narrowed(zero if line <= zero else line, like)
    for c in range(out.shape[0]):  # a loop of its own: the compiler takes vectors where few arrays may overlap
        at[c] = np.uint8(STOPPED) if out[c] == like else at[c]


@_compiled
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
                    passed[c] = _widened(g[c]) if at[c] != np.uint8(STOPPED) else zero
                for c in range(channels):  # a loop of its own, of which the compiler makes vectors
                    sums[c] += passed[c]
        row = out[n // (points // out.shape[0])]
        for c in range(channels):
            row[c] += sums[c]


@_compiled
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
                    line = _widened(v[c]) * f[c] + b[c]
                    o[c] = _narrowed(zero if line <= zero else line, like)


@_compiled
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
                    passed[c] = _widened(gradient[c]) if _widened(o[c]) > zero else zero
                for c in range(channels):
                    ox[c] = _narrowed(passed[c] * f[c], like)
                for c in range(channels):
                    first[c] += passed[c] * _widened(v[c])
                for c in range(channels):
                    second[c] += passed[c]
        for c in range(channels):
            of_factor[row, c] += first[c]
            of_offset[row, c] += second[c]


# Images of few channels, whole: 3x3 convolution, maxima and ReLU with no activation in memory but the result, since
# computing one anew takes less time than reading it. Arrays are [image, group, ...]: where each task has its filters,
# the tasks are groups. Images have a border of one zero before and two behind, [image, group, channel, height, width];
# filters are [row, group, channel, 9 * filter], offsets [row, group, filter]: as many images have a row in common as
# there are images to a row.


@njit(inline="always")
def _convolve(image: Any, i: Any, j: Any, filters: Any, y: Any, more: Any) -> None:
    """What one channel of an image gives to the outputs of each filter at a window, ``[4 * filter]``, or ``more``."""
    count = y.shape[0] // 4
    a0, a1, a2, a3 = image[i, j], image[i, j + 1], image[i, j + 2], image[i, j + 3]
    b0, b1, b2, b3 = image[i + 1, j], image[i + 1, j + 1], image[i + 1, j + 2], image[i + 1, j + 3]
    c0, c1, c2, c3 = image[i + 2, j], image[i + 2, j + 1], image[i + 2, j + 2], image[i + 2, j + 3]
    d0, d1, d2, d3 = image[i + 3, j], image[i + 3, j + 1], image[i + 3, j + 2], image[i + 3, j + 3]
    for c in range(count):  # all in one loop: each weight is read once for four outputs
        w0, w1, w2 = filters[c], filters[count + c], filters[2 * count + c]
        w3, w4, w5 = filters[3 * count + c], filters[4 * count + c], filters[5 * count + c]
        w6, w7, w8 = filters[6 * count + c], filters[7 * count + c], filters[8 * count + c]
        v0 = w0 * a0 + w1 * a1 + w2 * a2 + w3 * b0 + w4 * b1 + w5 * b2 + w6 * c0 + w7 * c1 + w8 * c2
        v1 = w0 * a1 + w1 * a2 + w2 * a3 + w3 * b1 + w4 * b2 + w5 * b3 + w6 * c1 + w7 * c2 + w8 * c3
        v2 = w0 * b0 + w1 * b1 + w2 * b2 + w3 * c0 + w4 * c1 + w5 * c2 + w6 * d0 + w7 * d1 + w8 * d2
        v3 = w0 * b1 + w1 * b2 + w2 * b3 + w3 * c1 + w4 * c2 + w5 * c3 + w6 * d1 + w7 * d2 + w8 * d3
        y[c] = y[c] + v0 if more else v0
        y[count + c] = y[count + c] + v1 if more else v1
        y[2 * count + c] = y[2 * count + c] + v2 if more else v2
        y[3 * count + c] = y[3 * count + c] + v3 if more else v3


@_compiled
def conv_pool_relu(x: Any, filters: Any, offset: Any, out: Any, where: Any) -> None:
    """3x3 convolution of images with a border, 2x2 maxima, ``max(maximum + offset, 0)``.

    Args:
        x: images.
        filters: of each row and group.
        offset: likewise.
        out: to be filled, ``[image, height, width, group, filter]``.
        where: to be filled with the place of each maximum as of :func:`pool`, or ``STOPPED``.
    """
    points, rows, columns, groups, count = out.shape
    height, width = x.shape[3] - 3, x.shape[4] - 3
    like, zero = out.dtype.type(0), filters.dtype.type(0)
    y = np.empty(4 * count, filters.dtype)
    for g in range(groups):
        for n in range(points):
            r = n // (points // filters.shape[0])
            for i in range(rows):
                for j in range(columns):
                    _convolve(x[n, g, 0], 2 * i, 2 * j, filters[r, g, 0], y, False)
                    for k in range(1, x.shape[2]):
                        _convolve(x[n, g, k], 2 * i, 2 * j, filters[r, g, k], y, True)
                    if 2 * j + 1 == width:
                        y[count : 2 * count], y[3 * count :] = y[:count], y[2 * count : 3 * count]
                    if 2 * i + 1 == height:
                        y[2 * count :] = y[: 2 * count]
                    o, at, b = out[n, i, j, g], where[n, i, j, g], offset[r, g]
                    for c in range(count):
                        most, place = _highest(y[c], y[count + c], y[2 * count + c], y[3 * count + c])
                        line = most + b[c]
                        y[c] = zero if line <= zero else line
                        at[c] = np.uint8(STOPPED) if line <= zero else place
                    for c in range(count):  # the compiler takes vectors where few arrays may overlap
                        o[c] = _narrowed(y[c], like)


@_compiled
def conv_pool_relu_backward(gradient: Any, x: Any, where: Any, of_filters: Any, of_offset: Any) -> None:
    """Add the gradients of :func:`conv_pool_relu` in filters and offset to what is there."""
    points, rows, columns, groups, count = gradient.shape
    zero = of_filters.dtype.type(0)
    parts, sums = np.empty(4 * count, of_filters.dtype), np.empty(count, of_filters.dtype)
    of_image = np.empty(9 * count, of_filters.dtype)  # summed for each image, so that rounding is of a short sum
    for g in range(groups):
        for n in range(points):
            r = n // (points // of_filters.shape[0])
            for k in range(x.shape[2]):
                of_image[:] = 0
                sums[:] = 0
                for i in range(rows):
                    for j in range(columns):
                        v, at = gradient[n, i, j, g], where[n, i, j, g]
                        for place in range(4):
                            here = np.uint8(place)
                            part = parts[place * count : (place + 1) * count]
                            for c in range(count):  # the compiler takes vectors where one row is written
                                part[c] = _widened(v[c]) if at[c] == here else zero
                        _correlate(x[n, g, k], 2 * i, 2 * j, parts, of_image)
                        for c in range(count):
                            sums[c] += (parts[c] + parts[count + c]) + (parts[2 * count + c] + parts[3 * count + c])
                for c in range(9 * count):
                    of_filters[r, g, k, c] += of_image[c]
                if k == 0:
                    for c in range(count):
                        of_offset[r, g, c] += sums[c]


@njit(inline="always")
def _correlate(image: Any, i: Any, j: Any, y: Any, filters: Any) -> None:
    """Add to the weights of each filter what :func:`_convolve` gives them of the gradients of its outputs."""
    count = y.shape[0] // 4
    a0, a1, a2, a3 = image[i, j], image[i, j + 1], image[i, j + 2], image[i, j + 3]
    b0, b1, b2, b3 = image[i + 1, j], image[i + 1, j + 1], image[i + 1, j + 2], image[i + 1, j + 3]
    c0, c1, c2, c3 = image[i + 2, j], image[i + 2, j + 1], image[i + 2, j + 2], image[i + 2, j + 3]
    d0, d1, d2, d3 = image[i + 3, j], image[i + 3, j + 1], image[i + 3, j + 2], image[i + 3, j + 3]
    for c in range(count):
        y0, y1, y2, y3 = y[c], y[count + c], y[2 * count + c], y[3 * count + c]
        filters[c] += y0 * a0 + y1 * a1 + y2 * b0 + y3 * b1
        filters[count + c] += y0 * a1 + y1 * a2 + y2 * b1 + y3 * b2
        filters[2 * count + c] += y0 * a2 + y1 * a3 + y2 * b2 + y3 * b3
        filters[3 * count + c] += y0 * b0 + y1 * b1 + y2 * c0 + y3 * c1
        filters[4 * count + c] += y0 * b1 + y1 * b2 + y2 * c1 + y3 * c2
        filters[5 * count + c] += y0 * b2 + y1 * b3 + y2 * c2 + y3 * c3
        filters[6 * count + c] += y0 * c0 + y1 * c1 + y2 * d0 + y3 * d1
        filters[7 * count + c] += y0 * c1 + y1 * c2 + y2 * d1 + y3 * d2
        filters[8 * count + c] += y0 * c2 + y1 * c3 + y2 * d2 + y3 * d3


@_compiled
def conv_at(x: Any, where: Any, filters: Any, offset: Any, out: Any) -> None:
    """Convolution and offset at the places that :func:`conv_pool_relu` chose, 0 where ReLU stops them.

    That is its derivative along filters and offset, and so the second derivative's part of its backward pass.
    """
    points, rows, columns, groups, count = out.shape
    like, zero = out.dtype.type(0), filters.dtype.type(0)
    y = np.empty(4 * count, filters.dtype)
    chosen, part = np.empty(count, filters.dtype), np.empty(count, filters.dtype)
    for g in range(groups):
        for n in range(points):
            r = n // (points // filters.shape[0])
            for i in range(rows):
                for j in range(columns):
                    _convolve(x[n, g, 0], 2 * i, 2 * j, filters[r, g, 0], y, False)
                    for k in range(1, x.shape[2]):
                        _convolve(x[n, g, k], 2 * i, 2 * j, filters[r, g, k], y, True)
                    at, b = where[n, i, j, g], offset[r, g]
                    chosen[:] = 0
                    for place in range(4):
                        here = np.uint8(place)
                        of_place = y[place * count : (place + 1) * count]
                        for c in range(count):  # loops that the compiler makes vectors of
                            part[c] = of_place[c] + b[c] if at[c] == here else zero
                        for c in range(count):
                            chosen[c] += part[c]
                    o = out[n, i, j, g]
                    for c in range(count):
                        o[c] = _narrowed(chosen[c], like)
