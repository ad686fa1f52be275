"""The settings of a custom graph, which a user keeps in one .npz file. Does not import torch."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.core.errors import InputError
from gnnhpc.core.settings import Positive, expand_user
from gnnhpc.data.data_files import sha256
from gnnhpc.data.data_settings import Data
from gnnhpc.data.published_graphs import PUBLISHED

if TYPE_CHECKING:
    from gnnhpc.data.edges_and_splits import Arrays


class CustomGraph(Data):
    """A graph in a file that `numpy.savez` wrote, with these arrays:

    - `edge_index`: int [2, edges], sources above targets. Duplicates and self-loops are left out,
      as they are of published graphs.
    - `edge_weight` (may be absent): float [edges], from 0, of distinct edges without self-loops. A
      model that does not use weights is refused.
    - `x`: numbers [nodes, features].
    - `y`: int [nodes], the classes from 0; -1 for a node outside of all splits.
    - `train_mask`, `val_mask`, `test_mask`: bool [nodes]. No node is in two of them, and none is
      empty.

    Planning fills in sizes and digest, which are content: a manifest is read without the file.
    """

    elsewhere: ClassVar[frozenset[str]] = frozenset({"path"})

    name: Literal["file"] = "file"
    path: str
    """The file, relative to the folder of the spec; absolute once planned."""
    directed: bool = False
    """Whether edges have a direction. A file of another graph has both directions of each edge."""
    nodes: Positive | None = None
    edges: Positive | None = None
    """The number of edges in the file, without duplicates and self-loops."""
    features: Positive | None = None
    classes: Positive | None = None
    """The highest label and one."""
    weighted: bool | None = None
    """Whether edges have weights."""
    digest: str | None = None
    """SHA-256 of the file."""

    @property
    def label(self) -> str:
        """The file's name without its ending, changed where a published graph has the same."""
        stem = re.sub(r"[^A-Za-z0-9_.]+", "-", Path(self.path).stem).strip("-.")[:40] or "graph"
        return f"custom-{stem}" if stem.lower() in PUBLISHED else stem

    def facts(self) -> Facts:
        """Raises InputError before planning, where the sizes are not known."""
        if not (self.nodes and self.edges and self.features and self.classes):
            raise InputError(self.path, "sizes", "none", "a graph that was planned with its file")
        sizes = {"nodes": self.nodes, "edges": self.edges}
        return Facts("graph", self.features, self.classes, **sizes)

    def planned(self, folder: Path) -> Self:
        """The settings with an absolute path, the sizes and the digest.

        Raises InputError for a file that has no such graph.
        """
        path = (folder / expand_user(self.path, f"data {self.name}", "path")).resolve()
        arrays = self._read(path)
        found: dict[str, Any] = {
            "nodes": len(arrays["labels"]),
            "edges": arrays["edges"].shape[1],
            "features": arrays["dense"].shape[1],
            "classes": int(arrays["labels"].max()) + 1,
            "weighted": "edge_weight" in arrays,
            "digest": sha256(path),
        }
        return self.model_copy(update={"path": str(path), **found})

    def arrays(self) -> Arrays:
        """The arrays of the planned graph; raises InputError for a file that has changed since."""
        path, found = Path(self.path), sha256(Path(self.path))
        if found != self.digest:
            allowed = f"{self.digest}, the file as it was planned; submit again for a new one"
            raise InputError(path, "digest", found, allowed)
        return self._read(path)

    def _read(self, path: Path) -> Arrays:
        from gnnhpc.data.readers.custom_graph_file import read_custom_graph

        return read_custom_graph(path, directed=self.directed)

    def check(self, root: Path | None) -> None:
        if not os.access(self.path, os.R_OK):
            raise InputError(self.path, None, "no file that may be read", "the graph as planned")
