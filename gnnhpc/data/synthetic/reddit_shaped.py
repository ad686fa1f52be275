"""A synthetic graph of Reddit's shape: many edges, a few nodes with very many, dense features.

Degrees follow a random weight of each node (Chung & Lu 2002); three edges in four lead to a node of
the same class. A node's features leave its class uncertain, their mean over neighbours does not.
"""

from __future__ import annotations

import math

import numpy as np

from gnnhpc.data.data_settings import REDDIT_SHARES, RedditShaped, reddit_trained
from gnnhpc.data.edges_and_splits import (
    DATA_SEED,
    Arrays,
    Floats,
    Ints,
    Masks,
    distinct,
    masks_of,
    ordered_edges,
)

SKEW = 1.0
"""Standard deviation of the logarithm of weights: the largest of 232,965 is some 90 times the
median, as Reddit's degree of 21,657 is of a mean of 492."""
HOMOPHILY = 0.75
"""The share of random edges within a class, before doubled ones are dropped."""
DISTANCE = 3.2
"""Between the centres of two classes, in standard deviations of a feature."""
_AT_ONCE = 1 << 22
_ROUNDS = 12


def skewed_graph(config: RedditShaped) -> Arrays:
    """Make the graph of these sizes, with fewer edges where the nodes have no more pairs."""
    sizes = [config.nodes, config.edges, config.features, config.classes]
    rng = np.random.default_rng([DATA_SEED, 4, *sizes])
    labels = rng.permutation(np.arange(config.nodes) % config.classes).astype(np.int64)
    weights = rng.lognormal(0.0, SKEW, config.nodes)
    edges = _edges(labels, weights, config, rng)
    masks = _split(config.nodes, rng)
    features = _features(labels, config, rng)
    return {"labels": labels, "edges": edges, "dense": features, **masks}


def _edges(
    labels: Ints, weights: np.ndarray, config: RedditShaped, rng: np.random.Generator
) -> Ints:
    """Add random pairs until enough are different, then drop those beyond."""
    nodes = config.nodes
    # Nodes are chosen by weight, from the whole graph or from one class.
    order = np.argsort(labels, kind="stable")
    below = np.concatenate([[0.0], np.cumsum(weights[order])])
    first = below[np.searchsorted(labels[order], np.arange(config.classes + 1))]

    def chosen(low: np.ndarray | float, high: np.ndarray | float, drawn: np.ndarray) -> Ints:
        place = np.searchsorted(below, low + drawn * (high - low), side="right") - 1
        found: Ints = order[np.clip(place, 0, nodes - 1)]
        return found

    wanted = min(config.edges // 2, nodes * (nodes - 1) // 2)
    pairs = np.empty(0, dtype=np.int64)
    for _ in range(_ROUNDS):
        missing = wanted - len(pairs)
        if missing <= 0:
            break
        pieces = [pairs]
        for begin in range(0, missing + missing // 8 + 16, _AT_ONCE):
            count = min(_AT_ONCE, missing + missing // 8 + 16 - begin)
            one = chosen(0.0, below[-1], rng.random(count))
            near, drawn, label = rng.random(count) < HOMOPHILY, rng.random(count), labels[one]
            other = np.where(
                near, chosen(first[label], first[label + 1], drawn), chosen(0.0, below[-1], drawn)
            )
            low, high = np.minimum(one, other), np.maximum(one, other)
            pieces.append((low * nodes + high)[low != high])
        pairs = distinct(np.concatenate(pieces))
    if len(pairs) > wanted:
        kept = np.ones(len(pairs), dtype=np.bool_)
        kept[rng.choice(len(pairs), len(pairs) - wanted, replace=False)] = False
        pairs = pairs[kept]
    return ordered_edges(pairs // nodes, pairs % nodes, nodes, both=True)


def _features(labels: Ints, config: RedditShaped, rng: np.random.Generator) -> Floats:
    scale = DISTANCE / math.sqrt(2 * config.features)
    centres = rng.standard_normal((config.classes, config.features), dtype=np.float32) * scale
    rows = rng.standard_normal((config.nodes, config.features), dtype=np.float32)
    rows += centres.astype(np.float32)[labels]
    return rows


def _split(nodes: int, rng: np.random.Generator) -> Masks:
    train, val = reddit_trained(nodes), max(1, round(REDDIT_SHARES["val"] * nodes))
    return masks_of(np.split(rng.permutation(nodes), [train, train + val]), nodes)
