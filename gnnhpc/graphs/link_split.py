"""Splits a graph's links into those to train on, to validate and to test, and makes their pools.

A link is an unordered pair of nodes with an edge in either direction. The message graph has the
links to train on, in both directions, and no others.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnnhpc.core.errors import InputError
from gnnhpc.graphs.graph import Graph

Codes = NDArray[np.int64]
SPLIT, ORDER = 101, 102
POOL = {"val": 201, "test": 202}
"""Second numbers of the seeds, after the experiment's: for the split, for each link's order, and
for the pool of each split."""


@dataclass(frozen=True)
class LinkSplit:
    """Links are int64 [n, 2]; the order of a link's two ends is random, once for each link."""

    message: Graph
    """The graph with the edges of the links to train on alone, in both directions."""
    train: Tensor
    """Numbered by the pair of nodes, the smaller node first."""
    val: Tensor
    test: Tensor
    both: Tensor
    """int64 [train, 2]: the numbers in `message` of the two edges of each link to train on."""
    joined: Codes
    """int64 [links]: smaller node * nodes + larger node of every link, ascending."""


def split_links(graph: Graph, seed: int, val_share: float, test_share: float) -> LinkSplit:
    """Take a share of all links to validate and one to test, rounded down; the others train.

    Raises InputError for a graph with a split that would be empty.
    """
    nodes = graph.nodes
    source, target = graph.edges.numpy()
    joined = np.unique(np.minimum(source, target) * nodes + np.maximum(source, target))
    links = len(joined)
    first, second = int(links * val_share), int(links * test_share)
    if min(first, second, links - first - second) < 1:
        found = f"{links} links, of which {first} validate and {second} test"
        raise InputError(f"data {graph.name}", "task", found, "at least one link in each split")
    order = np.random.default_rng([seed, SPLIT]).permutation(links)
    turned = np.random.default_rng([seed, ORDER]).integers(0, 2, links).astype(bool)
    places = {
        "val": order[:first],
        "test": order[first : first + second],
        "train": np.sort(order[first + second :]),
    }
    parts = {}
    for split, chosen in places.items():
        ends = np.stack((joined[chosen] // nodes, joined[chosen] % nodes), 1)
        ends[turned[chosen]] = ends[turned[chosen], ::-1]
        parts[split] = torch.from_numpy(ends)
    one, other = parts["train"].T
    # Edges in both directions, in their order, and the places there of the two of each link.
    codes, numbers = torch.cat((other * nodes + one, one * nodes + other)).sort()
    edges = torch.stack((codes % nodes, codes // nodes))
    both = numbers.argsort().view(2, -1).T.contiguous()
    message = dataclasses.replace(graph, edges=edges, stored_in_edges=None)
    return LinkSplit(message, **parts, both=both, joined=joined)


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
