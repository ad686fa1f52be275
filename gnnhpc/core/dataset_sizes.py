"""Sizes of a data set, known without reading it: enough to plan a run on a login node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["images", "graph", "graphs"]
"""Images, one graph whose nodes are classified, or many small graphs that are classified."""
SPLITS = ("train", "val", "test")
"""The splits of a graph's nodes, or of many graphs."""


@dataclass(frozen=True)
class Facts:
    """Sizes of a data set; `features` is channels for images, feature columns for graphs.

    `nodes` and `edges` of many graphs are sums over all of them.
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
    """Images, graphs, or the most nodes to train on; 0 where a graph's are not known."""
    val: int = 0
    test: int = 0
