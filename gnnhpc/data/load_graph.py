"""Loads graphs and sets of graphs, from files, the cache or a generator.

Graphs published without a split get that of Shchur et al. 2018 (arXiv:1811.05868), section 4.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnnhpc.core.dataset_sizes import SPLITS
from gnnhpc.core.errors import InputError
from gnnhpc.data.custom_graph import CustomGraph
from gnnhpc.data.data_cache import Arrays, load_or_build
from gnnhpc.data.data_files import existing_root
from gnnhpc.data.data_settings import (
    Data,
    GraphSetData,
    RedditShaped,
    SyntheticCitation,
    SyntheticGraphs,
)
from gnnhpc.data.published_graphs import PublishedGraph, Pyg
from gnnhpc.data.splits import DATA_SEED, Ints, random_graph_split, shchur_split
from gnnhpc.data.synthetic.citation import made_words, synthetic_graph
from gnnhpc.data.synthetic.reddit_shaped import skewed_graph, skewed_version
from gnnhpc.data.synthetic.threads import synthetic_threads
from gnnhpc.data.tu import TuGraphs
from gnnhpc.graphs.graph import Graph, InEdges
from gnnhpc.graphs.graph_set import GraphSet
from gnnhpc.graphs.node_features import sparse_tensor

_LARGEST = float(np.finfo(np.float16).max)
_AT_ONCE = 1 << 14


def load_graph(config: Data, root: Path | None, seed: int = DATA_SEED) -> Graph:
    """Load the graph of these settings.

    `seed` is for random features and for the random split of graphs published without one; it does
    not depend on the experiment. Raises InputError for a missing or damaged file.
    """
    arrays = graph_arrays(config, root)
    facts = config.facts()
    labels = arrays["labels"]
    rng = np.random.default_rng([seed, len(labels)])
    if "train" in arrays:
        masks = tuple(arrays[split] for split in SPLITS)
    else:
        masks = shchur_split(labels, facts.classes, rng)
    in_edges = None
    if "in_source" in arrays:
        in_edges = InEdges(*(torch.from_numpy(arrays[key]) for key in ("in_indptr", "in_source")))
    return Graph(
        config.label,
        _features(arrays, (len(labels), facts.features), rng),
        torch.from_numpy(labels),
        torch.from_numpy(arrays["edges"]),
        {split: torch.from_numpy(mask) for split, mask in zip(SPLITS, masks, strict=True)},
        facts.classes,
        in_edges,
        torch.from_numpy(arrays["edge_weight"]) if "edge_weight" in arrays else None,
    )


def _features(arrays: Arrays, shape: tuple[int, int], rng: np.random.Generator) -> Tensor:
    if "dense" in arrays:
        return torch.from_numpy(arrays["dense"])
    if "indptr" in arrays:
        return sparse_tensor(arrays["indptr"], arrays["columns"], arrays["values"], shape)
    words = made_words(*shape, rng)
    return sparse_tensor(words.indptr, words.columns, words.values, words.shape)


def _citation_arrays(config: SyntheticCitation, root: Path | None) -> Arrays:
    made = synthetic_graph(config)
    rows = {"indptr": made.features.indptr, "columns": made.features.columns}
    masks = {split: getattr(made, split) for split in SPLITS}
    arrays: Arrays = {"labels": made.labels, "edges": made.edges, "values": made.features.values}
    return arrays | rows | masks


def _skewed_arrays(config: RedditShaped, root: Path | None) -> Arrays:
    arrays = load_or_build(config, [], _make_skewed, made_by=skewed_version())
    return _stored(config, [], arrays, skewed_version())


def _make_skewed(config: RedditShaped, raw: list[Path], work: Path) -> Arrays:
    made = skewed_graph(config)
    masks = {split: getattr(made, split) for split in SPLITS}
    arrays: Arrays = {"labels": made.labels, "edges": made.edges, "dense": made.features}
    return _with_in_edges(arrays | masks)


def _published_arrays(config: PublishedGraph, root: Path | None) -> Arrays:
    raw = config.raw_files(existing_root(config.name, root))
    return _stored(config, raw, load_or_build(config, raw, _read_published))


def _read_published(config: PublishedGraph, raw: list[Path], work: Path) -> Arrays:
    # A cached graph needs no reader, which imports PyG.
    from gnnhpc.data.readers import published_files

    if isinstance(config.published.reader, Pyg):
        return _with_in_edges(published_files.read_pyg(config, raw, work))
    return _with_in_edges(published_files.read_ogb(config, raw))


def _custom_arrays(config: CustomGraph, root: Path | None) -> Arrays:
    from gnnhpc.data.readers.custom_graph_file import Choices, read_custom_graph

    choices = Choices(config.split, config.directed, config.ignore, config.classes)
    return read_custom_graph(Path(config.path), choices, config.digest)


_READERS: dict[type[Data], Callable[[Any, Path | None], Arrays]] = {
    SyntheticCitation: _citation_arrays,
    RedditShaped: _skewed_arrays,
    PublishedGraph: _published_arrays,
    CustomGraph: _custom_arrays,
}


def graph_arrays(config: Data, root: Path | None) -> Arrays:
    """The arrays of a graph as its reader gives them, without a split where none is published.

    Raises InputError for a missing or damaged file.
    """
    return _READERS[type(config)](config, root)


def _with_in_edges(arrays: Arrays) -> Arrays:
    """Add the edges by target, which ranks of a host share."""
    found = InEdges.of(torch.from_numpy(arrays["edges"]), len(arrays["labels"]))
    return arrays | {"in_indptr": found.indptr.numpy(), "in_source": found.source.numpy()}


def _stored(
    config: RedditShaped | PublishedGraph, raw: list[Path], arrays: Arrays, made_by: str = ""
) -> Arrays:
    """The arrays with features in the precision of storage; float16 ones are cached too.

    Raises InputError for numbers that are too large for half precision.
    """
    if config.storage == "float32":
        return arrays

    def halves(config: RedditShaped | PublishedGraph, raw: list[Path], work: Path) -> Arrays:
        dense = arrays["dense"]
        halved = np.empty(dense.shape, np.float16)
        for begin in range(0, len(dense), _AT_ONCE):
            rows = dense[begin : begin + _AT_ONCE]
            largest = float(np.abs(rows, where=np.isfinite(rows), out=np.zeros_like(rows)).max())
            if largest > _LARGEST:
                allowed = f"float32, or numbers up to {_LARGEST:g}"
                found = f"float16, and features of {config.name} up to {largest:g}"
                raise InputError("data", "storage", found, allowed)
            halved[begin : begin + _AT_ONCE] = rows
        return {"dense": halved}

    return arrays | load_or_build(config, raw, halves, made_by=f"{made_by}, {config.storage}")


def load_graph_set(config: Data, root: Path | None) -> GraphSet:
    """Load the graphs of these settings; raises InputError for a missing or damaged file."""
    assert isinstance(config, GraphSetData)
    if isinstance(config, TuGraphs):
        arrays = tu_arrays(config, root)
    else:
        assert isinstance(config, SyntheticGraphs)
        made = synthetic_threads(config)
        arrays = {"labels": made.labels, "edges": made.edges, "first": made.first}
    facts, labels = config.facts(), arrays["labels"]
    masks = random_graph_split(len(labels), config.split)
    return GraphSet(
        config.label,
        _node_inputs(config, arrays, facts.features),
        torch.from_numpy(arrays["edges"]),
        torch.from_numpy(arrays["first"]),
        torch.from_numpy(labels),
        {split: torch.from_numpy(mask) for split, mask in masks.items()},
        facts.classes,
    )


def tu_arrays(config: TuGraphs, root: Path | None) -> Arrays:
    """The arrays of a published set, from the cache once its files have been read.

    Keys: `labels` [graphs], `edges` [2, E], `first` [graphs + 1], and `stored` [nodes] where nodes
    have labels.
    """
    raw = config.raw_files(existing_root(config.name, root))
    # Splits and computed inputs use the same arrays.
    return load_or_build(TuGraphs(name=config.name), raw, _read_tu)


def _read_tu(config: TuGraphs, raw: list[Path], work: Path) -> Arrays:
    from gnnhpc.data.readers.published_files import read_tu

    return read_tu(config, raw, work)


def _node_inputs(config: GraphSetData, arrays: Arrays, width: int) -> Tensor:
    """The inputs of all nodes, [nodes, width]; one-hot rows as the one column that is 1."""
    nodes = int(arrays["first"][-1])
    degree = np.bincount(arrays["edges"][1], minlength=nodes)
    if config.features == "stored":
        return _one_hot(arrays["stored"], width)
    if config.features == "one-hot":
        return _one_hot(np.minimum(degree, width - 1), width)
    column = degree if config.features == "degree" else np.ones(nodes)
    return torch.from_numpy(column.astype(np.float32)[:, None])


def _one_hot(columns: Ints, width: int) -> Tensor:
    nodes = len(columns)
    ones = np.ones(nodes, dtype=np.float32)
    return sparse_tensor(np.arange(nodes + 1), columns.astype(np.int64), ones, (nodes, width))
