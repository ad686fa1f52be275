"""What our uses of DGL's layers share: its graph of a block, and PyG's names for its parameters."""

from __future__ import annotations

from typing import Any, ClassVar

import dgl
import torch
from torch import Tensor, nn

from gnnhpc.graphs.blocks import Block
from gnnhpc.kernels.mask import Mask, number_entries


class PygNames(nn.Module):
    """Mixed into a layer of DGL's: its parts are kept under PyG's names, and found under both."""

    of_pyg: ClassVar[dict[str, str]]
    """PyG's name by DGL's, of linear layers and parameters."""

    def take_pyg_names(self) -> None:
        """To be called once DGL's layer has been made."""
        for held in (self._modules, self._parameters):
            parts: Any = held
            for name in [name for name in self.of_pyg if name in parts]:
                parts[self.of_pyg[name]] = parts.pop(name)

    def __getattr__(self, name: str) -> Any:
        renamed = self.of_pyg.get(name, name)
        has = renamed in self._modules or renamed in self._parameters
        return super().__getattr__(renamed if has else name)


class AttentionDropout(nn.Module):
    """Our mask where DGL's attention layers have dropout of [edges, heads, 1] coefficients."""

    def __init__(self) -> None:
        super().__init__()
        self.mask: Mask | None = None
        self.edge: Tensor | None = None

    def forward(self, coefficients: Tensor) -> Tensor:
        if self.mask is None:
            return coefficients
        assert self.edge is not None
        entries = number_entries(self.edge, coefficients.shape[1])
        return coefficients * self.mask.weights(entries, coefficients.dtype)[..., None]


WITHOUT_LOOPS = "dgl, without self-loops"
"""Where a block that DGL drew keeps the graph it is."""


def dgl_block(block: Block, *, loops: bool) -> Any:
    """The block's edges, in their order, as a graph of DGL's; made once."""
    name = "dgl, with self-loops" if loops else WITHOUT_LOOPS
    if name not in block.kept:
        graph = dgl.create_block(
            _by_target(block) if loops else tuple(block.neighbours),
            num_src_nodes=block.rows_in,
            num_dst_nodes=block.rows_out,
        )
        block.kept[name] = _in_all_formats(graph)
    return block.kept[name]


def _by_target(block: Block) -> Any:
    """All edges of a block, which are sorted so: nothing is left for DGL to sort.

    Numbered in their order, which DGL takes for granted but for one of its kernels. Blocks of our
    sampler become int64 here, as part of making the graph, which the layer's seconds have in them.
    """
    numbers = torch.arange(len(block.source), device=block.source.device)
    return "csc", (block.indptr.long(), block.source.long(), numbers)


def dgl_graph(block: Block) -> Any:
    """The same, self-loops included, where a block's sources are its targets; made once."""
    name = "dgl, square"
    if name not in block.kept:
        assert block.rows_in == block.rows_out
        source, target = block.edge_index
        graph = dgl.graph((source, target), num_nodes=block.rows_in)
        block.kept[name] = _in_all_formats(graph)
    return block.kept[name]


def _in_all_formats(graph: Any) -> Any:
    """All that its kernels take, forward and backward, so that no step makes them."""
    formatted = graph.formats(["coo", "csc", "csr"])
    formatted.create_formats_()
    return formatted
