"""Sets of many small graphs, each of one class: their settings. Free of torch.

Sizes of TU's sets are those of PyG's documentation (Morris et al. 2020, arXiv:2007.08663);
reddit10k is karateclub's (Rozemberczki et al. 2020, arXiv:2003.04819).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.core.errors import InputError
from gnnhpc.core.settings import Positive, Whole
from gnnhpc.data.files import Download, Files
from gnnhpc.data.roots import absence, existing_root
from gnnhpc.data.settings import Data

NodeInputs = Literal["stored", "one-hot", "degree", "constant"]
TENTHS = (8, 1, 1)
"""Of the graphs, to train, to validate and to test."""


def split_sizes(graphs: int) -> tuple[int, int, int]:
    """Graphs to train, to validate and to test: eight tenths, one, and the rest."""
    train, val = (graphs * tenths // 10 for tenths in TENTHS[:2])
    return train, val, graphs - train - val


class GraphSetData(Data):
    """What all sets of graphs have.

    A split is drawn: the graphs in one random order, of which the first eight tenths are to train,
    the next tenth to validate, the rest to test. Classes are not balanced in it.
    """

    features: NodeInputs = "one-hot"
    """Of a node: `stored` ones, its degree as one of `degrees` columns (higher ones in the last),
    its `degree` as a number, or a `constant` 1."""
    degrees: Annotated[Whole, Field(ge=2)] = 64
    """Columns of one-hot degrees."""
    split: Whole = 0
    """Which of any number of random splits."""

    def _width(self, stored: int) -> int:
        return {"stored": stored, "one-hot": self.degrees}.get(self.features, 1)

    def _facts(self, graphs: int, nodes: int, edges: int, stored: int, classes: int) -> Facts:
        train, val, test = split_sizes(graphs)
        return Facts(
            "graphs",
            self._width(stored),
            classes,
            nodes=nodes,
            edges=edges,
            graphs=graphs,
            train=train,
            val=val,
            test=test,
        )

    @model_validator(mode="after")
    def _degrees_are_used(self) -> Self:
        if (
            self.features != "one-hot"
            and self.degrees != type(self).model_fields["degrees"].default
        ):
            raise ValueError(f"degrees: found {self.degrees}; allowed: none for {self.features}")
        if self.split < 0:
            raise ValueError(f"split: found {self.split}; allowed: a whole number from 0")
        return self


class SyntheticGraphs(GraphSetData):
    """Random threads of discussion, whose class is how many answers go to the first post."""

    name: Literal["synthetic-graphs"] = "synthetic-graphs"
    features: Literal["one-hot", "degree", "constant"] = "one-hot"
    graphs: Annotated[Whole, Field(ge=10)] = 1_000
    nodes: Positive = 24
    """Of a graph, on average; from half to one and a half times as many."""
    degree: Annotated[float, Field(ge=0, le=1_000)] = 2.1
    """Directed edges a node, about: fewer where graphs are too small for them."""
    classes: Annotated[Whole, Field(ge=2)] = 2

    def facts(self) -> Facts:
        nodes = self.graphs * self.nodes
        edges = 2 * round(nodes * self.degree / 2)
        return self._facts(self.graphs, nodes, edges, 0, self.classes)


@dataclass(frozen=True)
class TuSet:
    """One set of TU's collection: its files lie under `<root>/<folder>/raw`."""

    folder: str
    graphs: int
    nodes: int
    edges: int
    """Directed, as PyG counts them, to plan with; of COLLAB from a rounded mean."""
    labels: int
    """Labels that nodes have; 0 without."""
    classes: int
    download: bool = True

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
    """A set of the table, in the layout in which TU publishes it and PyG's TUDataset reads it.

    Stored features are the nodes' labels, one column each; other attributes are left out, as PyG
    leaves them out unless asked.
    """

    name: str
    features: NodeInputs = "stored"
    """As of `GraphSetData`; without told ones `stored` where nodes have labels, else `one-hot`."""

    @model_validator(mode="before")
    @classmethod
    def _default_features(cls, raw: Any) -> Any:
        """So that a cell has one id whether they are written or not."""
        known = TU.get(str(raw.get("name"))) if isinstance(raw, Mapping) else None
        if known is not None and not known.labels and "features" not in raw:
            return {**raw, "features": "one-hot"}
        return raw

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if self.name not in TU:
            raise ValueError(f"name: found {self.name!r}; allowed: {', '.join(TU)}")
        if self.features == "stored" and not self.set.labels:
            raise ValueError(
                f"features: found 'stored'; allowed: one-hot, degree or constant, nodes of "
                f"{self.name} have none"
            )
        return self

    @property
    def set(self) -> TuSet:
        return TU[self.name]

    def facts(self) -> Facts:
        known = self.set
        return self._facts(known.graphs, known.nodes, known.edges, known.labels, known.classes)

    def files(self, root: Path | None = None) -> Files:
        known = self.set
        downloads: tuple[Download, ...] = ()
        if known.download:
            downloads = (Download(f"{_BASE}/{known.folder}.zip", archive="zip", strip=1),)
        return Files(f"{known.folder}/raw", known.names, downloads)

    def check(self, root: Path | None) -> None:
        self.raw_files(existing_root(self.name, root))

    def raw_files(self, root: Path) -> list[Path]:
        """The files that are read, in a fixed order; raises InputError naming a missing one."""
        files = self.files()
        paths = [files.directory(root) / name for name in files.names]
        for path in paths:
            if not os.access(path, os.R_OK):
                source = f"{_BASE}/{self.set.folder}.zip, or `gnnhpc data get {self.name}`"
                source = source if self.set.download else _REDDIT10K
                raise InputError(path, None, absence(path, "file"), f"the file as of {source}")
        return paths
