"""Every link is in one split, and the message graph has those to train on, in both directions."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnhpc.graphs.link_split import split_links
from tests.tools.graphs import make_graph


def pairs_of(links: torch.Tensor) -> set[frozenset[int]]:
    return {frozenset(pair) for pair in links.tolist()}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.05, 0.4), st.floats(0.05, 0.4))
def test_the_splits_are_all_links_each_once(seed: int, val: float, test: float) -> None:
    graph = make_graph(60, 150, seed=seed % 5)
    split = split_links(graph, seed, val, test)
    parts = [pairs_of(each) for each in (split.train, split.val, split.test)]
    assert set().union(*parts) == pairs_of(graph.edges.T)
    assert sum(map(len, parts)) == len(pairs_of(graph.edges.T))
    assert [len(part) for part in parts[1:]] == [int(len(split.joined) * s) for s in (val, test)]
    message = split.message.edges
    assert pairs_of(message.T) == parts[0]
    assert message.shape[1] == 2 * len(parts[0])
    assert bool(((message[1] * 60 + message[0]).diff() > 0).all())
    assert message[:, split.both[:, 0]].equal(split.train.T)
    assert message[:, split.both[:, 1]].equal(split.train.T.flip(0))
