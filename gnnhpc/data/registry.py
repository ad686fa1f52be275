"""The data sets by name, and how a name in a spec becomes settings. Does not import torch."""

from __future__ import annotations

from gnnhpc.core.settings import parse_named
from gnnhpc.data.custom_graph_settings import CustomGraph
from gnnhpc.data.data_settings import (
    Cifar10,
    Data,
    RedditShaped,
    SyntheticCifar10,
    SyntheticCitation,
)
from gnnhpc.data.graph_sets import TU, SyntheticGraphs, TuGraphs, UnlabelledTuGraphs
from gnnhpc.data.published_graphs import PUBLISHED, PublishedGraph

DATA: dict[str, type[Data]] = {
    "cifar10": Cifar10,
    "synthetic-cifar10": SyntheticCifar10,
    "synthetic-citation": SyntheticCitation,
    "reddit-shaped": RedditShaped,
    "synthetic-graphs": SyntheticGraphs,
    "file": CustomGraph,
    **dict.fromkeys(PUBLISHED, PublishedGraph),
    **{name: TuGraphs if each.labels else UnlabelledTuGraphs for name, each in TU.items()},
}
DEFAULT = {
    "images": "synthetic-cifar10",
    "graph": "synthetic-citation",
    "graphs": "synthetic-graphs",
}
"""The data of a single experiment without `--data`, by kind: they need no files."""


def allowed_data() -> str:
    """The names of all data sets."""
    return ", ".join(sorted(DATA))


def parse_data(value: object) -> object:
    """For pydantic: a name or a mapping becomes the settings of that data set."""
    return parse_named(value, DATA.get, allowed_data())
