"""Published graphs: `published_graphs.toml` as a table with one row for each, and their settings.

Files are checked against the sizes in a row when they are read. Does not import torch.
"""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import model_validator

from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.core.settings import Whole
from gnnhpc.data.data_files import Download, Files
from gnnhpc.data.data_settings import SHCHUR_EACH, Data, Storage


@dataclass(frozen=True)
class Published:
    """One row of the table."""

    files: Files
    facts: Facts
    feature_files: tuple[str, ...]
    """The files that are not needed with `features: made`."""
    dataset: str | None = None
    """The class of torch_geometric.datasets that reads the graph; None for OGB's tables."""
    argument: str | None = None
    """The class's name for the graph, where it has several."""
    pickled: bool = False
    """Whether the class unpickles its files: they may hold arrays alone."""
    normalized: bool = False
    """Whether features are divided by their sum, row by row."""
    dense: bool = False
    """Whether features are stored dense, not as sparse rows."""
    splits: int = 0
    """The number of published splits; without any, a random one is made."""

    @classmethod
    def of(cls, row: dict[str, Any]) -> Published:
        """The row with these keys of the file, which documents them."""

        def filled(text: str, **more: str) -> str:
            return text.format_map(row | more)

        names = places = [filled(place) for place in row["files"]]
        if "archive" in row:
            url, size = filled(row["url"]), row["megabytes"]
            downloads = [Download(url, archive=row["archive"], megabytes=size)]
        else:
            names, ids = [place.rpartition("/")[2] for place in places], row.get("ids", places)
            urls = [filled(row["url"], place=p, id=i) for p, i in zip(places, ids, strict=True)]
            downloads = [Download(url, name) for url, name in zip(urls, names, strict=True)]
        return cls(
            Files(filled(row["folder"]), tuple(names), tuple(downloads)),
            graph_sizes(*row["sizes"]),
            tuple(filled(name) for name in row.get("feature_files", ())),
            **{name: row[name] for name in _SAME if name in row},
        )


_SAME = ("dataset", "argument", "pickled", "normalized", "dense", "splits")
"""The keys whose values are used as they are."""


def graph_sizes(nodes: int, edges: int, features: int, classes: int, train: int = 0) -> Facts:
    """Sizes in the order of PyG's tables, and the `train` nodes of a published split if known."""
    return Facts("graph", features, classes, nodes=nodes, edges=edges, train=train)


PUBLISHED = {
    name: Published.of(source | row)
    for source in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).values()
    for name, row in source["graphs"].items()
}


class PublishedGraph(Data):
    """A graph of the table, in the layout in which its publishers and PyG or OGB know it."""

    name: str
    features: Literal["real", "made"] = "real"
    """`made` replaces the features by random ones: for timing, not accuracy."""
    split: Whole = 0
    """The number of the published split; most graphs have one or none."""
    storage: Storage = "float32"

    @model_validator(mode="after")
    def _usable(self) -> Self:
        row = self.published
        if not 0 <= self.split < max(1, row.splits):
            last = row.splits - 1
            allowed = f"0 to {last}" if last > 0 else f"0, {self.name} has no other"
            raise ValueError(f"split: found {self.split}; allowed: {allowed}")
        if self.storage != "float32" and not (row.dense and self.features == "real"):
            raise ValueError(
                f"storage: found {self.storage!r}; allowed: float32 for features of mostly zeros"
            )
        return self

    @property
    def published(self) -> Published:
        return PUBLISHED[self.name]

    def facts(self) -> Facts:
        row = self.published
        if row.splits or row.facts.train:
            return row.facts
        # The random split of graphs that are published without one.
        return dataclasses.replace(row.facts, train=SHCHUR_EACH * row.facts.classes)

    def files(self) -> Files:
        """The files that are read; made features need none of their own."""
        row = self.published
        unneeded = () if self.features == "real" else row.feature_files
        names = tuple(name for name in row.files.names if name not in unneeded)
        return dataclasses.replace(row.files, names=names)
