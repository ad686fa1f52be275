"""Which data sets there are, and how a name in a spec becomes one. Free of torch."""

from __future__ import annotations

from gnnhpc.core.settings import parse_named
from gnnhpc.data.graph_sets import TU, SyntheticGraphs, TuGraphs
from gnnhpc.data.own_graph import OwnGraph
from gnnhpc.data.published import PUBLISHED, PublishedGraph
from gnnhpc.data.settings import (
    Cifar10,
    Data,
    RedditShaped,
    SyntheticCifar10,
    SyntheticCitation,
)

DATA: dict[str, type[Data]] = {
    "cifar10": Cifar10,
    "synthetic-cifar10": SyntheticCifar10,
    "synthetic-citation": SyntheticCitation,
    "reddit-shaped": RedditShaped,
    "synthetic-graphs": SyntheticGraphs,
    "file": OwnGraph,
    **dict.fromkeys(PUBLISHED, PublishedGraph),
    **dict.fromkeys(TU, TuGraphs),
}
DEFAULT = {
    "images": "synthetic-cifar10",
    "graph": "synthetic-citation",
    "graphs": "synthetic-graphs",
}
"""Of each kind, what a single experiment runs on unless told otherwise: needs no files."""


def data_class(name: str) -> type[Data] | None:
    """The class behind a data set's name in a spec, or none."""
    return DATA.get(name)


def allowed_data() -> str:
    refused = {name for name, row in PUBLISHED.items() if row.refused}
    return ", ".join(sorted(DATA.keys() - refused))


def parse_data(value: object) -> object:
    """For pydantic: a name or a mapping becomes the settings of that data set, checked."""
    return parse_named(value, data_class, allowed_data())
