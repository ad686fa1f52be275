"""A ViG layer as a small network a node, in plain torch: any device, any precision.

`vig_mlp` beside it computes the same two functions in C++, for float32 on a CPU, and `triton_vig`
replaces the `Passes` over rows by programs for GPUs. Rows of activations are `[rows, 3]`,
row = (image * height + row) * width + column. `vig_fold` has the algebra on parameters and
statistics.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gnnhpc.kernels.vig import vig_fold as fold

Grid = tuple[int, int]

# Rows whose hidden layer fits in a core's cache, or fills a GPU without filling its memory.
PIECE_CPU = 2048
PIECE_GPU = 131_072


class Weights(NamedTuple):
    """A Grapher's parameters, or their gradients; an FFN has none of `root` to `conv_bias`."""

    w1: Tensor
    b1: Tensor
    gamma1: Tensor
    beta1: Tensor
    root: Tensor | None
    relative: Tensor | None
    conv_bias: Tensor | None
    w2: Tensor
    b2: Tensor
    gamma2: Tensor
    beta2: Tensor


class Statistics(NamedTuple):
    """Means and biased variances that the two BatchNorms use, `[hidden]` and `[3]`."""

    mean1: Tensor
    variance1: Tensor
    mean2: Tensor
    variance2: Tensor


class Moved(NamedTuple):
    """Running statistics that a forward moves by its batch's, as torch's BatchNorm does."""

    statistics: Statistics
    batches: tuple[Tensor, Tensor]
    """int64 [] each: how many batches have moved them."""
    momentum: tuple[float, float]


class Result(NamedTuple):
    """A layer's output `[rows, 3]`, the batch's statistics, and what backward needs."""

    out: Tensor
    statistics: Statistics | None
    """None where the layer went by running statistics."""
    saved: tuple[Tensor, ...]
    """Empty where the layer went by running statistics: an evaluation has no backward."""


class Sums(NamedTuple):
    """Sums over rows that backward makes, float64, and gradients of rows `[rows, 3]`."""

    first: Tensor
    """Of the weights before the GELU, `[hidden, 4 or 8]`."""
    w2: Tensor
    b2: Tensor
    d_x: Tensor
    d_neighbours: Tensor | None
    """Of the sums over each node's neighbours; None for an FFN."""


