"""What a spec may say of its data: one class a source, checked when built. Free of torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.core.settings import Positive, Strict, Whole
from gnnhpc.data import cifar10
from gnnhpc.data.files import Files
from gnnhpc.data.roots import existing_root
from gnnhpc.data.splits import planetoid_each, reddit_trained


class Data(Strict):
    """A data set as an experiment names it."""

    elsewhere: ClassVar[frozenset[str]] = frozenset()
    """Fields that say where the data lie, not what they are: no part of a cell's content."""

    name: str

    @property
    def label(self) -> str:
        """The data set's name as file names, tables and figures show it."""
        return self.name

    def facts(self) -> Facts:
        """Sizes, known without reading the data."""
        raise NotImplementedError

    def planned(self, folder: Path) -> Self:
        """These settings with what planning finds out; `folder` is where paths are seen from.

        Raises InputError for data that cannot be what they are said to be.
        """
        return self

    def files(self, root: Path | None = None) -> Files | None:
        """The files under a data root, in the layout in which they are in `root` if given.

        None for data that are made up or lie elsewhere.
        """
        return None

    def check(self, root: Path | None) -> None:
        """Whether the data can be there, seen from a login node: no file is opened.

        Raises InputError naming what is missing under `root` and how to get it.
        """

    def content(self) -> dict[str, Any]:
        """The name, and settings that are not at their defaults: what a cell's id is made of."""
        told = self.model_dump(mode="json", exclude_defaults=True, exclude=set(self.elsewhere))
        return {"name": self.name} | told


class Cifar10(Data):
    """CIFAR-10 as published; every file found under the data root is used."""

    name: Literal["cifar10"] = "cifar10"

    def facts(self) -> Facts:
        return Facts("images", 3, 10, image_size=32, train=50_000, test=10_000)

    def files(self, root: Path | None = None) -> Files:
        return cifar10.published_files(root)

    def check(self, root: Path | None) -> None:
        """CIFAR-10 is downloaded into a root that may be written."""
        cifar10.check_cifar(existing_root(self.name, root))


class SyntheticCifar10(Data):
    """Images whose class shows in colour and texture, so that losses can fall."""

    name: Literal["synthetic-cifar10"] = "synthetic-cifar10"
    train: Positive = 2_000
    test: Positive = 400
    image_size: Annotated[Whole, Field(ge=2)] = 32
    classes: Annotated[Whole, Field(ge=2)] = 10

    def facts(self) -> Facts:
        return Facts(
            "images",
            3,
            self.classes,
            image_size=self.image_size,
            train=self.train,
            test=self.test,
        )


class SyntheticCitation(Data):
    """A graph of communities with sparse features that tell the class only with neighbours."""

    name: Literal["synthetic-citation"] = "synthetic-citation"
    nodes: Annotated[Whole, Field(ge=10)] = 2_000
    edges: Annotated[Whole, Field(ge=10)] = 8_000
    """Directed edges, about."""
    features: Annotated[Whole, Field(ge=8)] = 256
    classes: Annotated[Whole, Field(ge=2)] = 7

    def facts(self) -> Facts:
        each = planetoid_each(self.nodes, self.classes)
        train = min(each * self.classes, self.nodes // 2)
        sizes = {"nodes": self.nodes, "edges": self.edges, "train": train}
        return Facts("graph", self.features, self.classes, **sizes)


Storage = Literal["float32", "float16"]
"""How dense features are kept: float16 halves what is held and read, and rounds them, the same for
every model and sampler. Sums and products of them are in the run's precision."""


class RedditShaped(Data):
    """A graph with Reddit's sizes, skewed degrees and dense features; any of them smaller."""

    name: Literal["reddit-shaped"] = "reddit-shaped"
    nodes: Annotated[Whole, Field(ge=10)] = 232_965
    edges: Annotated[Whole, Field(ge=10)] = 114_615_892
    """Directed edges, about."""
    features: Annotated[Whole, Field(ge=8)] = 602
    classes: Annotated[Whole, Field(ge=2)] = 41
    storage: Storage = "float32"

    def facts(self) -> Facts:
        sizes = {"nodes": self.nodes, "edges": self.edges, "train": reddit_trained(self.nodes)}
        return Facts("graph", self.features, self.classes, **sizes)
