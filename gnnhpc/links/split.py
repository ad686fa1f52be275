"""Cuts a graph's links into those that are learnt and those that are judged.

A link is an unordered pair of nodes with an edge in either direction: a directed graph is taken for
an undirected one. The message graph has the links to train on, in both directions, and no others.
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
"""Second numbers of the seeds, behind the experiment's own: of which links, of which end first."""


@dataclass(frozen=True)
class LinkSplit:
    """Links are int64 [n, 2]; which of its two ends comes first is drawn once, for each link."""

    message: Graph
    """The graph with the edges of links to train on alone, in both directions."""
    train: Tensor
    """Their numbers follow the pair of nodes, the smaller one first."""
    val: Tensor
    test: Tensor
    both: Tensor
    """int64 [train, 2]: of each link to train on, the numbers of its two edges in `message`."""
    joined: Codes
    """int64 [links]: smaller node * nodes + larger node of every link, ascending."""


def split_links(graph: Graph, seed: int, val_share: float, test_share: float) -> LinkSplit:
    """Of all links a share each to validate and to test, rounded down; the others train.

    InputError for a graph of which a split were empty.
    """
    nodes = graph.nodes
    source, target = graph.edges.numpy()
    joined = np.unique(np.minimum(source, target) * nodes + np.maximum(source, target))
    links = len(joined)
    first, second = int(links * val_share), int(links * test_share)
    if min(first, second, links - first - second) < 1:
        found = f"{links} links, of which {first} validate and {second} test"
        raise InputError(f"data {graph.name}", "task", found, "one link at least of each split")
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
    message, both = _message(graph, parts["train"])
    return LinkSplit(message, parts["train"], parts["val"], parts["test"], both, joined)


def _message(graph: Graph, links: Tensor) -> tuple[Graph, Tensor]:
    """The graph of these links in both directions, and each one's two edges in it."""
    one, other = links.T
    codes = torch.cat((other * graph.nodes + one, one * graph.nodes + other))
    ordered, order = codes.sort()
    edges = torch.stack((ordered % graph.nodes, ordered // graph.nodes))
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order))
    return dataclasses.replace(graph, edges=edges, stored_in_edges=None), places.view(
        2, -1
    ).T.contiguous()
