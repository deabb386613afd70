"""Loops over images of few channels on a CPU, compiled by numba: 3x3 convolution, maxima and ReLU in one.

No activation is in memory but the result, since computing one anew takes less time than reading it. Arrays are
``[image, group, ...]``: where each task has its filters, the tasks are groups. Images have a border of one zero before
and two behind, ``[image, group, channel, height, width]``; filters are ``[row, group, channel, 9 * filter]``, offsets
``[row, group, filter]``: as many images have a row in common as there are images to a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from mlpip_bench.nn.kernels import DROPPED, STOPPED, compiled, highest, narrowed, widened


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


@njit(inline="always")
def _outputs(image: Any, i: Any, j: Any, filters: Any, y: Any) -> None:
    """The four outputs of each filter at a window, of all channels."""
    _convolve(image[0], i, j, filters[0], y, False)
    for k in range(1, image.shape[0]):
        _convolve(image[k], i, j, filters[k], y, True)


@compiled
def conv_pool_relu(x: Any, kept: Any, filters: Any, offset: Any, out: Any, where: Any) -> None:
    """3x3 convolution of images with a border, 2x2 maxima, ``max(maximum + offset, 0)``.

    Args:
        x: images.
        kept: outputs that dropout keeps, ``[place, image, height, width, group, filter]``; None for all.
        filters: of each row and group.
        offset: likewise.
        out: to be filled, ``[image, height, width, group, filter]``.
        where: to be filled with the place of each maximum as of :func:`pool`, or ``STOPPED``.
    """
    points, rows, columns, groups, count = out.shape
    height, width = x.shape[3] - 3, x.shape[4] - 3
    like, zero, none = out.dtype.type(0), filters.dtype.type(0), filters.dtype.type(DROPPED)
    y = np.empty(4 * count, filters.dtype)
    for g in range(groups):
        for n in range(points):
            r = n // (points // filters.shape[0])
            for i in range(rows):
                for j in range(columns):
                    _outputs(x[n, g], 2 * i, 2 * j, filters[r, g], y)
                    if kept is not None:
                        for place in range(4):
                            part, k = y[place * count : (place + 1) * count], kept[place, n, i, j, g]
                            for c in range(count):
                                part[c] = part[c] if k[c] else none
                    if 2 * j + 1 == width:
                        y[count : 2 * count], y[3 * count :] = y[:count], y[2 * count : 3 * count]
                    if 2 * i + 1 == height:
                        y[2 * count :] = y[: 2 * count]
                    o, at, b = out[n, i, j, g], where[n, i, j, g], offset[r, g]
                    for c in range(count):
                        most, place = highest(y[c], y[count + c], y[2 * count + c], y[3 * count + c])
                        line = most + b[c]
                        y[c] = zero if line <= zero else line
                        at[c] = np.uint8(STOPPED) if line <= zero else place
                    for c in range(count):  # the compiler takes vectors where few arrays may overlap
                        o[c] = narrowed(y[c], like)


@compiled
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
                                part[c] = widened(v[c]) if at[c] == here else zero
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


@compiled
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
                    _outputs(x[n, g], 2 * i, 2 * j, filters[r, g], y)
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
                        o[c] = narrowed(chosen[c], like)
