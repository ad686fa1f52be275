"""The settings of data sets in a spec: images, synthetic graphs, and what all have in common.

Does not import torch. Published graphs, TU's sets and custom graphs have files of their own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.core.errors import InputError
from gnnhpc.core.settings import Positive, Strict, Whole
from gnnhpc.data.data_files import Download, Files, existing_root

REDDIT_SHARES = {"train": 153_431 / 232_965, "val": 23_831 / 232_965}
"""The shares of nodes published with Reddit (Hamilton et al. 2017); the rest are to test."""
SHCHUR_EACH = 20
"""Nodes of a class to train on: Shchur et al. 2018 (arXiv:1811.05868), section 4."""
GRAPH_SHARES = (8, 1, 1)
"""Tenths of a set of graphs: to train, to validate and to test."""

Storage = Literal["float32", "float16"]
"""The precision in which dense features are stored. float16 halves their size and rounds them, the
same for every model and sampler; what is computed with them is in the run's precision."""
NodeInputs = Literal["stored", "one-hot", "degree", "constant"]


class Data(Strict):
    """A data set as an experiment names it."""

    elsewhere: ClassVar[frozenset[str]] = frozenset()
    """Fields with the place of the data: no part of a cell's content."""

    name: str

    @property
    def label(self) -> str:
        """The data set's name in file names, tables and figures."""
        return self.name

    def facts(self) -> Facts:
        """The sizes, known without reading the data."""
        raise NotImplementedError

    def planned(self, folder: Path) -> Self:
        """The settings with what planning finds out; paths are relative to `folder`.

        Raises InputError for data that do not fit the settings.
        """
        return self

    def files(self, root: Path | None = None) -> Files | None:
        """The files under a data root, in the layout that they have in `root` if given.

        None for synthetic data and for data outside of a data root.
        """
        return None

    def check(self, root: Path | None) -> None:
        """Check on a login node that the data can be there, without opening a file.

        Raises InputError with what is missing under `root` and how to get it.
        """

    def content(self) -> dict[str, Any]:
        """The name, and the settings that differ from their defaults, for a cell's id."""
        given = self.model_dump(mode="json", exclude_defaults=True, exclude=set(self.elsewhere))
        return {"name": self.name} | given


CIFAR_FOLDERS = {"binary": "cifar-10-batches-bin", "python": "cifar-10-batches-py"}
CIFAR_ARCHIVE = Download(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    archive="tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    megabytes=162,
)


def cifar_paths(folder: Path, split: str) -> list[Path]:
    """The published batch files of a split; the folder's name says in which layout."""
    suffix = ".bin" if folder.name == CIFAR_FOLDERS["binary"] else ""
    names = [f"data_batch_{n}" for n in range(1, 6)] if split == "train" else ["test_batch"]
    return [folder / f"{name}{suffix}" for name in names]


def cifar_files(folder: Path, split: str) -> list[Path]:
    """The batch files of a split that exist, in order."""
    return [path for path in cifar_paths(folder, split) if path.is_file()]


class Cifar10(Data):
    """CIFAR-10 (Krizhevsky 2009) in either published layout; every file that exists is used."""

    name: Literal["cifar10"] = "cifar10"

    def facts(self) -> Facts:
        return Facts("images", 3, 10, image_size=32, train=50_000, test=10_000)

    def files(self, root: Path | None = None) -> Files:
        """The binary layout, which is the one that is downloaded, unless `root` has the other."""
        layout = "binary"
        if root and not (root / CIFAR_FOLDERS["binary"]).is_dir():
            layout = "python" if (root / CIFAR_FOLDERS["python"]).is_dir() else "binary"
        folder = Path(CIFAR_FOLDERS[layout])
        paths = cifar_paths(folder, "train") + cifar_paths(folder, "test")
        return Files(str(folder), tuple(path.name for path in paths), (CIFAR_ARCHIVE,))

    def check(self, root: Path | None) -> None:
        """A run downloads CIFAR-10 into a data root that may be written."""
        root = existing_root(self.name, root)
        folders = [root / name for name in CIFAR_FOLDERS.values()]
        present = [folder for folder in folders if folder.is_dir()]
        if present:
            if not any(cifar_files(folder, "train") for folder in present):
                first = cifar_paths(present[0], "train")[0]
                raise InputError(first, None, "no such file", "CIFAR-10 as published")
        elif not os.access(root, os.W_OK):
            found = "no such folder, and the data root is read-only"
            allowed = "CIFAR-10 unpacked there, or a data root that may be written, to download it"
            raise InputError(folders[0], None, found, allowed)


