"""ViG's layers in plain torch or with PyG, over an edge list: Grapher and FFN, then a readout.

`gnnhpc.models.vig.fused` has the same layers with the same parameters, without large intermediate
tensors.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gnnhpc.models.layers.batchnorm import BatchNorm
from gnnhpc.models.model import BatchNormMode, Context

if TYPE_CHECKING:
    from torch_geometric.nn import GraphConv

CHANNELS = 3
"""Channels of a pixel, and of every activation between layers."""

Grid = tuple[int, int]
"""Height and width of an image."""


class Neighbourhood(nn.Module):
    """PyG's GraphConv, with its names of parameters, without importing PyG."""

    def __init__(self, width: int, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.lin_rel = nn.Linear(width, width, dtype=dtype)
        self.lin_root = nn.Linear(width, width, bias=False, dtype=dtype)

    def forward(self, rows: Tensor, edges: Tensor) -> Tensor:
        """W_rel (sum over the neighbours) + b + W_root (the node); `edges` are [2, E]."""
        source, target = edges
        around = torch.zeros_like(rows).index_add(0, target, rows[source])
        out: Tensor = self.lin_rel(around) + self.lin_root(rows)
        return out


class Grapher(nn.Module):
    """x + BatchNorm(Linear(GELU(GraphConv(BatchNorm(Linear(x)))))), `[B, H*W, 3]` in and out.

    The hidden rows have `width` numbers.
    """

    conv: Neighbourhood | GraphConv

    def __init__(
        self, grid: Grid, width: int, *, batchnorm: BatchNormMode, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.grid = grid
        self.fc1 = nn.Linear(CHANNELS, width, dtype=dtype)
        self.norm1 = BatchNorm(width, batchnorm, dtype=dtype)
        self.conv = Neighbourhood(width, dtype=dtype)
        self.fc2 = nn.Linear(width, CHANNELS, dtype=dtype)
        self.norm2 = BatchNorm(CHANNELS, batchnorm, dtype=dtype)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return self.compute(x, grid_edges(self.grid, len(x), x.device))

    def compute(self, x: Tensor, edges: Tensor) -> Tensor:
        """What the setting `compile` compiles, as in the other layers."""
        rows = x.reshape(-1, CHANNELS)
        hidden = self.conv(self.norm1(self.fc1(rows)), edges)
        update: Tensor = self.norm2(self.fc2(F.gelu(hidden)))
        return x + update.view_as(x)


class Ffn(nn.Module):
    """x + BatchNorm(Linear(GELU(BatchNorm(Linear(x))))), `[B, H*W, 3]` in and out."""

    def __init__(self, width: int, *, batchnorm: BatchNormMode, dtype: torch.dtype) -> None:
        super().__init__()
        self.fc1 = nn.Linear(CHANNELS, width, dtype=dtype)
        self.norm1 = BatchNorm(width, batchnorm, dtype=dtype)
        self.fc2 = nn.Linear(width, CHANNELS, dtype=dtype)
        self.norm2 = BatchNorm(CHANNELS, batchnorm, dtype=dtype)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return self.compute(x)

    def compute(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.norm1(self.fc1(x.reshape(-1, CHANNELS))))
        update: Tensor = self.norm2(self.fc2(hidden))
        return x + update.view_as(x)


@functools.lru_cache(maxsize=8)
def grid_edges(grid: Grid, images: int, device: torch.device) -> Tensor:
    """Edges `[2, E]` from each pixel to its up to eight neighbours, no self-loops, all images.

    A node's number is `image * H * W + row * W + column`; edges are sorted by (target, source). An
    image of 32 x 32 has 7,812. They are built once for a batch size.
    """
    height, width = grid
    node = torch.arange(height * width, device=device)
    row, column = node // width, node % width
    targets, sources = [], []
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            if down == right == 0:
                continue
            to_row, to_column = row + down, column + right
            inside = (to_row >= 0) & (to_row < height) & (to_column >= 0) & (to_column < width)
            targets.append(node[inside])
            sources.append((to_row * width + to_column)[inside])
    one = torch.stack([torch.cat(sources), torch.cat(targets)])
    one = one[:, torch.argsort(one[1] * len(node) + one[0])]
    offsets = torch.arange(images, device=device) * len(node)
    return (one[:, None, :] + offsets[None, :, None]).reshape(2, -1)


class PygGrapher(Grapher):
    """The Grapher with PyG's GraphConv."""

    def __init__(
        self, grid: Grid, width: int, *, batchnorm: BatchNormMode, dtype: torch.dtype
    ) -> None:
        super().__init__(grid, width, batchnorm=batchnorm, dtype=dtype)
        from torch_geometric.nn import GraphConv

        # The same initial values as the fused implementation, moved into PyG's layer.
        initial = self.conv.state_dict()
        with torch.random.fork_rng(devices=[]):
            self.conv = GraphConv(width, width, aggr="add").to(dtype)
        self.conv.load_state_dict(initial)


class Readout(nn.Module):
    """Sum over the nodes, then 3 -> width -> classes: `[B, H*W, 3]` to logits `[B, classes]`."""

    def __init__(self, width: int, classes: int, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.fc1 = nn.Linear(CHANNELS, width, dtype=dtype)
        self.fc2 = nn.Linear(width, classes, dtype=dtype)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return self.compute(x)

    def compute(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc2(F.gelu(self.fc1(x.sum(1))))
        return logits
