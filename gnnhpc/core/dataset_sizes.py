"""Sizes of a data set, known without reading it: enough to plan a run on a login node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["images", "graph", "graphs"]
"""Images; a graph whose nodes are learnt; many small graphs that are learnt as wholes."""
SPLITS = ("train", "val", "test")
"""The splits of a graph's nodes, or of many graphs."""


@dataclass(frozen=True)
class Facts:
    """Sizes of a data set; `features` is channels for images, feature columns for graphs.

    `nodes` and `edges` of many graphs are those of all together.
    """

    kind: Kind
    features: int
    classes: int
    nodes: int = 0
    edges: int = 0
    """Directed, as PyG counts them."""
    image_size: int = 0
    graphs: int = 0
    train: int = 0
    """Images, or graphs, or at most so many nodes to train on; 0 where a graph's are not known."""
    """Images or graphs."""
    val: int = 0
    test: int = 0
