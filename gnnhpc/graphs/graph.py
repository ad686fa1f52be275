"""A graph in memory, as every loader returns it: features, labels, edges and splits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gnnhpc.graphs.in_edges import InEdges

IGNORED = -100
"""The target of a row that is not counted: padding, halo, or another split's node."""


@dataclass(frozen=True)
class Graph:
    """A graph whose nodes are to be classified."""

    name: str
    features: Tensor
    """float32 [nodes, F]: sparse CSR, or dense where the source is dense."""
    labels: Tensor
    """int64 [nodes]"""
    edges: Tensor
    """int64 [2, E] directed (source, target), without self-loops or duplicates, sorted by
    (target, source)."""
    masks: dict[str, Tensor]
    """bool [nodes] each: train, val, test."""
    classes: int
    stored_in_edges: InEdges | None = None
    """`in_edges` where they are kept with the graph."""

    def __post_init__(self) -> None:
        kept, edges = self.stored_in_edges, self.edges.shape[1]
        assert kept is None or len(kept.source) == edges, "in-edges of another graph"

    @property
    def nodes(self) -> int:
        return len(self.labels)

    @cached_property
    def in_edges(self) -> InEdges:
        """The same edges by target."""
        return self.stored_in_edges or InEdges.of(self.edges, self.nodes)

    def among(self, kept: Tensor) -> Graph:
        """The same nodes with the edges between those `kept`, bool [nodes], numbered anew."""
        edges = self.edges[:, kept[self.edges].all(0)]
        return replace(self, edges=edges, stored_in_edges=None)

    def targets(self, nodes: Tensor, rows: int | None = None) -> dict[str, Tensor]:
        """Of each split the labels of `nodes`, int64 [n], `IGNORED` where it has not the node.

        With `rows` that many, of which those after the nodes' are ignored.
        """
        found = {}
        for split, mask in self.masks.items():
            labels = torch.full((len(nodes) if rows is None else rows,), IGNORED)
            labels[: len(nodes)] = self.labels[nodes].where(mask[nodes], IGNORED)
            found[split] = labels
        return found
