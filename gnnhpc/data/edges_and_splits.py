"""A graph as arrays: its edges in their one order, and splits as bool masks by name.

Edges are ordered by target, then by source, each once, without self-loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnhpc.core.dataset_sizes import SPLITS
from gnnhpc.data.data_settings import SHCHUR_EACH, planetoid_sizes
from gnnhpc.data.graph_sets import graph_split_sizes

DATA_SEED = 20_240_229
"""The seed of synthetic data and random splits: data do not depend on an experiment's seed."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Masks = dict[str, Mask]
Arrays = dict[str, npt.NDArray[Any]]
"""A graph as its reader or generator gives it: int64 `labels` [nodes] and `edges` [2, E]; bool
`train`, `val` and `test` [nodes] where a split is published; float32 `dense` [nodes, F] or the CSR
rows `indptr`, `columns` and `values` where features are not made up; float32 `edge_weight` [E]
where edges have weights."""


def distinct(keys: Ints) -> Ints:
    """The sorted keys, each once; `numpy.unique` hashes, which takes sixty times as long."""
    ordered = np.sort(keys)
    new = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return ordered[new]


def ordered_edges(source: Ints, target: Ints, nodes: int, *, both: bool = False) -> Ints:
    """int64 [2, E] sorted by (target, source), each edge once; with `both` also its reverse."""
    if both:
        source, target = np.concatenate([source, target]), np.concatenate([target, source])
    key = distinct((target * nodes + source)[source != target])
    return np.stack([key % nodes, key // nodes])


def planetoid_split(labels: Ints, classes: int, rng: np.random.Generator) -> Masks:
    """A random split: 20 nodes a class to train, 500 and 1000, fewer in a small graph."""
    nodes = len(labels)
    each, val, test = planetoid_sizes(nodes, classes)
    order = rng.permutation(nodes)
    train = first_of_each_class(order, labels, classes, each)[: nodes // 2]
    rest = order[~np.isin(order, train)]
    return masks_of((train, rest[:val], rest[val : val + test]), nodes)


def shchur_split(labels: Ints, classes: int, rng: np.random.Generator) -> Masks:
    """A random split: 20 nodes a class to train, 30 a class to validate, the rest to test.

    That of Shchur et al. 2018 (arXiv:1811.05868), section 4, for graphs published without one.
    """
    order = rng.permutation(len(labels))
    train = first_of_each_class(order, labels, classes, SHCHUR_EACH)
    rest = order[~np.isin(order, train)]
    val = first_of_each_class(rest, labels, classes, 30)
    return masks_of((train, val, rest[~np.isin(rest, val)]), len(labels))


def random_graph_split(graphs: int, split: int) -> Masks:
    """The random split of a set of graphs with this number; see `GraphSetData`."""
    order = np.random.default_rng([DATA_SEED, 7, graphs, split]).permutation(graphs)
    return masks_of(np.split(order, np.cumsum(graph_split_sizes(graphs))[:-1]), graphs)


def first_of_each_class(order: Ints, labels: Ints, classes: int, count: int) -> Ints:
    """The first `count` nodes of each class in this order of nodes."""
    return np.concatenate([order[labels[order] == c][:count] for c in range(classes)])


def masks_of(parts: Sequence[Ints], nodes: int) -> Masks:
    """The masks of the nodes to train, to validate and to test, bool [nodes] each."""
    masks = {split: np.zeros(nodes, dtype=np.bool_) for split in SPLITS}
    for mask, chosen in zip(masks.values(), parts, strict=True):
        mask[chosen] = True
    return masks