class SyntheticCifar10(Data):
    """Images whose class shows in colour and texture, so that losses can fall."""

    name: Literal["synthetic-cifar10"] = "synthetic-cifar10"
    train: Positive = 2_000
    test: Positive = 400
    image_size: Annotated[Whole, Field(ge=2)] = 32
    classes: Annotated[Whole, Field(ge=2)] = 10

    def facts(self) -> Facts:
        sizes = {"image_size": self.image_size, "train": self.train, "test": self.test}
        return Facts("images", 3, self.classes, **sizes)


class SyntheticCitation(Data):
    """A graph of communities with sparse features, whose class follows only with the
    neighbours'."""

    name: Literal["synthetic-citation"] = "synthetic-citation"
    nodes: Annotated[Whole, Field(ge=10)] = 2_000
    edges: Annotated[Whole, Field(ge=10)] = 8_000
    """Directed edges, approximately."""
    features: Annotated[Whole, Field(ge=8)] = 256
    classes: Annotated[Whole, Field(ge=2)] = 7

    def facts(self) -> Facts:
        each = planetoid_each(self.nodes, self.classes)
        train = min(each * self.classes, self.nodes // 2)
        sizes = {"nodes": self.nodes, "edges": self.edges, "train": train}
        return Facts("graph", self.features, self.classes, **sizes)


class RedditShaped(Data):
    """A graph with Reddit's sizes, skewed degrees and dense features; any of them smaller."""

    name: Literal["reddit-shaped"] = "reddit-shaped"
    nodes: Annotated[Whole, Field(ge=10)] = 232_965
    edges: Annotated[Whole, Field(ge=10)] = 114_615_892
    """Directed edges, approximately."""
    features: Annotated[Whole, Field(ge=8)] = 602
    classes: Annotated[Whole, Field(ge=2)] = 41
    storage: Storage = "float32"

    def facts(self) -> Facts:
        sizes = {"nodes": self.nodes, "edges": self.edges, "train": reddit_trained(self.nodes)}
        return Facts("graph", self.features, self.classes, **sizes)


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
    split: Whole = 0
    """The number of the random split."""

    def _facts(self, graphs: int, nodes: int, edges: int, stored: int, classes: int) -> Facts:
        width = {"stored": stored, "one-hot": self.degrees}.get(self.features, 1)
        train, val, test = graph_split_sizes(graphs)
        sizes = {"graphs": graphs, "nodes": nodes, "edges": edges}
        return Facts("graphs", width, classes, **sizes, train=train, val=val, test=test)

    @model_validator(mode="after")
    def _degrees_are_used(self) -> Self:
        default = type(self).model_fields["degrees"].default
        if self.features != "one-hot" and self.degrees != default:
            raise ValueError(f"degrees: found {self.degrees}; allowed: none for {self.features}")
        if self.split < 0:
            raise ValueError(f"split: found {self.split}; allowed: a whole number from 0")
        return self


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


def planetoid_scale(nodes: int, classes: int) -> float:
    """The size of a graph's split relative to Planetoid's: 20 a class, 500 and 1000 nodes."""
    return min(1.0, nodes / (20 * classes + 1500))


def planetoid_each(nodes: int, classes: int) -> int:
    """The nodes of a class to train on: 20, fewer in a small graph, at least 5 unless that were
    more than a third of all nodes."""
    scaled = int(20 * planetoid_scale(nodes, classes))
    return max(scaled, min(5, nodes // (3 * classes)), 1)


def reddit_trained(nodes: int) -> int:
    """The nodes to train on of a graph of Reddit's shape."""
    return max(1, round(REDDIT_SHARES["train"] * nodes))


def graph_split_sizes(graphs: int) -> tuple[int, int, int]:
    """The graphs to train, to validate and to test: eight tenths, one, and the rest."""
    train, val = (graphs * tenths // 10 for tenths in GRAPH_SHARES[:2])
    return train, val, graphs - train - val
