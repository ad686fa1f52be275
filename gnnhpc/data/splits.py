"""How many nodes a drawn split trains on, known from a graph's sizes. Free of torch and numpy."""

from __future__ import annotations

REDDIT_SHARES = {"train": 153_431 / 232_965, "val": 23_831 / 232_965}
"""Of nodes, as published with Reddit (Hamilton et al. 2017); the rest are to test."""
SHCHUR_EACH = 20
"""Nodes of a class to train on: Shchur et al. 2018 (arXiv:1811.05868), section 4."""


def planetoid_scale(nodes: int, classes: int) -> float:
    """Of a smaller graph, by how much its split is smaller: 20 a class, 500 and 1000 nodes."""
    return min(1.0, nodes / (20 * classes + 1500))


def planetoid_each(nodes: int, classes: int) -> int:
    """Nodes of a class to train on: 20, or like a share of few nodes; at least 5, unless that were
    more than a third of all nodes."""
    scaled = int(20 * planetoid_scale(nodes, classes))
    return max(scaled, min(5, nodes // (3 * classes)), 1)


def reddit_trained(nodes: int) -> int:
    """Nodes to train on of a graph of Reddit's shape."""
    return max(1, round(REDDIT_SHARES["train"] * nodes))
