"""Many small graphs read a second time: their nodes, edges, labels, splits, few nodes' inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gnnhpc.data.generators import DATA_SEED
from gnnhpc.data.graph_sets import GraphSetData, SyntheticGraphs, TuGraphs
from gnnhpc.data.roots import existing_root
from gnnhpc.data.settings import Data
from gnnhpc.data.threads import synthetic_threads

Ids = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class PlainGraphSet:
    """Edges are [edges] each, by target and then by source, without loops and duplicates."""

    graph_of: Ids
    """int64 [nodes], ascending."""
    labels: Ids
    masks: dict[str, Mask]
    source: Ids
    target: Ids
    features: Callable[[int], Values]
    """Of one node, float64 [F]."""

    @property
    def nodes(self) -> int:
        return len(self.graph_of)

    def nodes_of(self, graph: int) -> Ids:
        first, end = np.searchsorted(self.graph_of, (graph, graph + 1))
        return np.arange(first, end)

    def edges_into(self, nodes: Ids) -> tuple[Ids, Ids, Ids]:
        """Sources, targets and numbers of all edges into neighbouring nodes, ascending."""
        first = int(np.searchsorted(self.target, nodes[0], "left"))
        end = int(np.searchsorted(self.target, nodes[-1], "right"))
        return self.source[first:end], self.target[first:end], np.arange(first, end)

    def split(self, *names: str) -> Ids:
        """The graphs of these splits, ascending."""
        return np.flatnonzero(np.any([self.masks[name] for name in names], axis=0))


def plain_graph_set(data: Data, root: Path | None) -> PlainGraphSet:
    """The graphs of an experiment, anew: from their generator, or from their files as published."""
    assert isinstance(data, GraphSetData)
    stored: Ids | None = None
    if isinstance(data, TuGraphs):
        graph_of, labels, ends, stored = _read(data, root)
    else:
        assert isinstance(data, SyntheticGraphs)
        made = synthetic_threads(data)
        graph_of = np.repeat(np.arange(data.graphs), np.diff(made.first))
        labels, ends = made.labels, made.edges
    source, target = ends
    # By target, then by source; each once, and none from a node to itself.
    order = np.lexsort((source, target))
    source, target = source[order], target[order]
    new = np.append(True, (np.diff(source) != 0) | (np.diff(target) != 0))[: len(source)]
    kept = new & (source != target)
    source, target = source[kept], target[kept]
    features = _inputs(data, np.bincount(target, minlength=len(graph_of)), stored)
    return PlainGraphSet(graph_of, labels, _masks(data, len(labels)), source, target, features)


def _read(data: TuGraphs, root: Path | None) -> tuple[Ids, Ids, Ids, Ids | None]:
    """TU's text: nodes and graphs count from 1, labels from anywhere."""
    paths = {
        path.stem.split("_", 1)[1]: path for path in data.raw_files(existing_root(data.name, root))
    }
    graph_of = np.loadtxt(paths["graph_indicator"], dtype=np.int64, ndmin=1) - 1
    _, labels = np.unique(
        np.loadtxt(paths["graph_labels"], dtype=np.int64, ndmin=1), return_inverse=True
    )
    pairs = np.loadtxt(paths["A"], dtype=np.int64, delimiter=",", ndmin=2) - 1
    stored = None
    if "node_labels" in paths:
        stored = np.loadtxt(paths["node_labels"], dtype=np.int64, ndmin=1)
        stored = stored - stored.min()
    return graph_of, labels, pairs.T, stored


def _masks(data: GraphSetData, graphs: int) -> dict[str, Mask]:
    """A random order, of which eight tenths are to train, one to validate, the rest to test."""
    order = np.random.default_rng([DATA_SEED, 7, graphs, data.split]).permutation(graphs)
    place = np.empty(graphs, dtype=np.int64)
    place[order] = np.arange(graphs)
    train, val = graphs * 8 // 10, graphs // 10
    return {
        "train": place < train,
        "val": (place >= train) & (place < train + val),
        "test": place >= train + val,
    }


def _inputs(data: GraphSetData, degree: Ids, stored: Ids | None) -> Callable[[int], Values]:
    width = data.facts().features

    def row(node: int) -> Values:
        if data.features == "constant":
            return np.ones(1)
        if data.features == "degree":
            return np.array([float(degree[node])])
        column = degree[node] if stored is None or data.features == "one-hot" else stored[node]
        found = np.zeros(width)
        found[min(int(column), width - 1)] = 1.0
        return found

    return row
