"""Blocks that are cut out of the whole graph again for each layer of each step.

PyG, DGL and this suite cut the same block, edge for edge in the same order, so that layers compute
the same.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gnnhpc.graphs.blocks import Block, BlocksOnRequest
from gnnhpc.graphs.graph import Graph, block_weights
from gnnhpc.graphs.halo_chunks import cut_block

BlockBuilder = Callable[[Tensor], Block]
"""Cuts the block of a chunk's nodes, int64 [rows] with -1 for padding, out of a graph, on a CPU."""


class RebuiltBlocks(BlocksOnRequest):
    """The block of `nodes` for each of `count` layers, built whenever one asks for it, then moved.

    For chunks without a halo: the edges are the same in every layer.
    """

    def __init__(
        self, build: BlockBuilder, nodes: Tensor, count: int, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(device, ())
        self._build, self._nodes, self._count = build, nodes, count

    def __len__(self) -> int:
        return self._count

    def at(self, index: int) -> Block:
        return self._build(self._nodes).to(self.device)

    @property
    def present(self) -> list[Block]:
        """The blocks that layers get, built once more to be looked at."""
        return [self._build(self._nodes)] * self._count

    def to(self, device: torch.device | str) -> RebuiltBlocks:
        return RebuiltBlocks(self._build, self._nodes, self._count, device)


def subgraph_builder(graph: Graph, implementation: str) -> BlockBuilder:
    """The library's own function for `pyg` and `dgl`, ours for every other implementation.

    Raises InputError where DGL is not installed.
    """

    def ours(nodes: Tensor) -> Block:
        return cut_block(graph.in_edges, nodes, len(nodes), graph.edge_weight)

    if implementation not in ("pyg", "dgl"):
        return ours
    # The edges with self-loops, in the order of a block.
    whole = ours(torch.arange(graph.nodes))
    cut = _by_pyg(whole) if implementation == "pyg" else _by_dgl(whole)

    def build(nodes: Tensor) -> Block:
        source, target, edge = cut(nodes[nodes >= 0])
        indptr = torch.zeros(len(nodes) + 1, dtype=torch.int64)
        # Padding rows come after all nodes.
        torch.cumsum(torch.bincount(target, minlength=len(nodes)), 0, out=indptr[1:])
        weights = block_weights(graph.edge_weight, edge)
        return Block(indptr, source, target, edge, len(nodes), weights)

    return build


Cut = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
"""Maps nodes to the sources, targets (both local, targets ascending) and numbers of their edges."""


def _by_pyg(whole: Block) -> Cut:
    from torch_geometric.utils import subgraph

    def cut(nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        options = {"relabel_nodes": True, "num_nodes": whole.rows_in}
        (source, target), edge = subgraph(nodes, whole.edge_index, whole.edge, **options)
        return source, target, edge

    return cut


def _by_dgl(whole: Block) -> Cut:
    from gnnhpc.models.libraries import import_dgl

    dgl = import_dgl()
    # DGL orders a subgraph's edges by their first end: reversed edges come by target.
    reverse = dgl.graph((whole.target, whole.source), num_nodes=whole.rows_in)

    def cut(nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = dgl.node_subgraph(reverse, nodes)
        target, source = found.edges()
        return source, target, whole.edge[found.edata[dgl.EID]]

    return cut
