"""TU's sets of graphs, and sets in their layout: the table and the settings. Imports no torch.

Sizes are those of PyG's documentation (Morris et al. 2020, arXiv:2007.08663); reddit10k is
karateclub's (Rozemberczki et al. 2020, arXiv:2003.04819).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.data.data_files import Download, Files
from gnnhpc.data.data_settings import GraphSetData, NodeInputs


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
    """The setting of `GraphSetData`; by default `stored` where nodes have labels, else
    `one-hot`."""

    @model_validator(mode="before")
    @classmethod
    def _default_features(cls, raw: Any) -> Any:
        """A cell has the same id whether the default is written or not."""
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
            downloads = (Download(f"{_BASE}/{known.folder}.zip", archive="zip"),)
        return Files(f"{known.folder}/raw", known.names, downloads)

    def check(self, root: Path | None) -> None:
        self.raw_files(root)

    def raw_files(self, root: Path | None) -> list[Path]:
        """The files that are read, in a fixed order; raises InputError for a missing one."""
        source = f"{_BASE}/{self.set.folder}.zip, or `gnnhpc data get {self.name}`"
        allowed = f"the file as of {source if self.set.download else _REDDIT10K}"
        return self.files().readable(self.name, root, self.set.names, allowed)
