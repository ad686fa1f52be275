"""Small graphs for the tests of chunks and attention layers."""

from __future__ import annotations

import torch

from gnnhpc.data.citation import Graph


def make_graph(
    nodes: int, pairs: int, *, features: int = 12, classes: int = 3, sparse: bool = True, seed: int
) -> Graph:
    """A random graph with about `pairs` undirected edges and features three quarters zero."""
    draw = torch.Generator().manual_seed(seed)
    ends = torch.randint(nodes, (2, pairs), generator=draw)
    ends = ends[:, ends[0] != ends[1]]
    keys = torch.cat((ends[1] * nodes + ends[0], ends[0] * nodes + ends[1])).unique()
    values = torch.rand(nodes, features, generator=draw)
    values *= torch.rand(nodes, features, generator=draw) < 0.25
    split = torch.randint(3, (nodes,), generator=draw)
    return Graph(
        name="random",
        features=values.to_sparse_csr() if sparse else values,
        labels=torch.randint(classes, (nodes,), generator=draw),
        edges=torch.stack((keys % nodes, keys // nodes)),
        masks={name: split == number for number, name in enumerate(("train", "val", "test"))},
        classes=classes,
    )
