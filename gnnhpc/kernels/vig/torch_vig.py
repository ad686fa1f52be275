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


class Saved(NamedTuple):
    """What backward needs of a forward that went by the batch's statistics, but for y small."""

    y: Tensor
    """The network's output `[rows, 3]`."""
    centre: Tensor
    """What was subtracted from x `[3]`, in its precision."""
    units: Tensor
    """The network's weights, as `Passes.units` gives them."""
    folded: Tensor
    """The folded Linear, `[hidden, 4]` float64."""
    mean: Tensor
    """With the covariance, the `fold.Moments` of x without its centre."""
    covariance: Tensor
    mean1: Tensor
    """With the next two, the first BatchNorm's `fold.Norm`."""
    inverse1: Tensor
    scale1: Tensor
    mean2: Tensor
    inverse2: Tensor
    scale2: Tensor


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

    def moments(self, x: Tensor) -> fold.Moments:
        """Mean and covariance of rows, float64."""
        wide = x.double()
        mean = wide.mean(0)
        wide = wide - mean
        return fold.Moments(mean, wide.t() @ wide / len(wide))

    def gradient_sums(self, g: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the rows of g and of g * y, `[3]` float64."""
        wide = g.double()
        return wide.sum(0), (wide * y.double()).sum(0)

    def units(self, first: Tensor, w2: Tensor, dtype: torch.dtype) -> Tensor:
        """The network's weights: `first` `[hidden, 4 or 8]` is all before the GELU, `w2` what comes
        after it, both float64."""
        return first.to(dtype)

    def network(self, x: Tensor, grid: Grid, units: Tensor, weights: Weights) -> Tensor:
        """The network's output for each row of x."""
        y = torch.empty_like(x)
        for piece, inputs in _pieces(x, _sums(x, grid, weights), grid):
            torch.addmm(weights.b2, F.gelu(inputs @ units.t()), weights.w2.t(), out=y[piece])
        return y

    def gradients(
        self,
        x: Tensor,
        y: Tensor,
        g: Tensor,
        along: Tensor,
        grid: Grid,
        units: Tensor,
        weights: Weights,
    ) -> Sums:
        """Gradients of what `network` took; that of y is g * along[0] + y * along[1] + along[2],
        and `along` `[3, 3]` is float64."""
        scale, slope, shift = along.to(x.dtype)
        sums = _sums(x, grid, weights)
        d_x, d_sums = torch.empty_like(x), None if sums is None else torch.empty_like(x)
        # A piece's sums have the precision of x; those of all pieces, however many, lose no more.
        d_first, d_w2, d_b2 = (
            torch.zeros_like(of_sum, dtype=torch.float64)
            for of_sum in (units, weights.w2, weights.b2)
        )
        for piece, inputs in _pieces(x, sums, grid):
            d_y = torch.addcmul(torch.addcmul(shift, y[piece], slope), g[piece], scale)
            hidden = inputs @ units.t()
            d_hidden = torch.ops.aten.gelu_backward(d_y @ weights.w2, hidden)
            d_b2 += d_y.sum(0)
            d_w2 += d_y.t() @ F.gelu(hidden)
            d_first += d_hidden.t() @ inputs
            torch.mm(d_hidden, units[:, :3], out=d_x[piece])
            if d_sums is not None:
                torch.mm(d_hidden, units[:, 3:6], out=d_sums[piece])
        return Sums(d_first, d_w2, d_b2, d_x, d_sums)

    def input_gradient(self, of: Sums, g: Tensor, x: Tensor, slope: Tensor, grid: Grid) -> Tensor:
        """The gradient of the layer's input, in the place of `of.d_x`: g and `of` added up, and by
        a `slope` `[4, 3]`, float64, that of the batch's statistics."""
        slope = slope.to(x.dtype)
        d_x = of.d_x
        d_x += g
        d_x += torch.addmm(slope[3], x, slope[:3])
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
    wide = _converted(weights, torch.float64)
    if running is None:
        # BatchNorm removes the mean anyway. If it stayed in the sums over the rows, gradients would
        # lose a digit, because the neighbours' sums are then nearly the degree times that mean.
        mean, covariance = passes.moments(x)
        centre = mean.to(x.dtype)
        centred, of = x - centre, fold.Moments(mean - centre, covariance)
        mean1, variance1 = wide.w1 @ of.mean, fold.hidden_variance(wide.w1, of)
    else:
        centred = x
        mean1, variance1 = running.mean1 - wide.b1, running.variance1.double()
    norm1 = fold.norm_of(wide.gamma1, mean1, variance1, eps[0])
    folded = first = fold.fold_linear(wide.w1, wide.beta1, norm1)
    if wide.root is not None and wide.relative is not None and wide.conv_bias is not None:
        first = fold.fold_conv(folded, wide.root, wide.relative, wide.conv_bias)
    units = passes.units(first, wide.w2, x.dtype)
    y = passes.network(centred, grid, units, weights)
    if running is None:
        mean2, covariance2 = passes.moments(y)
        variance2 = covariance2.diagonal().clamp_min(0)
    else:
        mean2, variance2 = running.mean2.double(), running.variance2.double()
    norm2 = fold.norm_of(wide.gamma2, mean2, variance2, eps[1])
    shift = fold.fold_norm(wide.beta2, norm2)
    out = torch.addcmul(x + shift.to(x.dtype), y, norm2.scale.to(x.dtype))
    if running is not None:
        return Result(out, None, ())
    statistics = Statistics(torch.addmv(wide.b1, wide.w1, mean), variance1, mean2, variance2)
    return Result(out, statistics, Saved(y, centre, units, folded, *of, *norm1, *norm2))


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
    kept, wide = Saved(*saved), _converted(weights, torch.float64)
    of = fold.Moments(kept.mean, kept.covariance)
    norm1 = fold.Norm(kept.mean1, kept.inverse1, kept.scale1)
    norm2 = fold.Norm(kept.mean2, kept.inverse2, kept.scale2)
    centred = x - kept.centre
    d_norm2, along = fold.unfold_norm(norm2, *passes.gradient_sums(g, kept.y), len(x))
    sums = passes.gradients(centred, kept.y, g, along, grid, kept.units, weights)

    d_folded = sums.first
    d_conv: tuple[Tensor | None, ...] = (None, None, None)
    if wide.root is not None and wide.relative is not None:
        d_folded, d_conv = fold.unfold_conv(sums.first, kept.folded, wide.root, wide.relative)
    d_linear, d_moments = fold.unfold_linear(d_folded, wide.w1, norm1, of)
    d_w1, d_gamma1, d_beta1 = d_linear
    # BatchNorm removes a constant that is added before it.
    d_b1 = torch.zeros_like(wide.b1)
    d_all = (d_w1, d_b1, d_gamma1, d_beta1, *d_conv, sums.w2, sums.b2, *d_norm2)
    d_weights = _converted(Weights._make(d_all), x.dtype)
    if not wants_x:
        return None, d_weights
    slope = fold.moments_slope(d_moments, of, len(x))
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


def _converted(weights: Weights, dtype: torch.dtype) -> Weights:
    """The same numbers in this precision, by one operation for all: a GPU takes as long for each
    small one as for reading thousands of rows."""
    given = [each for each in weights if each is not None]
    flat = torch.cat([each.reshape(-1) for each in given]).to(dtype)
    parts = iter(flat.split([each.numel() for each in given]))
    return Weights._make(None if w is None else next(parts).view(w.shape) for w in weights)


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
