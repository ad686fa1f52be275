"""Pairs of nodes that are no links: some for each link of a step, and pools for evaluations."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gnnhpc.core.errors import InputError
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.link_split import Codes
from gnnhpc.kernels.sample_neighbors import negatives


class Negatives:
    """Chooses for a link (u, v) random nodes that are neither u nor joined to u.

    Each such node is equally likely. The choice is keyed by seed, step, link number and place, so
    it depends on no rank, no thread and no other link. Only the message graph is known here: a
    negative may be a link to validate or to test.
    """

    def __init__(self, message: Graph, seed: int) -> None:
        """Raises InputError for a graph with a node that is joined to all others."""
        self._seed, self._nodes = seed, message.nodes
        self._edges = message.in_edges
        degree = self._edges.degrees
        if int(degree.max()) >= message.nodes - 1:
            found = f"node {int(degree.argmax())}, joined to all {message.nodes - 1} others"
            allowed = "a node that it is not joined to, for a negative of its links"
            raise InputError(f"data {message.name}", "task", found, allowed)

    def of(self, kept: Tensor, numbers: Tensor, step: int, count: int) -> Tensor:
        """Nodes that take the place of the second ends of links, int64 [links, count].

        `numbers` int64 [links] are the links, `kept` their first ends.
        """
        graph = (self._edges.indptr, self._edges.source)
        return negatives(graph, self._seed, step, kept, numbers, count)


POOL = {"val": 201, "test": 202}
"""Second numbers of the seeds of each split's pool, after the experiment's."""


def pool(joined: Codes, nodes: int, count: int, seed: int, split: str) -> Tensor:
    """Random pairs of different nodes that no edge of the whole graph joins, int64 [count, 2].

    Every such pair is equally likely, and none comes twice; `joined` are the codes of all links.
    Raises InputError for a graph with fewer than twice as many such pairs.
    """
    free = nodes * (nodes - 1) // 2 - len(joined)
    if free < 2 * count:
        found = f"{free} pairs of nodes without an edge"
        raise InputError("data", "task.pool", found, f"twice as many as the pool's {count}")
    draw = np.random.default_rng([seed, POOL[split]])
    taken = np.empty(0, dtype=np.int64)
    while len(taken) < count:
        one, other = draw.integers(0, nodes, (2, 2 * count))
        codes = np.minimum(one, other) * nodes + np.maximum(one, other)
        place = np.searchsorted(joined, codes).clip(max=len(joined) - 1)
        codes = np.concatenate((taken, codes[(one != other) & (joined[place] != codes)]))
        # Each pair keeps its first place.
        taken = codes[np.sort(np.unique(codes, return_index=True)[1])]
    taken = taken[:count]
    return torch.from_numpy(np.stack((taken // nodes, taken % nodes), 1))
