"""Independent reader of sets of many small graphs: from their generator, or from TU's text files.

TU's layout is that of Morris et al. 2020 (arXiv:2007.08663).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.sparse

from gnnhpc.data.data_files import existing_root
from gnnhpc.data.data_settings import Data, GraphSetData, SyntheticGraphs
from gnnhpc.data.splits import DATA_SEED
from gnnhpc.data.synthetic.threads import synthetic_threads
from gnnhpc.data.tu import TuGraphs
from gnnhpc.validation.readers.read_graphs import Features, sorted_edges

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ReferenceGraphSet:
    """Many small graphs, whose nodes are numbered one graph after another."""

    graph_of: Ids
    """int64 [nodes], ascending."""
    labels: Ids
    """int64 [graphs]"""
    masks: dict[str, Mask]
    """bool [graphs] each: train, val, test."""
    source: Ids
    """int64 [edges]; edges are sorted by (target, source), without self-loops and duplicates."""
    target: Ids
    features: Features
    independent: bool = True
    """Whether the arrays come from another reader than the run's."""


def read_graph_set(data: Data, root: Path | None) -> ReferenceGraphSet:
    """Read the graphs of an experiment's data. Raises InputError for missing files."""
    assert isinstance(data, GraphSetData)
    stored: Ids | None = None
    if isinstance(data, TuGraphs):
        graph_of, labels, ends, stored = _read_text(data, root)
    else:
        assert isinstance(data, SyntheticGraphs)
        made = synthetic_threads(data)
        graph_of = np.repeat(np.arange(data.graphs), np.diff(made["first"]))
        labels, ends = made["labels"], made["edges"]
    source, target = sorted_edges(ends[0], ends[1], len(graph_of))
    degree = np.bincount(target, minlength=len(graph_of))
    return ReferenceGraphSet(
        graph_of,
        labels,
        _random_split(data, len(labels)),
        source,
        target,
        _features(data, degree, stored),
        independent=isinstance(data, TuGraphs),
    )


def _read_text(data: TuGraphs, root: Path | None) -> tuple[Ids, Ids, Ids, Ids | None]:
    """Graph of each node, labels, edges [2, n], and node labels if there are any.

    In the files nodes and graphs count from 1 and labels from any number.
    """
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


def _random_split(data: GraphSetData, graphs: int) -> dict[str, Mask]:
    """A random order, of which 8 tenths are to train, one is to validate, the rest to test."""
    order = np.random.default_rng([DATA_SEED, 7, graphs, data.split]).permutation(graphs)
    place = np.empty(graphs, dtype=np.int64)
    place[order] = np.arange(graphs)
    train, val = graphs * 8 // 10, graphs // 10
    return {
        "train": place < train,
        "val": (place >= train) & (place < train + val),
        "test": place >= train + val,
    }


def _features(data: GraphSetData, degree: Ids, stored: Ids | None) -> Features:
    nodes, width = len(degree), data.facts().features
    if data.features == "constant":
        return np.ones((nodes, 1), dtype=np.float32)
    if data.features == "degree":
        return degree.astype(np.float32)[:, None]
    columns = degree if stored is None or data.features == "one-hot" else stored
    ones = np.ones(nodes, dtype=np.float32)
    places = (ones, np.minimum(columns, width - 1), np.arange(nodes + 1))
    return scipy.sparse.csr_array(places, shape=(nodes, width))
