"""Cuts a chunk's edges out of the whole graph as PyG, DGL or this suite does it.

All three give the same block, edge for edge in the same order, so that layers compute the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gnnhpc.graphs.blocks import Block
from gnnhpc.graphs.chunks import block_builder
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.rebuilt import BlockBuilder


def subgraph_builder(graph: Graph, implementation: str) -> BlockBuilder:
    """The library's own function for `pyg` and `dgl`, ours for every other implementation.

    Raises ValueError as `build_chunks` does, InputError where DGL is not installed.
    """
    ours = block_builder(graph)
    if implementation not in ("pyg", "dgl"):
        return ours
    # With self-loops, in a block's order.
    whole = ours(torch.arange(len(graph.labels)))
    return _by_pyg(whole) if implementation == "pyg" else _by_dgl(whole)


def _by_pyg(whole: Block) -> BlockBuilder:
    from torch_geometric.utils import subgraph

    def build(nodes: Tensor) -> Block:
        (source, target), number = subgraph(
            nodes[nodes >= 0],
            whole.edge_index,
            whole.edge,
            relabel_nodes=True,
            num_nodes=whole.rows_in,
        )
        return _block(source, target, number, len(nodes))

    return build


def _by_dgl(whole: Block) -> BlockBuilder:
    from gnnhpc.models.libraries import import_dgl

    dgl = import_dgl()
    # DGL gives a subgraph's edges by the first end of each: turned round, in a block's order.
    turned = dgl.graph((whole.target, whole.source), num_nodes=whole.rows_in)

    def build(nodes: Tensor) -> Block:
        cut = dgl.node_subgraph(turned, nodes[nodes >= 0])
        target, source = cut.edges()
        return _block(source, target, whole.edge[cut.edata[dgl.EID]], len(nodes))

    return build


def _block(source: Tensor, target: Tensor, edge: Tensor, rows: int) -> Block:
    """Of edges in order of their targets; padding rows come after all nodes."""
    indptr = torch.zeros(rows + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(target, minlength=rows), 0, out=indptr[1:])
    return Block(indptr, source, target, edge, rows)
