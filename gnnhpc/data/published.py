"""Published graphs: one row each, with its sizes and the files that PyG's own class reads.

Sizes are those of Planetoid (Yang et al. 2016), Amazon and Coauthor (Shchur et al. 2018) and
Reddit (Hamilton et al. 2017). Free of torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gnnhpc.core.facts import Facts
from gnnhpc.data.settings import Data

FEATURE_PARTS = ("x", "tx", "allx")
_PLANETOID_SOURCE = "https://github.com/kimiyoung/planetoid/tree/master/data"
_SHCHUR_SOURCE = "https://github.com/shchur/gnn-benchmark/tree/master/data/npz"


@dataclass(frozen=True)
class Published:
    """One data set: its files lie at `<root>/<folder>/raw/<file>`, as PyG lays them out."""

    pyg: str
    """The class of torch_geometric.datasets that reads it."""
    folder: str
    """Also the name that class knows it by, where it knows several."""
    files: tuple[str, ...]
    source: str
    """Where the files are published, for whoever has to fetch them."""
    facts: Facts
    split: bool = False
    """Whether masks for training, validation and test are published."""
    dense: bool = False
    """Whether features are kept as they are, not as the few that are no zero."""

    def directory(self, root: Path) -> Path:
        return root / self.folder / "raw"

    def needed(self, features: str) -> tuple[str, ...]:
        """Features that are made up need no feature files, where those stand apart."""
        if features == "real":
            return self.files
        return tuple(name for name in self.files if name.split(".")[-1] not in FEATURE_PARTS)


def _graph(features: int, classes: int, nodes: int, edges: int) -> Facts:
    return Facts("graph", features, classes, nodes=nodes, edges=edges)


def _planetoid(folder: str, facts: Facts) -> Published:
    parts = (*FEATURE_PARTS, "y", "ty", "ally", "graph", "test.index")
    files = tuple(f"ind.{folder.lower()}.{part}" for part in parts)
    return Published("Planetoid", folder, files, _PLANETOID_SOURCE, facts, split=True)


PUBLISHED = {
    "cora": _planetoid("Cora", _graph(1_433, 7, 2_708, 10_556)),
    "citeseer": _planetoid("CiteSeer", _graph(3_703, 6, 3_327, 9_104)),
    "pubmed": _planetoid("PubMed", _graph(500, 3, 19_717, 88_648)),
    "photo": Published(
        "Amazon",
        "Photo",
        ("amazon_electronics_photo.npz",),
        _SHCHUR_SOURCE,
        _graph(745, 8, 7_650, 238_162),
    ),
    "physics": Published(
        "Coauthor",
        "Physics",
        ("ms_academic_phy.npz",),
        _SHCHUR_SOURCE,
        _graph(8_415, 5, 34_493, 495_924),
    ),
    "reddit": Published(
        "Reddit",
        "Reddit",
        ("reddit_data.npz", "reddit_graph.npz"),
        "https://data.dgl.ai/dataset/reddit.zip",
        _graph(602, 41, 232_965, 114_615_892),
        split=True,
        dense=True,
    ),
}


class PublishedGraph(Data):
    """A citation, co-purchase, co-author or post graph, read by PyG's own class."""

    name: str
    features: Literal["real", "made"] = "real"
    """`made` keeps graph, labels and split and makes features up: for timing, not accuracy."""

    @property
    def published(self) -> Published:
        return PUBLISHED[self.name]

    def facts(self) -> Facts:
        return self.published.facts
