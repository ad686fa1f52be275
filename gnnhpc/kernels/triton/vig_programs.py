"""Triton programs of ViG's layers: the small network of each node, and sums over nodes, float32.

Activations are `[rows, 3]`, row = (image * height + row) * width + column. `units` is `[inputs + 4,
hidden]`: of each hidden unit the weights of its inputs, its constant, and the weights of its three
outputs. The INPUTS are a node's three channels or, of a Grapher, seven: also the sums of its
neighbours' channels and their number. The hidden layer is never stored.

Programs over rows have some rows a thread and loop over hidden units, whose weights are scalars;
the program of weights' gradients has some hidden units a thread and loops over rows. So nothing is
added across threads, which on an H200 takes a third of the time of tiles of both.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def normal_tail(size):
    """exp(-size * size / 2), and the factor that makes it the share of a normal distribution beyond
    `size`, not negative.

    The constants are fitted: the share is exact to 3.3e-8. There is no division, because one takes
    ten instructions, and an inverse root or a power of two takes one.
    """
    t = tl.rsqrt(1.0 + size * (0.61599076 + size * 0.10658411))
    bell = tl.exp2(-0.7213475204444817 * size * size)
    return bell, t * (0.12509203 + t * (0.1588763 + t * (0.01168913 + t * 0.20434254)))


@triton.jit
def gelu(a, bell, factor):
    return tl.maximum(a, 0.0) - tl.abs(a) * (bell * factor)


@triton.jit
def gelu_slope(a, bell, factor):
    rise = bell * (0.3989422804014327 * tl.abs(a) - factor)
    return tl.where(a >= 0, 1.0 + rise, -rise)


@triton.jit
def loaded(at, stride, there, COUNT: tl.constexpr):
    """COUNT numbers that lie `stride` apart, from `at` on; zeros where they are not there."""
    found = ()
    for k in tl.static_range(COUNT):
        found = found + (tl.load(at + k * stride, there, 0.0),)
    return found


@triton.jit
def scalars(at, stride, COUNT: tl.constexpr):
    """The same of numbers that all threads share."""
    found = ()
    for k in tl.static_range(COUNT):
        found = found + (tl.load(at + k * stride),)
    return found


@triton.jit
def narrow(at, stride, COUNT: tl.constexpr):
    """The same of float64 numbers, as float32."""
    found = ()
    for k in tl.static_range(COUNT):
        found = found + (tl.load(at + k * stride).to(tl.float32),)
    return found


@triton.jit
def store(values, at, stride, there, COUNT: tl.constexpr):
    """The first COUNT of the values, `stride` apart, from `at` on."""
    for k in tl.static_range(COUNT):
        tl.store(at + k * stride, values[k], there)


@triton.jit
def zeros(SIZE: tl.constexpr, COUNT: tl.constexpr):
    """COUNT sums [SIZE]."""
    found = ()
    for _ in tl.static_range(COUNT):
        found = found + (tl.zeros([SIZE], tl.float32),)
    return found


@triton.jit
def plus(sums, factor, values, COUNT: tl.constexpr):
    """Each of the sums, with the factor times its value."""
    found = ()
    for k in tl.static_range(COUNT):
        found = found + (sums[k] + factor * values[k],)
    return found


@triton.jit
def hidden(constant, inputs, weights, INPUTS: tl.constexpr):
    """What comes before the GELU, a chain of fused multiply-adds."""
    a = constant
    for k in tl.static_range(INPUTS):
        a += inputs[k] * weights[k]
    return a


@triton.jit
def neighbour_sums(x, row, there, height, width, SIZE: tl.constexpr):
    """The sums of the up to eight neighbours' channels, and their number."""
    line, column = row // width % height, row % width
    sums = zeros(SIZE, 4)
    for step in tl.static_range(9):
        if step != 4:
            down, across = line + step // 3 - 1, column + step % 3 - 1
            near = there & (down >= 0) & (down < height) & (across >= 0) & (across < width)
            at = x + (row + (step // 3 - 1) * width + step % 3 - 1) * 3
            sums = plus(sums, 1.0, loaded(at, 1, near, 3) + (near.to(tl.float32),), 4)
    return sums


@triton.jit
def inputs_of(x, row, there, height, width, INPUTS: tl.constexpr, SIZE: tl.constexpr):
    """The inputs of some rows' networks."""
    inputs = loaded(x + row * 3, 1, there, 3)
    if INPUTS == 7:
        inputs = inputs + neighbour_sums(x, row, there, height, width, SIZE)
    return inputs


@triton.jit(do_not_specialize=["rows", "height", "width"])
def vig_forward(
    x,
    units,
    bias,
    y,
    rows,
    height,
    width,
    INPUTS: tl.constexpr,
    HIDDEN: tl.constexpr,
    ROWS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """The network's output y of each node."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    inputs = inputs_of(x, row, there, height, width, INPUTS, ROWS)
    out = plus(zeros(ROWS, 3), 1.0, scalars(bias, 1, 3), 3)
    for number in tl.range(0, HIDDEN, loop_unroll_factor=AT_ONCE):
        outputs = units + number + INPUTS * HIDDEN
        a = hidden(tl.load(outputs), inputs, scalars(units + number, HIDDEN, INPUTS), INPUTS)
        bell, factor = normal_tail(tl.abs(a))
        out = plus(out, gelu(a, bell, factor), scalars(outputs + HIDDEN, HIDDEN, 3), 3)
    store(out, y + row * 3, 1, there, 3)


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
    INPUTS: tl.constexpr,
    HIDDEN: tl.constexpr,
    ROWS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """The gradients of y, of each node's channels and, of a Grapher, of its neighbours' sums.

    The gradient of y is g * along[0] + y * along[1] + along[2], and `along` is float64. A Grapher's
    neighbours' sums and number go to `around` [rows, 4], for the weights' gradients.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    inputs = inputs_of(x, row, there, height, width, INPUTS, ROWS)
    if INPUTS == 7:
        store((inputs[3], inputs[4], inputs[5], inputs[6]), around + row * 4, 1, there, 4)
    d_out = ()
    for k in tl.static_range(3):
        scale, slope, shift = narrow(along + k, 3, 3)
        from_g = tl.load(g + row * 3 + k, there, 0.0) * scale
        from_y = tl.load(y + row * 3 + k, there, 0.0) * slope
        d_out = d_out + (from_g + from_y + shift,)
    store(d_out, d_y + row * 3, 1, there, 3)
    # The number of neighbours has no gradient.
    varied: tl.constexpr = 6 if INPUTS == 7 else 3
    d_inputs = zeros(ROWS, varied)
    for number in tl.range(0, HIDDEN, loop_unroll_factor=AT_ONCE):
        outputs = units + number + INPUTS * HIDDEN
        weights = scalars(units + number, HIDDEN, INPUTS)
        a = hidden(tl.load(outputs), inputs, weights, INPUTS)
        bell, factor = normal_tail(tl.abs(a))
        d_a = d_out[0] * tl.load(outputs + HIDDEN) + d_out[1] * tl.load(outputs + 2 * HIDDEN)
        d_a = (d_a + d_out[2] * tl.load(outputs + 3 * HIDDEN)) * gelu_slope(a, bell, factor)
        d_inputs = plus(d_inputs, d_a, weights, varied)
    store(d_inputs, d_x + row * 3, 1, there, 3)
    if INPUTS == 7:
        store((d_inputs[3], d_inputs[4], d_inputs[5]), d_sums + row * 3, 1, there, 3)


@triton.jit(do_not_specialize=["rows", "part_rows"])
def vig_backward_weights(
    x,
    units,
    d_y,
    around,
    d_units,
    rows,
    part_rows,
    INPUTS: tl.constexpr,
    HIDDEN: tl.constexpr,
    UNITS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """The gradient of `units` from each part of the rows, [parts, inputs + 4, HIDDEN]."""
    part = tl.program_id(0).to(tl.int64)
    number = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    real = number < HIDDEN
    weights = loaded(units + number, HIDDEN, real, INPUTS)
    outputs = units + number + INPUTS * HIDDEN
    constant = tl.load(outputs, real, 0.0)
    of_outputs = loaded(outputs + HIDDEN, HIDDEN, real, 3)
    d_weights, d_outputs = zeros(UNITS, INPUTS), zeros(UNITS, 3)
    d_constant = tl.zeros([UNITS], tl.float32)
    begin = part * part_rows
    x, d_y, around = x + begin * 3, d_y + begin * 3, around + begin * 4
    # Places within a part have 32 bits.
    count = tl.minimum(rows - begin, part_rows).to(tl.int32)
    for row in tl.range(0, count, loop_unroll_factor=AT_ONCE):
        inputs, g = scalars(x + row * 3, 1, 3), scalars(d_y + row * 3, 1, 3)
        if INPUTS == 7:
            inputs = inputs + scalars(around + row * 4, 1, 4)
        a = hidden(constant, inputs, weights, INPUTS)
        bell, factor = normal_tail(tl.abs(a))
        d_outputs = plus(d_outputs, gelu(a, bell, factor), g, 3)
        d_a = g[0] * of_outputs[0] + g[1] * of_outputs[1] + g[2] * of_outputs[2]
        d_a *= gelu_slope(a, bell, factor)
        d_constant += d_a
        d_weights = plus(d_weights, d_a, inputs, INPUTS)
    out = d_units + part * (INPUTS + 4) * HIDDEN + number
    store(d_weights, out, HIDDEN, real, INPUTS)
    tl.store(out + INPUTS * HIDDEN, d_constant, real)
    store(d_outputs, out + (INPUTS + 1) * HIDDEN, HIDDEN, real, 3)


@triton.jit(do_not_specialize=["rows", "height", "width"])
def vig_input_gradient(
    d_x, d_sums, g, x, affine, out, rows, height, width, INPUTS: tl.constexpr, ROWS: tl.constexpr
):
    """out = d_x + g + x @ affine[:3] + affine[3], where `affine` is float64; of a Grapher,
    neighbours' sums of d_sums are added."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    if INPUTS == 7:
        sums = neighbour_sums(d_sums, row, there, height, width, ROWS)
    x0, x1, x2 = loaded(x + row * 3, 1, there, 3)
    for k in tl.static_range(3):
        at = row * 3 + k
        by_x0, by_x1, by_x2, constant = narrow(affine + k, 3, 4)
        found = tl.load(d_x + at, there, 0.0) + tl.load(g + at, there, 0.0) + constant
        found += x0 * by_x0 + x1 * by_x1 + x2 * by_x2
        if INPUTS == 7:
            found += sums[k]
        tl.store(out + at, found, there)


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
