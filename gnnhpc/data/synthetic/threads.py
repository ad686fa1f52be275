"""Synthetic threads of discussion: trees of answers, whose shape is the class, and a few edges.

The graph of Reddit's threads (Yanardag & Vishwanathan 2015) is the model: a question's answers go
to its first post, a discussion's to one another.
"""

from __future__ import annotations

import numpy as np

from gnnhpc.data.edges_and_splits import DATA_SEED, Arrays, ordered_edges
from gnnhpc.data.graph_sets import SyntheticGraphs

SPREAD = 0.1
"""The standard deviation of a graph's share of answers to the first post: classes overlap."""
SILENT = 0.02
"""The share of posts without an answer that answer none: nodes without edges."""


def synthetic_threads(config: SyntheticGraphs) -> Arrays:
    """Make graphs of these sizes; classes are about equally frequent, in random order.

    Returns int64 `labels` [graphs], `edges` [2, E], and `first` [graphs + 1], each graph's first
    node.

    Each node but a graph's first answers its first, with a chance that the class decides, or any
    one before. Edges between any two nodes are added until a node has `degree` on average, if a
    tree has fewer.
    """
    sizes = [config.graphs, config.nodes, round(1000 * config.degree), config.classes]
    rng = np.random.default_rng([DATA_SEED, 6, *sizes])
    graphs = config.graphs
    labels = rng.permutation(np.arange(graphs) % config.classes).astype(np.int64)
    most = config.nodes // 2
    more = rng.integers(-most, most, graphs // 2, endpoint=True)
    # The mean size is exact: what one graph has more, another has less.
    apart = np.concatenate((more, -more, np.zeros(graphs % 2, dtype=np.int64)))
    counts = config.nodes + rng.permutation(apart)
    first = np.concatenate(([0], np.cumsum(counts)))
    nodes = int(first[-1])
    graph = np.repeat(np.arange(graphs), counts)
    begin = first[graph]
    place = np.arange(nodes) - begin
    share = (labels + 0.5) / config.classes + SPREAD * rng.standard_normal(graphs)
    to_first = rng.random(nodes) < share[graph]
    answered = np.where(to_first, 0, (rng.random(nodes) * place).astype(np.int64))
    silent = rng.random(nodes) < SILENT
    answers = np.flatnonzero((place > 0) & ~silent & ~silent[begin + answered])
    # Keep as many answers as the degree asks for, and add edges where they are too few.
    wanted = round(nodes * config.degree / 2)
    answers = answers[np.sort(rng.permutation(len(answers))[:wanted])]
    sources = rng.choice(np.flatnonzero(~silent), max(0, wanted - len(answers)))
    other = begin[sources] + (rng.random(len(sources)) * counts[graph[sources]]).astype(np.int64)
    kept = (other != sources) & ~silent[other]
    a = np.concatenate((answers, sources[kept]))
    b = np.concatenate((begin[answers] + answered[answers], other[kept]))
    edges = ordered_edges(a, b, nodes, both=True)
    return {"labels": labels, "edges": edges, "first": first.astype(np.int64)}
