"""The settings of data sets in a spec: images, synthetic graphs, and what all have in common.

Does not import torch. Published graphs, sets of graphs and custom graphs have their own files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.core.errors import InputError
from gnnhpc.core.settings import Positive, Strict, Whole
from gnnhpc.data.data_files import Download, Files, existing_root

REDDIT_SHARES = {"train": 153_431 / 232_965, "val": 23_831 / 232_965}
"""The shares of nodes published with Reddit (Hamilton et al. 2017); the rest are to test."""
SHCHUR_EACH = 20
"""Nodes of a class to train on: Shchur et al. 2018 (arXiv:1811.05868), section 4."""

Storage = Literal["float32", "float16"]
"""The precision in which dense features are stored. float16 halves their size and rounds them, the
same for every model and sampler; what is computed with them is in the run's precision."""


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

    def files(self) -> Files | None:
        """The files under a data root; None for synthetic data and for data outside of one."""
        return None

    def raw_files(self, root: Path | None) -> list[Path]:
        """The files that are read, in a fixed order; raises InputError for a missing one."""
        files = self.files()
        return [] if files is None else files.readable(self.name, root)

    def check(self, root: Path | None) -> None:
        """Check on a login node that the data can be there, without opening a file.

        Raises InputError with what is missing under `root` and how to get it.
        """
        self.raw_files(root)

    def content(self) -> dict[str, Any]:
        """The name, and the settings that differ from their defaults, for a cell's id."""
        changed = self.model_dump(mode="json", exclude_defaults=True, exclude=set(self.elsewhere))
        return {"name": self.name} | changed


CIFAR_FOLDER = "cifar-10-batches-bin"
CIFAR_FILES = {
    "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("test_batch.bin",),
}
CIFAR_ARCHIVE = Download(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    archive="tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    megabytes=162,
)


class Cifar10(Data):
    """CIFAR-10 (Krizhevsky 2009) in its binary layout; every file that exists is used."""

    name: Literal["cifar10"] = "cifar10"

    def facts(self) -> Facts:
        return Facts("images", 3, 10, image_size=32, train=50_000, test=10_000)

    def files(self) -> Files:
        return Files(CIFAR_FOLDER, CIFAR_FILES["train"] + CIFAR_FILES["test"], (CIFAR_ARCHIVE,))

    def raw_files(self, root: Path | None) -> list[Path]:
        """The batch files that exist, in order; some of each split."""
        files = self.files()
        folder = files.directory(existing_root(self.name, root))
        for names in CIFAR_FILES.values():
            if not any((folder / name).is_file() for name in names):
                raise InputError(
                    folder / names[0], None, "no such file", files.how_to_get(self.name)
                )
        return [path for name in files.names if (path := folder / name).is_file()]


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
        each, _, _ = planetoid_sizes(self.nodes, self.classes)
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


def planetoid_sizes(nodes: int, classes: int) -> tuple[int, int, int]:
    """The nodes of a class to train on, and those to validate and to test: 20, 500 and 1000.

    A small graph has fewer; to train on it has at least 5 unless that were more than a third of all
    nodes.
    """
    scale = min(1.0, nodes / (20 * classes + 1500))
    each = max(int(20 * scale), min(5, nodes // (3 * classes)), 1)
    return each, max(1, int(500 * scale)), max(1, int(1000 * scale))


def reddit_trained(nodes: int) -> int:
    """The nodes to train on of a graph of Reddit's shape."""
    return max(1, round(REDDIT_SHARES["train"] * nodes))
