"""ViG as its study builds it: all images' nodes in one `[nodes, 3]`, PyG's GraphConv, one graph.

For comparison only. The same layers and sizes as `gnnhpc.models.vig`, but torch's own BatchNorm
and no view of single images before the readout; edges of the whole batch are ready before a step,
as from PyG's loader. They come as `edge_index`, or as torch-sparse's `adj_t`, with which GraphConv
multiplies by a sparse matrix and holds no message an edge.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GraphConv, global_add_pool

from benchmarks.vig_step import EdgeForm
from gnnhpc.models.vig.model import Vig
from gnnhpc.models.vig.reference import grid_edges


class FlatBlock(nn.Module):
    """A Grapher, then an FFN, each added to its input."""

    def __init__(self, sizes: Vig) -> None:
        super().__init__()
        grapher, ffn = sizes.grapher_width, sizes.ffn_width
        self.grapher_in = nn.Sequential(nn.Linear(3, grapher), nn.BatchNorm1d(grapher))
        self.conv = GraphConv(grapher, grapher, aggr="add")
        self.grapher_out = nn.Sequential(nn.Linear(grapher, 3), nn.BatchNorm1d(3))
        self.ffn = nn.Sequential(
            *(nn.Linear(3, ffn), nn.BatchNorm1d(ffn), nn.GELU()),
            *(nn.Linear(ffn, 3), nn.BatchNorm1d(3)),
        )

    def forward(self, x: Tensor, edges: Any) -> Tensor:
        x = x + self.grapher_out(F.gelu(self.conv(self.grapher_in(x), edges)))
        out: Tensor = x + self.ffn(x)
        return out


class FlatVig(nn.Module):
    """Pixels `[images * nodes, 3]` to logits `[images, classes]`."""

    def __init__(self, sizes: Vig, classes: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(FlatBlock(sizes) for _ in range(sizes.blocks))
        self.readout = nn.Sequential(
            *(nn.Linear(3, sizes.readout_width), nn.GELU()),
            nn.Linear(sizes.readout_width, classes),
        )

    def forward(self, x: Tensor, edges: Any, image: Tensor) -> Tensor:
        """`image` int64 [nodes]: whose node it is."""
        for block in self.blocks:
            x = block(x, edges)
        logits: Tensor = self.readout(global_add_pool(x, image))
        return logits


def batch_edges(form: EdgeForm, side: int, images: int, device: torch.device) -> Any:
    """The edges of a batch of square images in one of the forms that PyG's layers take.

    Raises ImportError where torch-sparse is not installed.
    """
    edges = grid_edges((side, side), images, device)
    if form == "edge_index":
        return edges
    from torch_sparse import SparseTensor

    source, target = edges
    nodes = images * side**2
    return SparseTensor(row=target, col=source, sparse_sizes=(nodes, nodes)).fill_cache_()
