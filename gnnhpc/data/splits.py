"""Splits of nodes and graphs into training, validation and test, as masks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gnnhpc.core.dataset_sizes import SPLITS
from gnnhpc.data.data_settings import (
    SHCHUR_EACH,
    graph_split_sizes,
    planetoid_each,
    planetoid_scale,
)

DATA_SEED = 20_240_229
"""The seed of synthetic data and random splits: data do not depend on an experiment's seed."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]


def planetoid_split(
    labels: Ints, classes: int, rng: np.random.Generator
) -> tuple[Mask, Mask, Mask]:
    """Random masks of train, val and test: 20 a class, 500 and 1000, fewer in a small graph."""
    nodes = len(labels)
    scale, each = planetoid_scale(nodes, classes), planetoid_each(nodes, classes)
    order = rng.permutation(nodes)
    train = first_of_each_class(order, labels, classes, each)[: nodes // 2]
    rest = order[~np.isin(order, train)]
    val = max(1, int(500 * scale))
    test = max(1, int(1000 * scale))
    return (
        mask_of(train, nodes),
        mask_of(rest[:val], nodes),
        mask_of(rest[val : val + test], nodes),
    )


def first_of_each_class(order: Ints, labels: Ints, classes: int, count: int) -> Ints:
    """The first `count` nodes of each class in this order of nodes."""
    return np.concatenate([order[labels[order] == c][:count] for c in range(classes)])


def mask_of(chosen: Ints, nodes: int) -> Mask:
    """bool [nodes], true for the chosen nodes."""
    mask = np.zeros(nodes, dtype=np.bool_)
    mask[chosen] = True
    return mask


def shchur_split(labels: Ints, classes: int, rng: np.random.Generator) -> tuple[Mask, Mask, Mask]:
    """Random masks of train (20 a class), val (30 a class) and test (the rest).

    The split of Shchur et al. 2018 (arXiv:1811.05868), section 4, for graphs published without one.
    """
    order = rng.permutation(len(labels))
    train = first_of_each_class(order, labels, classes, SHCHUR_EACH)
    rest = order[~np.isin(order, train)]
    val = first_of_each_class(rest, labels, classes, 30)
    test = rest[~np.isin(rest, val)]
    nodes = len(labels)
    return mask_of(train, nodes), mask_of(val, nodes), mask_of(test, nodes)


def random_graph_split(graphs: int, split: int) -> dict[str, Mask]:
    """The masks by name of the random split with this number; see `GraphSetData`."""
    order = np.random.default_rng([DATA_SEED, 7, graphs, split]).permutation(graphs)
    ends = np.cumsum(graph_split_sizes(graphs))[:-1]
    parts = zip(SPLITS, np.split(order, ends), strict=True)
    return {name: mask_of(part, graphs) for name, part in parts}


def distinct(keys: Ints) -> Ints:
    """The sorted keys, each once; `numpy.unique` hashes, which takes sixty times as long."""
    ordered = np.sort(keys)
    new = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return ordered[new]
