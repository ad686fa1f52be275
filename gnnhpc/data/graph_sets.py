"""Sets of graphs, each graph of one class: TU's table, synthetic threads, and their settings.

Sizes are those of PyG's documentation (Morris et al. 2020, arXiv:2007.08663); reddit10k is
karateclub's (Rozemberczki et al. 2020, arXiv:2003.04819). Does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.core.settings import Positive, Whole
from gnnhpc.data.data_files import Download, Files
from gnnhpc.data.data_settings import Data

NodeInputs = Literal["stored", "one-hot", "degree", "constant"]


class GraphSetData(Data):
    """A set of graphs, each of one class.

    A split is random: of the graphs in one random order, the first eight tenths are to train, the
    next tenth to validate, the rest to test. Classes are not balanced in it.
    """

    features: NodeInputs = "one-hot"
    """The input of a node: `stored` features, `one-hot` (its degree as one of `degrees` columns,
    higher degrees in the last), its `degree` as a number, or a `constant` 1."""
    degrees: Annotated[Whole, Field(ge=2)] = 64
    """Columns of one-hot degrees."""
    split: Annotated[Whole, Field(ge=0)] = 0
    """The number of the random split."""

    def _facts(self, graphs: int, nodes: int, edges: int, stored: int, classes: int) -> Facts:
        width = {"stored": stored, "one-hot": self.degrees}.get(self.features, 1)
        train, val, test = graph_split_sizes(graphs)
        sizes = {"graphs": graphs, "nodes": nodes, "edges": edges}
        return Facts("graphs", width, classes, **sizes, train=train, val=val, test=test)


class SyntheticGraphs(GraphSetData):
    """Random threads of discussion; the class is the share of answers to the first post."""

    name: Literal["synthetic-graphs"] = "synthetic-graphs"
    features: Literal["one-hot", "degree", "constant"] = "one-hot"
    graphs: Annotated[Whole, Field(ge=10)] = 1_000
    nodes: Positive = 24
    """The mean number of nodes of a graph, which has half to one and a half times as many."""
    degree: Annotated[float, Field(ge=0, le=1_000)] = 2.1
    """Directed edges for each node, approximately: fewer where graphs are too small."""
    classes: Annotated[Whole, Field(ge=2)] = 2

    def facts(self) -> Facts:
        nodes = self.graphs * self.nodes
        edges = 2 * round(nodes * self.degree / 2)
        return self._facts(self.graphs, nodes, edges, 0, self.classes)


def graph_split_sizes(graphs: int) -> tuple[int, int, int]:
    """The graphs to train, to validate and to test: eight tenths, one, and the rest."""
    train, val = graphs * 8 // 10, graphs // 10
    return train, val, graphs - train - val


@dataclass(frozen=True)
class TuSet:
    """One set: its files lie under `<root>/<folder>/raw`."""

    folder: str
    graphs: int
    nodes: int
    edges: int
    """Directed, as PyG counts them, to plan with; COLLAB's are a rounded mean."""
    labels: int
    """The number of labels that nodes have; 0 without."""
    classes: int
    download: bool = True
    """Whether TU publishes it, and `gnnhpc data get` can download it."""

    @property
    def names(self) -> tuple[str, ...]:
        kinds = ("A", "graph_indicator", "graph_labels", *(("node_labels",) if self.labels else ()))
        return tuple(f"{self.folder}_{kind}.txt" for kind in kinds)


TU = {
    "mutag": TuSet("MUTAG", 188, 3_371, 7_442, 7, 2),
    "enzymes": TuSet("ENZYMES", 600, 19_580, 74_564, 3, 6),
    "proteins": TuSet("PROTEINS", 1_113, 43_471, 162_088, 3, 2),
    "nci1": TuSet("NCI1", 4_110, 122_747, 265_506, 37, 2),
    "dd": TuSet("DD", 1_178, 334_925, 1_686_092, 89, 2),
    "collab": TuSet("COLLAB", 5_000, 372_474, 24_572_000, 0, 3),
    "imdb-binary": TuSet("IMDB-BINARY", 1_000, 19_773, 193_062, 0, 2),
    "reddit-binary": TuSet("REDDIT-BINARY", 2_000, 859_254, 1_991_016, 0, 2),
    "reddit10k": TuSet("reddit10k", 10_000, 237_390, 492_368, 0, 2, download=False),
}
_BASE = "https://www.chrsmrrs.com/graphkerneldatasets"
_REDDIT10K = "https://github.com/EdisonLeeeee/GraphData"


class TuGraphs(GraphSetData):
    """A set of the table, in the layout of TU, which PyG's TUDataset reads.

    Stored features are the nodes' labels, one column each; other attributes are left out, as PyG
    does by default.
    """

    name: str
    features: NodeInputs = "stored"

    @property
    def set(self) -> TuSet:
        return TU[self.name]

    def facts(self) -> Facts:
        known = self.set
        return self._facts(known.graphs, known.nodes, known.edges, known.labels, known.classes)

    def files(self) -> Files:
        known = self.set
        source = f"{_BASE}/{known.folder}.zip" if known.download else _REDDIT10K
        downloads = (Download(source, archive="zip"),) if known.download else ()
        return Files(f"{known.folder}/raw", known.names, downloads, source)


class UnlabelledTuGraphs(TuGraphs):
    """A set of the table whose nodes have no labels."""

    features: Literal["one-hot", "degree", "constant"] = "one-hot"
