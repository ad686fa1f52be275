"""What is known of each data set without reading it: enough to plan a run on a login node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["images", "graph"]


@dataclass(frozen=True)
class Facts:
    """Sizes of a data set; `features` is channels for images, feature columns for graphs."""

    kind: Kind
    features: int
    classes: int
    nodes: int = 0
    edges: int = 0
    image_size: int = 0
    train: int = 0
    test: int = 0


CIFAR10 = Facts("images", 3, 10, image_size=32, train=50_000, test=10_000)

# Directed edges as PyG counts them; published sizes of Planetoid (Yang et al. 2016),
# Amazon and Coauthor (Shchur et al. 2018), Reddit (Hamilton et al. 2017).
GRAPHS: dict[str, Facts] = {
    "cora": Facts("graph", 1_433, 7, nodes=2_708, edges=10_556),
    "citeseer": Facts("graph", 3_703, 6, nodes=3_327, edges=9_104),
    "pubmed": Facts("graph", 500, 3, nodes=19_717, edges=88_648),
    "photo": Facts("graph", 745, 8, nodes=7_650, edges=238_162),
    "physics": Facts("graph", 8_415, 5, nodes=34_493, edges=495_924),
    "reddit": Facts("graph", 602, 41, nodes=232_965, edges=114_615_892),
}
