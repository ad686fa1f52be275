"""What a collapsed ViG layer computes a node, in plain torch: any device, any precision.

The same functions as `gnnhpc.kernels.vig`, which has them in C++ for float32 on a CPU. Rows of
activations are `[rows, 3]`, row = (image * height + row) * width + column.

`first` `[hidden, inputs + 1]` holds the weights of a node's inputs and, last, of the constant 1.
The inputs are its three channels (FFN), or those, the sum over its neighbours of theirs, and the
number of neighbours (Grapher); `sums` is None for the FFN. `second` is `[3, hidden]`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

Grid = tuple[int, int]

# Rows whose hidden layer fits in a core's cache, or fills a GPU without filling its memory.
PIECE_CPU = 2048
PIECE_GPU = 131_072


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean `[3]` and (biased) covariance `[3, 3]` over the rows, in float64."""
    wide = x.double()
    mean = wide.mean(0)
    centred = wide - mean
    return mean, centred.t() @ centred / len(x)


def products(g: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over the rows of g and of g * y, `[3]` each, in float64."""
    wide = g.double()
    return wide.sum(0), (wide * y.double()).sum(0)


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


def residual(x: Tensor, y: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """x + y * scale + shift, channel by channel; scale and shift are float64."""
    return torch.addcmul(x + shift.to(x.dtype), y, scale.to(x.dtype))


def forward(
    x: Tensor, sums: Tensor | None, grid: Grid, first: Tensor, second: Tensor, bias: Tensor
) -> Tensor:
    """GELU(inputs @ first.T) @ second.T + bias, `[rows, 3]`."""
    y = torch.empty_like(x)
    for piece, inputs in _pieces(x, sums, grid):
        torch.addmm(bias, F.gelu(inputs @ first.t()), second.t(), out=y[piece])
    return y


def backward(
    x: Tensor,
    sums: Tensor | None,
    grid: Grid,
    first: Tensor,
    second: Tensor,
    y: Tensor,
    g: Tensor,
    along: Tensor,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor]:
    """Gradients of x, sums, first, second and bias.

    The gradient of y is `g * along[0] + y * along[1] + along[2]`, `along` `[3, 3]` float64: what
    BatchNorm makes of the gradient g of its output.
    """
    scale, slope, shift = along.to(x.dtype)
    d_x = torch.empty_like(x)
    d_sums = None if sums is None else torch.empty_like(x)
    d_first, d_second = torch.zeros_like(first), torch.zeros_like(second)
    d_bias = torch.zeros_like(second[:, 0])
    channels = x.shape[1]
    for piece, inputs in _pieces(x, sums, grid):
        d_y = torch.addcmul(torch.addcmul(shift, y[piece], slope), g[piece], scale)
        hidden = inputs @ first.t()
        d_hidden = torch.ops.aten.gelu_backward(d_y @ second, hidden)
        d_bias += d_y.sum(0)
        d_second.addmm_(d_y.t(), F.gelu(hidden))
        d_first.addmm_(d_hidden.t(), inputs)
        torch.mm(d_hidden, first[:, :channels], out=d_x[piece])
        if d_sums is not None:
            torch.mm(d_hidden, first[:, channels : 2 * channels], out=d_sums[piece])
    return d_x, d_sums, d_first, d_second, d_bias


def finish(
    d_x: Tensor,
    d_sums: Tensor | None,
    g: Tensor,
    x: Tensor,
    matrix: Tensor,
    vector: Tensor,
    grid: Grid,
) -> Tensor:
    """d_x + g + x @ matrix + vector + the neighbour sum of d_sums; may be d_x itself.

    `matrix` `[3, 3]` and `vector` `[3]` are float64.
    """
    d_x += g
    d_x += torch.addmm(vector.to(x.dtype), x, matrix.to(x.dtype))
    if d_sums is not None:
        d_x += neighbour_sum(d_sums, grid)
    return d_x


@functools.lru_cache(maxsize=8)
def degrees(grid: Grid, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Neighbours of each node of one image, `[nodes, 1]`."""
    return neighbour_sum(torch.ones(grid[0] * grid[1], 1, dtype=dtype, device=device), grid)


def _pieces(x: Tensor, sums: Tensor | None, grid: Grid) -> Iterator[tuple[slice, Tensor]]:
    """Inputs of a piece of rows at a time, `[piece, inputs + 1]`, the constant last."""
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