class Passes:
    """What a layer does with rows. All tensors of rows are contiguous, `[rows, 3]`."""

    def moments(self, centred: Tensor) -> tuple[Tensor, Tensor]:
        """Mean `[3]` and biased covariance `[3, 3]` of rows whose mean is nearly zero, float64."""
        wide = centred.double()
        mean = wide.mean(0)
        return mean, wide.t() @ wide / len(wide) - torch.outer(mean, mean)

    def gradient_sums(self, g: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the rows of g and of g * y, `[3]` float64."""
        wide = g.double()
        return wide.sum(0), (wide * y.double()).sum(0)

    def network(self, x: Tensor, grid: Grid, first: Tensor, weights: Weights) -> Tensor:
        """The network's output for each row of x; `first` `[hidden, 4 or 8]` is all before the
        GELU."""
        y = torch.empty_like(x)
        for piece, inputs in _pieces(x, _sums(x, grid, weights), grid):
            torch.addmm(weights.b2, F.gelu(inputs @ first.t()), weights.w2.t(), out=y[piece])
        return y

    def gradients(
        self,
        x: Tensor,
        y: Tensor,
        g: Tensor,
        along: Tensor,
        grid: Grid,
        first: Tensor,
        weights: Weights,
    ) -> Sums:
        """Gradients of what `network` took; that of y is g * along[0] + y * along[1] + along[2]."""
        scale, slope, shift = along
        sums = _sums(x, grid, weights)
        d_x, d_sums = torch.empty_like(x), None if sums is None else torch.empty_like(x)
        # A piece's sums have the precision of x; those of all pieces, however many, lose no more.
        d_first, d_w2, d_b2 = (
            torch.zeros_like(of_sum, dtype=torch.float64)
            for of_sum in (first, weights.w2, weights.b2)
        )
        for piece, inputs in _pieces(x, sums, grid):
            d_y = torch.addcmul(torch.addcmul(shift, y[piece], slope), g[piece], scale)
            hidden = inputs @ first.t()
            d_hidden = torch.ops.aten.gelu_backward(d_y @ weights.w2, hidden)
            d_b2 += d_y.sum(0)
            d_w2 += d_y.t() @ F.gelu(hidden)
            d_first += d_hidden.t() @ inputs
            torch.mm(d_hidden, first[:, :3], out=d_x[piece])
            if d_sums is not None:
                torch.mm(d_hidden, first[:, 3:6], out=d_sums[piece])
        return Sums(d_first, d_w2, d_b2, d_x, d_sums)

    def input_gradient(
        self, of: Sums, g: Tensor, x: Tensor, slope: tuple[Tensor, Tensor], grid: Grid
    ) -> Tensor:
        """The gradient of the layer's input, in the place of `of.d_x`: g and `of` added up, and by
        a `slope` `[3, 3]` and `[3]` that of the batch's statistics."""
        matrix, vector = slope
        d_x = of.d_x
        d_x += g
        d_x += torch.addmm(vector, x, matrix)
        if of.d_neighbours is not None:
            d_x += neighbour_sum(of.d_neighbours, grid)
        return d_x


TORCH = Passes()


def forward(
    x: Tensor,
    grid: Grid,
    weights: Weights,
    running: Statistics | None,
    eps: tuple[float, float],
    passes: Passes = TORCH,
) -> Result:
    """The layer applied to x `[rows, 3]`; BatchNorm uses `running`, else the batch's statistics."""
    if running is None:
        centre = x.mean(0)
        centred, weights = _centre(x, weights, centre)
        of = fold.Moments(*passes.moments(centred))
        statistics1 = fold.hidden_moments(weights.w1, weights.b1, of)
    else:
        centred = x
        statistics1 = running.mean1.double(), running.variance1.double()
    _, first = _fold(weights, fold.Norm(weights.gamma1, weights.beta1, *statistics1, eps[0]))
    y = passes.network(centred, grid, first.to(x.dtype), weights)
    if running is None:
        middle = y.mean(0)
        mean, covariance = passes.moments(y - middle)
        statistics2 = mean + middle, covariance.diagonal().clamp_min(0)
    else:
        statistics2 = running.mean2.double(), running.variance2.double()
    norm = fold.Norm(weights.gamma2, weights.beta2, *statistics2, eps[1])
    scale, shift = fold.fold_norm(norm)
    out = torch.addcmul(x + shift.to(x.dtype), y, scale.to(x.dtype))
    if running is not None:
        return Result(out, None, ())
    statistics = Statistics(*statistics1, *statistics2)
    return Result(out, statistics, (y, centre, *statistics, *of))


def backward(
    x: Tensor,
    grid: Grid,
    weights: Weights,
    saved: tuple[Tensor, ...],
    g: Tensor,
    eps: tuple[float, float],
    *,
    wants_x: bool,
    passes: Passes = TORCH,
) -> tuple[Tensor | None, Weights]:
    """Gradients of x (None unless `wants_x`) and of the weights, from that of the output, g."""
    y, centre, mean1, variance1, mean2, variance2, *moments = saved
    of = fold.Moments(*moments)
    centred, weights = _centre(x, weights, centre)
    norm1 = fold.Norm(weights.gamma1, weights.beta1, mean1, variance1, eps[0])
    norm2 = fold.Norm(weights.gamma2, weights.beta2, mean2, variance2, eps[1])
    d_norm2, along = fold.unfold_norm(norm2, *passes.gradient_sums(g, y), len(x))
    folded, first = _fold(weights, norm1)
    first, along = first.to(x.dtype), along.to(x.dtype)
    sums = passes.gradients(centred, y, g, along, grid, first, weights)

    d_folded = sums.first
    d_conv: tuple[Tensor | None, ...] = (None, None, None)
    if weights.root is not None and weights.relative is not None:
        d_folded, *rest = fold.unfold_conv(sums.first, folded, weights.root, weights.relative)
        d_conv = tuple(rest)
    d_linear, d_moments = fold.unfold_linear(d_folded, weights.w1, weights.b1, norm1, of)
    d_all = (*d_linear, *d_conv, sums.w2, sums.b2, *d_norm2)
    d_weights = Weights._make(None if d is None else d.to(x.dtype) for d in d_all)
    if not wants_x:
        return None, d_weights
    matrix, vector = fold.moments_slope(d_moments, of, len(x))
    slope = matrix.to(x.dtype), vector.to(x.dtype)
    return passes.input_gradient(sums, g, centred, slope, grid), d_weights


def neighbour_sum(x: Tensor, grid: Grid) -> Tensor:
    """For each node the sum of x over its up to eight neighbours: a 3 x 3 box less its centre."""
    images = x.view(-1, *grid, x.shape[-1])
    tall = images.clone()
    tall[:, 1:] += images[:, :-1]
    tall[:, :-1] += images[:, 1:]
    box = tall - images
    box[:, :, 1:] += tall[:, :, :-1]
    box[:, :, :-1] += tall[:, :, 1:]
    return box.view_as(x)


@functools.lru_cache(maxsize=8)
def degrees(grid: Grid, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Neighbours of each node of one image, `[nodes, 1]`."""
    return neighbour_sum(torch.ones(grid[0] * grid[1], 1, dtype=dtype, device=device), grid)


def _centre(x: Tensor, weights: Weights, centre: Tensor) -> tuple[Tensor, Weights]:
    """x minus a row, and weights that give the same output for it.

    BatchNorm removes the mean anyway. If it stays in the sums over the rows, gradients lose a
    digit, because the neighbours' sums are then nearly the degree times that mean.
    """
    shifted = weights.b1.double() + weights.w1.double() @ centre.double()
    return x - centre, weights._replace(b1=shifted)


def _fold(weights: Weights, norm1: fold.Norm) -> tuple[Tensor, Tensor]:
    """The folded Linear `[hidden, 4]`, and all that comes before the GELU, float64."""
    folded = fold.fold_linear(weights.w1, weights.b1, norm1)
    if weights.root is None or weights.relative is None or weights.conv_bias is None:
        return folded, folded
    return folded, fold.fold_conv(folded, weights.root, weights.relative, weights.conv_bias)


def _sums(x: Tensor, grid: Grid, weights: Weights) -> Tensor | None:
    return None if weights.root is None else neighbour_sum(x, grid)


def _pieces(x: Tensor, sums: Tensor | None, grid: Grid) -> Iterator[tuple[slice, Tensor]]:
    """Inputs of a piece of rows at a time, as `fold` orders them: `[piece, 4 or 8]`."""
    size = PIECE_CPU if x.device.type == "cpu" else PIECE_GPU
    one = x.new_ones(min(size, len(x)), 1)
    for start in range(0, len(x), size):
        piece = slice(start, min(start + size, len(x)))
        columns = [x[piece]]
        if sums is not None:
            degree = degrees(grid, x.dtype, x.device)
            node = torch.arange(piece.start, piece.stop, device=x.device) % len(degree)
            columns += [sums[piece], degree[node]]
        yield piece, torch.cat([*columns, one[: piece.stop - piece.start]], 1)
