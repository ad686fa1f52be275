"""Every set of graphs as one kind of object, whatever it is read or made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnhpc.core.dataset_sizes import SPLITS
from gnnhpc.data.cache import Arrays, load_or_build
from gnnhpc.data.generators import DATA_SEED, Ints, mask_of
from gnnhpc.data.graph_sets import GraphSetData, SyntheticGraphs, TuGraphs, split_sizes
from gnnhpc.data.graphs import sparse_rows
from gnnhpc.data.roots import existing_root
from gnnhpc.data.settings import Data
from gnnhpc.data.threads import synthetic_threads
from gnnhpc.graphs.graph_set import GraphSet


def load_graph_set(config: Data, root: Path | None) -> GraphSet:
    """The graphs of a configuration, from files, a cache of them, or a generator.

    Raises InputError naming a missing or damaged file and what to do.
    """
    assert isinstance(config, GraphSetData)
    arrays = tu_arrays(config, root) if isinstance(config, TuGraphs) else _made(config)
    facts, labels = config.facts(), arrays["labels"]
    masks = drawn_split(len(labels), config.split)
    return GraphSet(
        config.label,
        _features(config, arrays, facts.features),
        torch.from_numpy(arrays["edges"]),
        torch.from_numpy(arrays["first"]),
        torch.from_numpy(labels),
        {split: torch.from_numpy(mask) for split, mask in masks.items()},
        facts.classes,
    )


def drawn_split(graphs: int, split: int) -> dict[str, npt.NDArray[np.bool_]]:
    """Masks by name, of the random split of this number; see `GraphSetData`."""
    order = np.random.default_rng([DATA_SEED, 7, graphs, split]).permutation(graphs)
    ends = np.cumsum(split_sizes(graphs))[:-1]
    parts = zip(SPLITS, np.split(order, ends), strict=True)
    return {name: mask_of(part, graphs) for name, part in parts}


def tu_arrays(config: TuGraphs, root: Path | None) -> Arrays:
    """The arrays of a published set, which are kept once its files have been read.

    Keys: `labels` [graphs], `edges` [2, E], `first` [graphs + 1], and `stored` [nodes] where nodes
    have labels.
    """
    raw = config.raw_files(existing_root(config.name, root))
    # Splits and inputs that are computed are of the same files.
    plain = TuGraphs(name=config.name)
    return load_or_build(plain, raw, _read_tu)


def _read_tu(config: TuGraphs, raw: list[Path], work: Path) -> Arrays:
    """The reader is imported when files are read: a cached set needs no PyG."""
    from gnnhpc.data.readers.tu_reader import read_tu

    return read_tu(config, raw, work)


def _made(config: GraphSetData) -> Arrays:
    assert isinstance(config, SyntheticGraphs)
    made = synthetic_threads(config)
    return {"labels": made.labels, "edges": made.edges, "first": made.first}


def _features(config: GraphSetData, arrays: dict[str, Any], width: int) -> Tensor:
    """Of all nodes, [nodes, width]; one-hot rows as the one column that is 1."""
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
    return sparse_rows(np.arange(nodes + 1), columns.astype(np.int64), ones, (nodes, width))
