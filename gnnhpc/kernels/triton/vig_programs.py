"""Triton programs of ViG's layers: the small network of each node, and sums over nodes, float32.

Activations are `[rows, 3]`, row = (image * height + row) * width + column. `units` is `[inputs + 4,
hidden]`: of each hidden unit the weights of its inputs, its constant, and the weights of its three
outputs. The inputs are a node's channels and, with CONV, the sums of its neighbours' channels and
their number. The hidden layer is never stored.

Programs over rows have some rows a thread and loop over hidden units, whose weights are scalars;
the program of weights' gradients has some hidden units a thread and loops over rows. So nothing is
added across threads, which on an H200 takes a third of the time of tiles of both.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gelu_parts(a):
    """Of GELU(a) = a * share: the share, and its derivative's exp(-a * a / 2).

    The error function is Abramowitz and Stegun's 7.1.26, exact to 1.5e-7: it needs no exponential
    but that one.
    """
    t = 1.0 / (1.0 + 0.3275911 * 0.7071067811865476 * tl.abs(a))
    bell = tl.exp(-0.5 * a * a)
    series = 1.421413741 + t * (-1.453152027 + t * 1.061405429)
    series = t * (0.254829592 + t * (-0.284496736 + t * series))
    tail = 0.5 * series * bell
    return tl.where(a >= 0, 1.0 - tail, tail), bell


@triton.jit
def gelu_slope(a, share, bell):
    return share + a * bell * 0.3989422804014327


@triton.jit
def channels(x, row, there):
    """The three numbers of a row of x; zeros where it is not there."""
    at = x + row * 3
    zero = 0.0
    return tl.load(at, there, zero), tl.load(at + 1, there, zero), tl.load(at + 2, there, zero)


@triton.jit
def store_channels(out, row, there, a, b, c):
    tl.store(out + row * 3, a, there)
    tl.store(out + row * 3 + 1, b, there)
    tl.store(out + row * 3 + 2, c, there)


@triton.jit
def neighbour_sums(x, row, there, height, width):
    """The sums of the up to eight neighbours' channels, and their number."""
    line, column = row // width % height, row % width
    s0 = tl.zeros(row.shape, tl.float32)
    s1 = tl.zeros(row.shape, tl.float32)
    s2 = tl.zeros(row.shape, tl.float32)
    degree = tl.zeros(row.shape, tl.float32)
    for step in tl.static_range(9):
        if step != 4:
            down, across = line + step // 3 - 1, column + step % 3 - 1
            near = there & (down >= 0) & (down < height) & (across >= 0) & (across < width)
            n0, n1, n2 = channels(x, row + (step // 3 - 1) * width + step % 3 - 1, near)
            s0 += n0
            s1 += n1
            s2 += n2
            degree += near.to(tl.float32)
    return s0, s1, s2, degree


@triton.jit(do_not_specialize=["rows", "height", "width"])
def vig_forward(
    x,
    units,
    bias,
    y,
    rows,
    height,
    width,
    CONV: tl.constexpr,
    HIDDEN: tl.constexpr,
    ROWS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """The network's output y of each node."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    x0, x1, x2 = channels(x, row, there)
    if CONV:
        s0, s1, s2, degree = neighbour_sums(x, row, there, height, width)
        constant = units + 7 * HIDDEN
    else:
        constant = units + 3 * HIDDEN
    y0 = tl.zeros([ROWS], tl.float32) + tl.load(bias)
    y1 = tl.zeros([ROWS], tl.float32) + tl.load(bias + 1)
    y2 = tl.zeros([ROWS], tl.float32) + tl.load(bias + 2)
    for first in range(0, HIDDEN, AT_ONCE):
        for each in tl.static_range(AT_ONCE):
            unit = units + first + each
            outputs = constant + first + each
            a = tl.load(outputs) + x0 * tl.load(unit)
            a += x1 * tl.load(unit + HIDDEN) + x2 * tl.load(unit + 2 * HIDDEN)
            if CONV:
                a += s0 * tl.load(unit + 3 * HIDDEN) + s1 * tl.load(unit + 4 * HIDDEN)
                a += s2 * tl.load(unit + 5 * HIDDEN) + degree * tl.load(unit + 6 * HIDDEN)
            share, _ = gelu_parts(a)
            active = a * share
            y0 += active * tl.load(outputs + HIDDEN)
            y1 += active * tl.load(outputs + 2 * HIDDEN)
            y2 += active * tl.load(outputs + 3 * HIDDEN)
    store_channels(y, row, there, y0, y1, y2)


@triton.jit(do_not_specialize=["rows", "height", "width"])
def vig_backward_rows(
    x,
    units,
    y,
    g,
    along,
    d_y,
    around,
    d_x,
    d_sums,
    rows,
    height,
    width,
    CONV: tl.constexpr,
    HIDDEN: tl.constexpr,
    ROWS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """The gradients of y, of each node's channels and, with CONV, of its neighbours' sums.

    The gradient of y is g * along[0] + y * along[1] + along[2]. With CONV the neighbours' sums and
    number go to `around` [rows, 4], for the weights' gradients.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    x0, x1, x2 = channels(x, row, there)
    if CONV:
        s0, s1, s2, degree = neighbour_sums(x, row, there, height, width)
        tl.store(around + row * 4, s0, there)
        tl.store(around + row * 4 + 1, s1, there)
        tl.store(around + row * 4 + 2, s2, there)
        tl.store(around + row * 4 + 3, degree, there)
        e0 = tl.zeros([ROWS], tl.float32)
        e1 = tl.zeros([ROWS], tl.float32)
        e2 = tl.zeros([ROWS], tl.float32)
        constant = units + 7 * HIDDEN
    else:
        constant = units + 3 * HIDDEN
    g0, g1, g2 = channels(g, row, there)
    y0, y1, y2 = channels(y, row, there)
    g0 = g0 * tl.load(along) + y0 * tl.load(along + 3) + tl.load(along + 6)
    g1 = g1 * tl.load(along + 1) + y1 * tl.load(along + 4) + tl.load(along + 7)
    g2 = g2 * tl.load(along + 2) + y2 * tl.load(along + 5) + tl.load(along + 8)
    store_channels(d_y, row, there, g0, g1, g2)
    d0 = tl.zeros([ROWS], tl.float32)
    d1 = tl.zeros([ROWS], tl.float32)
    d2 = tl.zeros([ROWS], tl.float32)
    for first in range(0, HIDDEN, AT_ONCE):
        for each in tl.static_range(AT_ONCE):
            unit = units + first + each
            outputs = constant + first + each
            w0 = tl.load(unit)
            w1 = tl.load(unit + HIDDEN)
            w2 = tl.load(unit + 2 * HIDDEN)
            a = tl.load(outputs) + x0 * w0 + x1 * w1 + x2 * w2
            if CONV:
                w3 = tl.load(unit + 3 * HIDDEN)
                w4 = tl.load(unit + 4 * HIDDEN)
                w5 = tl.load(unit + 5 * HIDDEN)
                a += s0 * w3 + s1 * w4 + s2 * w5 + degree * tl.load(unit + 6 * HIDDEN)
            share, bell = gelu_parts(a)
            d_a = g0 * tl.load(outputs + HIDDEN) + g1 * tl.load(outputs + 2 * HIDDEN)
            d_a = (d_a + g2 * tl.load(outputs + 3 * HIDDEN)) * gelu_slope(a, share, bell)
            d0 += d_a * w0
            d1 += d_a * w1
            d2 += d_a * w2
            if CONV:
                e0 += d_a * w3
                e1 += d_a * w4
                e2 += d_a * w5
    store_channels(d_x, row, there, d0, d1, d2)
    if CONV:
        store_channels(d_sums, row, there, e0, e1, e2)


@triton.jit(do_not_specialize=["rows", "part_rows"])
def vig_backward_weights(
    x,
    units,
    d_y,
    around,
    d_units,
    rows,
    part_rows,
    CONV: tl.constexpr,
    HIDDEN: tl.constexpr,
    UNITS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """The gradient of `units` from each part of the rows, [parts, inputs + 4, HIDDEN]."""
    part = tl.program_id(0).to(tl.int64)
    number = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    real = number < HIDDEN
    unit = units + number
    w0 = tl.load(unit, real, 0.0)
    w1 = tl.load(unit + HIDDEN, real, 0.0)
    w2 = tl.load(unit + 2 * HIDDEN, real, 0.0)
    d0 = tl.zeros([UNITS], tl.float32)
    d1 = tl.zeros([UNITS], tl.float32)
    d2 = tl.zeros([UNITS], tl.float32)
    if CONV:
        w3 = tl.load(unit + 3 * HIDDEN, real, 0.0)
        w4 = tl.load(unit + 4 * HIDDEN, real, 0.0)
        w5 = tl.load(unit + 5 * HIDDEN, real, 0.0)
        w6 = tl.load(unit + 6 * HIDDEN, real, 0.0)
        d3 = tl.zeros([UNITS], tl.float32)
        d4 = tl.zeros([UNITS], tl.float32)
        d5 = tl.zeros([UNITS], tl.float32)
        d6 = tl.zeros([UNITS], tl.float32)
        outputs = unit + 7 * HIDDEN
        out = d_units + part * 11 * HIDDEN + number
    else:
        outputs = unit + 3 * HIDDEN
        out = d_units + part * 7 * HIDDEN + number
    constant = tl.load(outputs, real, 0.0)
    v0 = tl.load(outputs + HIDDEN, real, 0.0)
    v1 = tl.load(outputs + 2 * HIDDEN, real, 0.0)
    v2 = tl.load(outputs + 3 * HIDDEN, real, 0.0)
    d_constant = tl.zeros([UNITS], tl.float32)
    u0 = tl.zeros([UNITS], tl.float32)
    u1 = tl.zeros([UNITS], tl.float32)
    u2 = tl.zeros([UNITS], tl.float32)
    begin = part * part_rows
    for at in range(begin, tl.minimum(begin + part_rows, rows), AT_ONCE):
        for each in tl.static_range(AT_ONCE):
            row = at + each
            # The gradient of y is zero past the last row, and so is all that is added.
            there = row < rows
            x0, x1, x2 = channels(x, row, there)
            g0, g1, g2 = channels(d_y, row, there)
            a = constant + x0 * w0 + x1 * w1 + x2 * w2
            if CONV:
                s0 = tl.load(around + row * 4, there, 0.0)
                s1 = tl.load(around + row * 4 + 1, there, 0.0)
                s2 = tl.load(around + row * 4 + 2, there, 0.0)
                degree = tl.load(around + row * 4 + 3, there, 0.0)
                a += s0 * w3 + s1 * w4 + s2 * w5 + degree * w6
            share, bell = gelu_parts(a)
            active = a * share
            u0 += active * g0
            u1 += active * g1
            u2 += active * g2
            d_a = (g0 * v0 + g1 * v1 + g2 * v2) * gelu_slope(a, share, bell)
            d_constant += d_a
            d0 += d_a * x0
            d1 += d_a * x1
            d2 += d_a * x2
            if CONV:
                d3 += d_a * s0
                d4 += d_a * s1
                d5 += d_a * s2
                d6 += d_a * degree
    tl.store(out, d0, real)
    tl.store(out + HIDDEN, d1, real)
    tl.store(out + 2 * HIDDEN, d2, real)
    if CONV:
        tl.store(out + 3 * HIDDEN, d3, real)
        tl.store(out + 4 * HIDDEN, d4, real)
        tl.store(out + 5 * HIDDEN, d5, real)
        tl.store(out + 6 * HIDDEN, d6, real)
        out += 7 * HIDDEN
    else:
        out += 3 * HIDDEN
    tl.store(out, d_constant, real)
    tl.store(out + HIDDEN, u0, real)
    tl.store(out + 2 * HIDDEN, u1, real)
    tl.store(out + 3 * HIDDEN, u2, real)


@triton.jit(do_not_specialize=["rows", "height", "width"])
def vig_input_gradient(
    d_x, d_sums, g, x, affine, out, rows, height, width, CONV: tl.constexpr, ROWS: tl.constexpr
):
    """out = d_x + g + x @ affine[:3] + affine[3], with CONV and the neighbours' sums of d_sums."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    d0, d1, d2 = channels(d_x, row, there)
    g0, g1, g2 = channels(g, row, there)
    x0, x1, x2 = channels(x, row, there)
    d0 += g0 + tl.load(affine + 9)
    d1 += g1 + tl.load(affine + 10)
    d2 += g2 + tl.load(affine + 11)
    d0 += x0 * tl.load(affine) + x1 * tl.load(affine + 3) + x2 * tl.load(affine + 6)
    d1 += x0 * tl.load(affine + 1) + x1 * tl.load(affine + 4) + x2 * tl.load(affine + 7)
    d2 += x0 * tl.load(affine + 2) + x1 * tl.load(affine + 5) + x2 * tl.load(affine + 8)
    if CONV:
        s0, s1, s2, _ = neighbour_sums(d_sums, row, there, height, width)
        d0 += s0
        d1 += s1
        d2 += s2
    store_channels(out, row, there, d0, d1, d2)


@triton.jit(do_not_specialize=["rows"])
def vig_products(a, b, out, rows, ROWS: tl.constexpr):
    """Of each part of ROWS rows the sums of a, then of the outer products of a and b, float64
    [parts, 12]."""
    part = tl.program_id(0).to(tl.int64)
    row = part * ROWS + tl.arange(0, ROWS)
    there = row < rows
    place = out + part * 12
    for of_a in tl.static_range(3):
        left = tl.load(a + row * 3 + of_a, there, 0.0).to(tl.float64)
        tl.store(place + of_a, tl.sum(left, 0))
        for of_b in tl.static_range(3):
            right = tl.load(b + row * 3 + of_b, there, 0.0).to(tl.float64)
            tl.store(place + 3 + 3 * of_a + of_b, tl.sum(left * right, 0))
