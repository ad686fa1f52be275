"""Many small graphs in memory, as every loader returns them: one store, and where each begins."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gnnhpc.graphs.graph import IGNORED


@dataclass(frozen=True)
class GraphSet:
    """Graphs that are to be classified, their nodes numbered one graph after another."""

    name: str
    features: Tensor
    """float32 [nodes, F]: sparse CSR, or dense where the source is dense."""
    edges: Tensor
    """int64 [2, E] directed (source, target), both of one graph, without self-loops or duplicates,
    sorted by (target, source)."""
    first: Tensor
    """int64 [graphs + 1]: the number of each graph's first node; none is empty."""
    labels: Tensor
    """int64 [graphs]"""
    masks: dict[str, Tensor]
    """bool [graphs] each: train, val, test."""
    classes: int

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def nodes(self) -> int:
        """Of all graphs together."""
        return int(self.first[-1])

    def targets(self, graphs: Tensor, splits: tuple[str, ...]) -> dict[str, Tensor]:
        """Of each of these splits the labels of `graphs`, int64 [n], `IGNORED` where it has not
        the graph."""
        labels = self.labels[graphs]
        return {split: labels.where(self.masks[split][graphs], IGNORED) for split in splits}

    def numbers(self, *splits: str) -> Tensor:
        """The graphs of these splits, int64 [n], ascending."""
        chosen = torch.stack([self.masks[split] for split in splits]).any(0)
        return chosen.nonzero().flatten()
