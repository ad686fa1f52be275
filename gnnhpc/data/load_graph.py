"""Loads graphs and sets of graphs, from files, the cache or a generator.

Graphs published without a split get that of Shchur et al. 2018 (arXiv:1811.05868), section 4.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gnnhpc.core.dataset_sizes import SPLITS
from gnnhpc.data.custom_graph_settings import CustomGraph
from gnnhpc.data.data_cache import load_or_build
from gnnhpc.data.data_settings import Data, RedditShaped, SyntheticCitation
from gnnhpc.data.edges_and_splits import DATA_SEED, Arrays, Ints, random_graph_split, shchur_split
from gnnhpc.data.graph_sets import GraphSetData, SyntheticGraphs, TuGraphs
from gnnhpc.data.published_graphs import PublishedGraph
from gnnhpc.data.synthetic.citation import made_words, synthetic_graph
from gnnhpc.data.synthetic.reddit_shaped import skewed_graph
from gnnhpc.data.synthetic.threads import synthetic_threads
from gnnhpc.graphs.graph import Graph, InEdges
from gnnhpc.graphs.graph_set import GraphSet
from gnnhpc.graphs.node_features import sparse_tensor


def load_graph(config: Data, root: Path | None, seed: int = DATA_SEED) -> Graph:
    """Load the graph of these settings.

    `seed` is for random features and for the random split of graphs published without one; it does
    not depend on the experiment. Raises InputError for a missing or damaged file.
    """
    arrays, facts = graph_arrays(config, root), config.facts()
    labels = arrays["labels"]
    rng = np.random.default_rng([seed, len(labels)])
    masks = arrays if "train" in arrays else shchur_split(labels, facts.classes, rng)
    tensors = {key: torch.from_numpy(array) for key, array in arrays.items()}
    in_edges = "in_source" in tensors
    return Graph(
        config.label,
        _features(arrays, (len(labels), facts.features), rng),
        tensors["labels"],
        tensors["edges"],
        {split: torch.from_numpy(masks[split]) for split in SPLITS},
        facts.classes,
        InEdges(tensors["in_indptr"], tensors["in_source"]) if in_edges else None,
        tensors.get("edge_weight"),
    )


def _features(arrays: Arrays, shape: tuple[int, int], rng: np.random.Generator) -> Tensor:
    if "dense" in arrays:
        return torch.from_numpy(arrays["dense"])
    rows = arrays if "indptr" in arrays else made_words(*shape, rng)
    return sparse_tensor(rows["indptr"], rows["columns"], rows["values"], shape)


def graph_arrays(config: Data, root: Path | None) -> Arrays:
    """The arrays of a graph, which of large graphs come from the cache.

    `in_indptr` and `in_source` are the edges by target, which ranks of a host share. Features are
    in the precision of storage. Raises InputError for a missing or damaged file.
    """
    if isinstance(config, SyntheticCitation):
        return synthetic_graph(config)
    if isinstance(config, CustomGraph):
        return config.arrays()
    assert isinstance(config, PublishedGraph | RedditShaped)
    raw = config.raw_files(root)

    def build(work: Path) -> Arrays:
        arrays = _read(config, raw, work)
        found = InEdges.of(torch.from_numpy(arrays["edges"]), len(arrays["labels"]))
        return arrays | {"in_indptr": found.indptr.numpy(), "in_source": found.source.numpy()}

    arrays = load_or_build(config.model_copy(update={"storage": "float32"}), raw, build)
    if config.storage == "float32":
        return arrays
    halves = load_or_build(config, raw, lambda _: {"dense": arrays["dense"].astype(np.float16)})
    return arrays | halves


def _read(config: PublishedGraph | RedditShaped, raw: list[Path], work: Path) -> Arrays:
    if isinstance(config, RedditShaped):
        return skewed_graph(config)
    # A cached graph needs no reader, which imports PyG.
    from gnnhpc.data.readers.pyg_and_ogb import read_published

    return read_published(config, raw, work)


def load_graph_set(config: Data, root: Path | None) -> GraphSet:
    """Load the graphs of these settings; raises InputError for a missing or damaged file."""
    assert isinstance(config, GraphSetData)
    if isinstance(config, SyntheticGraphs):
        arrays = synthetic_threads(config)
    else:
        assert isinstance(config, TuGraphs)
        raw = config.raw_files(root)

        def build(work: Path) -> Arrays:
            from gnnhpc.data.readers.pyg_and_ogb import read_tu

            return read_tu(config, raw, work)

        # Splits and computed inputs use the same arrays.
        arrays = load_or_build(TuGraphs(name=config.name), raw, build)
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
