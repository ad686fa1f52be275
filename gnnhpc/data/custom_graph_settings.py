"""The settings of a custom graph, which a user keeps in one .npz file. Does not import torch."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.core.errors import InputError
from gnnhpc.core.settings import Positive, Whole, expand_user
from gnnhpc.data.data_files import sha256
from gnnhpc.data.data_settings import Data
from gnnhpc.data.published_graphs import PUBLISHED

if TYPE_CHECKING:
    from gnnhpc.data.readers.custom_graph_file import CustomArrays
    from gnnhpc.data.synthetic.ordered_edges import Arrays


class CustomGraph(Data):
    """A graph in a file that `numpy.savez` wrote, with these arrays:

    - `edge_index`: int [2, edges], sources above targets. Duplicates and self-loops are left out,
      as they are of published graphs.
    - `edge_weight` (may be absent): float [edges], from 0. A model that does not use weights is
      refused, unless `ignore` has the key.
    - `x`: numbers [nodes, features]; or CSR rows in `x_indptr` int [nodes + 1], `x_indices` int
      [n], `x_data` [n], `x_shape` int [2].
    - `y`: int [nodes], the classes from 0; -1 or NaN for a node outside of all splits.
    - `train_mask`, `val_mask`, `test_mask`: bool [nodes], or [nodes, splits], of which `split`
      chooses a column; or `train_idx`, `val_idx`, `test_idx`: int [n], node numbers. No node is in
      two of them, and none is empty.

    Or with those of gnn-benchmark's files: `adj_indptr`, `adj_indices`, `adj_data` and `adj_shape`,
    `attr_*` (or a dense `attr_matrix`), and `labels`. Without masks they get the random split of
    Shchur et al. 2018. Nothing in a file may be pickled. Planning fills in sizes and digest, which
    are content: a manifest is read without the file.
    """

    elsewhere: ClassVar[frozenset[str]] = frozenset({"path"})

    name: Literal["file"] = "file"
    path: str
    """The file, relative to the folder of the spec; absolute once planned."""
    split: Annotated[Whole, Field(ge=0)] = 0
    """The column of masks [nodes, splits]."""
    directed: bool | None = None
    """`true` takes edges as they are; `false` adds the reverse of each edge. A file of which hardly
    an edge has its reverse needs one of them; gnn-benchmark's files get reverses by default."""
    ignore: tuple[Literal["edge_weight", "edge_attr"], ...] = ()
    """Arrays of the file that are left out on purpose."""
    nodes: Positive | None = None
    edges: Positive | None = None
    """The number of edges in the file."""
    features: Positive | None = None
    classes: Positive | None = None
    """The highest label and one; may be higher, where no node has the last classes."""
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

        Raises InputError for a file that has no such graph, and for sizes or a digest in the spec
        that are not the file's.
        """
        path = (folder / expand_user(self.path, f"data {self.name}", "path")).resolve()
        graph = self._read(path)
        found: dict[str, Any] = {
            "nodes": len(graph.arrays["labels"]),
            "edges": graph.edges,
            "features": graph.features,
            "classes": graph.classes,
            "weighted": "edge_weight" in graph.arrays,
            "digest": sha256(path),
        }
        for key, value in found.items():
            given = getattr(self, key)
            if given is not None and given != value:
                raise InputError(path, key, value, f"{given}, which the spec says")
        return self.model_copy(update={"path": str(path), **found})

    def arrays(self) -> Arrays:
        """The arrays of the planned graph; raises InputError for a file that has changed since."""
        path, found = Path(self.path), sha256(Path(self.path))
        if found != self.digest:
            allowed = f"{self.digest}, the file as it was planned; submit again for a new one"
            raise InputError(path, "digest", found, allowed)
        return self._read(path).arrays

    def _read(self, path: Path) -> CustomArrays:
        from gnnhpc.data.readers.custom_graph_file import read_custom_graph

        return read_custom_graph(
            path,
            split=self.split,
            directed=self.directed,
            ignore=self.ignore,
            classes=self.classes,
        )

    def check(self, root: Path | None) -> None:
        if not os.access(self.path, os.R_OK):
            raise InputError(self.path, None, "no file that may be read", "the graph as planned")
