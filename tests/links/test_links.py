"""Every link is in one split; negatives are no links, drawn without bias, by numbers that depend on
seed, step and link."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gnnhpc.batches.sampled.training_samples import TrainingLinks
from gnnhpc.core.errors import InputError
from gnnhpc.graphs.link_split import LinkSplit, pool, split_links
from gnnhpc.kernels import sample_neighbors as sample
from gnnhpc.validation.reference.random_numbers import negatives_of
from tests.tools.graphs import make_graph

pytestmark = pytest.mark.skipif(not sample.is_here(), reason="needs a C++ compiler, as g++")
ALPHA = 1e-6
"""Of a chi-square test: all seeds are fixed, so that a test that passes once always does."""


def star(nodes: int, neighbours: torch.Tensor) -> LinkSplit:
    """Links to train on that join node 0 and these neighbours, in both directions."""
    out = torch.stack((torch.zeros_like(neighbours), neighbours))
    both = torch.cat((out, out.flip(0)), 1)
    order = (both[1] * nodes + both[0]).argsort()
    graph = replace(make_graph(nodes, 1, seed=0), edges=both[:, order])
    return LinkSplit(graph, out.T, out.T, out.T, out.T, np.arange(0))


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


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**40), st.integers(0, 10**5), st.integers(1, 4))
def test_both_forms_draw_the_same_nodes_none_of_them_joined(
    seed: int, step: int, count: int
) -> None:
    graph = make_graph(40, (60, 400)[seed % 2], seed=seed % 7)
    split = split_links(graph, seed, 0.1, 0.1)
    edges = split.message.edges.numpy()
    numbers = torch.randperm(len(split.train))[:20]
    kept = split.train[numbers, 0]
    found = TrainingLinks(split, count, seed).negatives(kept, numbers, step)
    message = edges, graph.nodes, seed
    others = negatives_of(kept.numpy(), numbers.numpy(), *message, step, count)
    np.testing.assert_array_equal(found.flatten().numpy(), others)
    pairs = torch.stack((kept.repeat_interleave(count), found.flatten()), 1)
    assert not pairs_of(pairs) & pairs_of(split.train)
    assert not (found == kept[:, None]).any()


def test_every_node_that_is_not_joined_is_as_likely() -> None:
    """Of 60 nodes 20 are joined to the first, one in two of those before number 40."""
    joined = torch.arange(1, 40, 2)
    links = TrainingLinks(star(60, joined), 1, 5)
    found = links.negatives(torch.zeros(60_000).long(), torch.arange(60_000), 3)
    counts = torch.bincount(found.flatten(), minlength=60)
    assert not counts[joined].any()
    assert not counts[0]
    assert int((counts > 0).sum()) == 39
    assert stats.chisquare(counts[counts > 0]).pvalue > ALPHA


def test_a_node_joined_to_all_others_is_one_line() -> None:
    with pytest.raises(InputError, match="found node 0, joined to all 5 others"):
        TrainingLinks(star(6, torch.arange(1, 6)), 1, 0)


def test_a_pool_is_of_different_pairs_without_an_edge_each_as_likely() -> None:
    graph = make_graph(12, 20, seed=4)
    joined = split_links(graph, 0, 0.1, 0.1).joined
    free = 66 - len(joined)
    counts = np.zeros(144, dtype=np.int64)
    for seed in range(4_000):
        pairs = pool(joined, 12, free // 2, seed, "val")
        assert bool((pairs[:, 0] < pairs[:, 1]).all())
        counts += np.bincount(pairs[:, 0] * 12 + pairs[:, 1], minlength=144)
    assert counts.max() <= 4_000
    assert not counts[joined].any()
    drawn = counts[counts > 0]
    assert len(drawn) == free
    # Pairs of one pool exclude one another, so the statistic is smaller by (n - k) / (n - 1).
    statistic = ((drawn - drawn.mean()) ** 2 / drawn.mean()).sum()
    statistic *= (free - 1) / (free - free // 2)
    assert stats.chi2.sf(statistic, free - 1) > ALPHA
