"""A synthetic citation graph: communities on a ring, with words that hint at the class."""

from __future__ import annotations

import numpy as np

from gnnhpc.data.data_settings import SyntheticCitation
from gnnhpc.data.edges_and_splits import (
    DATA_SEED,
    Arrays,
    Ints,
    distinct,
    ordered_edges,
    planetoid_split,
)

_TOPICAL = 0.2
"""The share of a node's words that are of its class's topic."""


def synthetic_graph(config: SyntheticCitation) -> Arrays:
    """Make communities on a ring, each of one class, with words that hint at it.

    Four edges in five stay in a community and most of the others go to the next on the ring, so
    that neighbours mostly share a class and good partitions exist. Node numbers are shuffled:
    consecutive ranges lose most edges, as they do on published graphs. A node's own words leave
    its class uncertain; those of its neighbourhood together do not.
    """
    sizes = [config.nodes, config.edges, config.features, config.classes]
    rng = np.random.default_rng([DATA_SEED, 3, *sizes])
    nodes, classes = config.nodes, config.classes
    degree = config.edges / nodes
    size = int(np.clip(4 * degree, 24, max(24, nodes // (2 * classes))))
    communities = max(min(classes, nodes), nodes // size)
    place = rng.permutation(nodes)
    community = place * communities // nodes
    # Every class has about the same number of communities, in random order.
    labels = rng.permutation(np.arange(communities) % classes)[community].astype(np.int64)
    edges = _community_edges(community, communities, config.edges, rng)
    features = made_words(nodes, config.features, rng, labels, classes)
    masks = planetoid_split(labels, classes, rng)
    return {"labels": labels, "edges": edges} | features | masks


def _community_edges(
    community: Ints, communities: int, wanted: int, rng: np.random.Generator
) -> Ints:
    """About `wanted` directed edges, both directions of each, no loops, no duplicates."""
    nodes = len(community)
    members = np.argsort(community, kind="stable")
    first = np.searchsorted(community[members], np.arange(communities + 1))
    pairs = np.empty(0, dtype=np.int64)
    half = min(wanted // 2, nodes * (nodes - 1) // 2)
    for _ in range(8):
        missing = half - len(pairs)
        if missing <= 0:
            break
        count = int(1.1 * missing) + 16
        source = rng.integers(0, nodes, count)
        kind = rng.random(count)
        home = (community[source] + np.where(kind < 0.8, 0, 1)) % communities
        drawn = rng.random(count)
        near = first[home] + (drawn * (first[home + 1] - first[home])).astype(np.int64)
        # A cubed uniform number favours the first nodes: many cite a few.
        far = (drawn**3 * nodes).astype(np.int64)
        target = np.where(kind < 0.95, members[near], far)
        low, high = np.minimum(source, target), np.maximum(source, target)
        fresh = (low * nodes + high)[low != high]
        pairs = distinct(np.concatenate([pairs, fresh]))
    if len(pairs) > half:
        pairs = rng.choice(pairs, half, replace=False)
    return ordered_edges(pairs // nodes, pairs % nodes, nodes, both=True)


def made_words(
    nodes: int,
    columns: int,
    rng: np.random.Generator,
    labels: Ints | None = None,
    classes: int = 1,
) -> Arrays:
    """CSR rows of unit length of weighted words: a tenth of the columns, 6 to 50, varying by row.

    With fewer than 7 columns most are used. With labels, one word in five is of the class's topic;
    without, words do not depend on the class.
    """
    mean = min(50.0, max(6.0, columns / 10), 0.9 * columns)
    # Words repeat: this many random words have `mean` different ones.
    draws = np.log(1 - mean / columns) / np.log(1 - 1 / columns)
    counts = np.maximum(1, rng.poisson(draws, nodes))
    row = np.repeat(np.arange(nodes), counts)
    word = rng.integers(0, columns, len(row))
    if labels is not None:
        width = max(1, columns // (2 * classes))
        topic = (labels[row] * columns // classes + rng.integers(0, width, len(row))) % columns
        word = np.where(rng.random(len(row)) < _TOPICAL, topic, word)
    key = distinct(row * columns + word)
    row, word = key // columns, key % columns
    weight = rng.uniform(0.5, 1.5, len(key)).astype(np.float32)
    length = np.sqrt(np.bincount(row, weight**2, minlength=nodes))
    indptr = np.searchsorted(row, np.arange(nodes + 1)).astype(np.int64)
    values = (weight / length[row]).astype(np.float32)
    return {"indptr": indptr, "columns": word, "values": values}
