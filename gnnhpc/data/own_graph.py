"""A user's own graph, from one .npz file. Free of torch."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import ClassVar, Literal, Self

from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.core.errors import InputError
from gnnhpc.core.settings import Positive, expand_user
from gnnhpc.data.files import sha256
from gnnhpc.data.published import PUBLISHED
from gnnhpc.data.settings import Data

_SIZES = ("nodes", "edges", "features", "classes")


class OwnGraph(Data):
    """A graph in a file that `numpy.savez` wrote, with these arrays:

    - `edge_index`: int [2, edges], sources above targets. Edges are taken as they are: an
      undirected graph lists both directions. Duplicates and self-loops are left out, as they are
      of published graphs.
    - `x`: float [nodes, features]; or the same as CSR rows in `x_indptr` int [nodes + 1],
      `x_indices` int [n], `x_data` float [n], `x_shape` int [2].
    - `y`: int [nodes], the classes from 0.
    - `train_mask`, `val_mask`, `test_mask`: bool [nodes]; or `train_idx`, `val_idx`, `test_idx`:
      int [n], node numbers. No node is in two of them, and none is empty.

    Other arrays in the file are not looked at, and nothing in it may be pickled. Planning fills
    in sizes and digest, which are content; a manifest is read without the file.
    """

    elsewhere: ClassVar[frozenset[str]] = frozenset({"path"})

    name: Literal["file"] = "file"
    path: str
    """The file, as seen from the folder of the spec; absolute once planned."""
    nodes: Positive | None = None
    edges: Positive | None = None
    """As the file counts them."""
    features: Positive | None = None
    classes: Positive | None = None
    """Found as the highest label and one; more may be said, where no node has the last."""
    digest: str | None = None
    """SHA-256 of the file."""

    @property
    def label(self) -> str:
        """The file's name without its ending, told apart from published graphs."""
        stem = re.sub(r"[^A-Za-z0-9_.]+", "-", Path(self.path).stem).strip("-.")[:40] or "graph"
        return f"own-{stem}" if stem.lower() in PUBLISHED else stem

    def facts(self) -> Facts:
        """Raises InputError before planning, where the sizes are not known."""
        if not (self.nodes and self.edges and self.features and self.classes):
            raise InputError(self.path, "sizes", "none", "a graph that was planned with its file")
        return Facts("graph", self.features, self.classes, nodes=self.nodes, edges=self.edges)

    def planned(self, folder: Path) -> Self:
        """With an absolute path, the sizes and the digest.

        Reads the headers of the arrays, labels and split. Raises InputError for a file that is
        no such graph, and for sizes or a digest in the spec that are not the file's.
        """
        from gnnhpc.data.readers.own_graph_sizes import check_graph

        path = (folder / expand_user(self.path, f"data {self.name}", "path")).resolve()
        sizes = check_graph(path, self.classes).sizes
        found = {**dict(zip(_SIZES, sizes, strict=True)), "digest": sha256(path)}
        for key, value in found.items():
            told = getattr(self, key)
            if told is not None and told != value:
                raise InputError(path, key, value, f"{told}, which the spec says")
        return self.model_copy(update={"path": str(path), **found})

    def check(self, root: Path | None) -> None:
        if not os.access(self.path, os.R_OK):
            raise InputError(self.path, None, "no file that may be read", "the graph as planned")
