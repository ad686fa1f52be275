"""A graph in memory, as every loader returns it: features, labels, edges, weights and splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

IGNORED = -100
"""The target of a row that is not counted: padding, halo, or a node of another split."""


@dataclass(frozen=True)
class InEdges:
    """The edges of a graph by target, as samplers read them.

    Row v has the sources of the edges into node v, ascending. An edge's number is its place, which
    is the same as in `Graph.edges`. Ranks of a host map one copy of these arrays.
    """

    indptr: Tensor
    """int64 [nodes + 1]"""
    source: Tensor
    """int32 [edges]"""

    @classmethod
    def of(cls, edges: Tensor, nodes: int) -> Self:
        """Convert int64 [2, E], sorted by (target, source), of fewer than 2^31 nodes."""
        source, target = edges
        # A search reads few pages of the edges of a large graph, which lie in a mapped file.
        indptr = torch.searchsorted(target.contiguous(), torch.arange(nodes + 1))
        return cls(indptr, source.to(torch.int32))

    @property
    def degrees(self) -> Tensor:
        """int64 [nodes]"""
        return self.indptr.diff()


@dataclass(frozen=True)
class Graph:
    """A graph whose nodes are classified, or whose links are predicted."""

    name: str
    features: Tensor
    """float32 [nodes, F]: sparse CSR, or dense where the source is dense (float16 if so stored)."""
    labels: Tensor
    """int64 [nodes]; any number for a node outside of all splits."""
    edges: Tensor
    """int64 [2, E] directed (source, target), without self-loops or duplicates, sorted by
    (target, source)."""
    masks: dict[str, Tensor]
    """bool [nodes] each: train, val, test."""
    classes: int
    stored_in_edges: InEdges | None = None
    """`in_edges` where the cache holds them."""
    edge_weight: Tensor | None = None
    """float32 [E]; None where edges have no weights."""

    @property
    def nodes(self) -> int:
        return len(self.labels)

    @cached_property
    def in_edges(self) -> InEdges:
        """The same edges by target."""
        return self.stored_in_edges or InEdges.of(self.edges, self.nodes)

    @cached_property
    def weighted_degrees(self) -> Tensor | None:
        """float64 [nodes]: the function of this name of all edges; None without weights."""
        weight = self.edge_weight
        return None if weight is None else weighted_degrees(weight, self.edges[1], self.nodes)

    @cached_property
    def _edge_weight_on(self) -> dict[torch.device, Tensor]:
        return {}

    def edge_weight_on(self, device: torch.device) -> Tensor | None:
        """`edge_weight` on a device, copied there once."""
        if self.edge_weight is None:
            return None
        if device not in self._edge_weight_on:
            self._edge_weight_on[device] = self.edge_weight.to(device)
        return self._edge_weight_on[device]

    def among(self, kept: Tensor) -> Graph:
        """Return the same nodes with the edges between those `kept`, bool [nodes]."""
        alive = kept[self.edges].all(0)
        weight = None if self.edge_weight is None else self.edge_weight[alive]
        return replace(self, edges=self.edges[:, alive], stored_in_edges=None, edge_weight=weight)

    def targets(
        self,
        nodes: Tensor,
        rows: int | None = None,
        splits: Sequence[str] | None = None,
    ) -> dict[str, Tensor]:
        """The labels of `nodes`, int64 [n], of each split: `IGNORED` for nodes of other splits.

        With `rows`, each tensor has that many rows, and those after the nodes are ignored. `splits`
        are all that the graph has, unless they are named.
        """
        found = {}
        for split in self.masks if splits is None else splits:
            labels = torch.full((len(nodes) if rows is None else rows,), IGNORED)
            labels[: len(nodes)] = self.labels[nodes].where(self.masks[split][nodes], IGNORED)
            found[split] = labels
        return found


def block_weights(edge_weight: Tensor | None, edge: Tensor) -> Tensor | None:
    """The weights of a block's edges, float32 [edges], by their numbers; 1 for a self-loop.

    Numbers from E on, E the length of `edge_weight`, are self-loops.
    """
    if edge_weight is None:
        return None
    ones = edge_weight.new_ones(len(edge))
    if not len(edge_weight):
        return ones
    # To select the numbers that are edges would be to wait for a device.
    known = edge_weight[edge.long().clamp(max=len(edge_weight) - 1)]
    return known.where(edge < len(edge_weight), ones)


def weighted_degrees(edge_weight: Tensor, target: Tensor, nodes: int) -> Tensor:
    """float64 [nodes]: the sum of the weights into each node, with 1 for its self-loop.

    The edges, without self-loops, lead to `target`, int64 [edges].
    """
    sums = torch.ones(nodes, dtype=torch.float64)
    return sums.index_add_(0, target, edge_weight.double())
