"""Splits of nodes and graphs into training, validation and test: bool masks by name."""

from __future__ import annotations

from collections.abc import Sequence

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
Masks = dict[str, Mask]


def planetoid_split(labels: Ints, classes: int, rng: np.random.Generator) -> Masks:
    """A random split: 20 nodes a class to train, 500 and 1000, fewer in a small graph."""
    nodes = len(labels)
    scale, each = planetoid_scale(nodes, classes), planetoid_each(nodes, classes)
    order = rng.permutation(nodes)
    train = first_of_each_class(order, labels, classes, each)[: nodes // 2]
    rest = order[~np.isin(order, train)]
    val = max(1, int(500 * scale))
    test = max(1, int(1000 * scale))
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
