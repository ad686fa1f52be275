"""Synthetic graphs: the same every time, well formed at any size, of the planned sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnhpc.data.data_settings import REDDIT_SHARES, RedditShaped, SyntheticCitation
from gnnhpc.data.edges_and_splits import Arrays
from gnnhpc.data.synthetic.citation import synthetic_graph
from gnnhpc.data.synthetic.reddit_shaped import skewed_graph


def check_edges(graph: Arrays, nodes: int, edges: int) -> None:
    """Edges are ordered, single, symmetric, and no more than was asked for."""
    source, target = graph["edges"]
    key = target * nodes + source
    assert (np.diff(key) > 0).all()
    assert (source != target).all()
    assert np.array_equal(np.sort(source * nodes + target), key)
    assert len(source) <= edges + 1


def check_rows(rows: Arrays, nodes: int, columns: int) -> None:
    """Rows of sparse features have different columns in order, and unit length."""
    assert rows["indptr"][0] == 0
    assert rows["indptr"][-1] == len(rows["columns"]) == len(rows["values"])
    row = np.repeat(np.arange(nodes), np.diff(rows["indptr"]))
    assert (np.diff(row * columns + rows["columns"]) > 0).all()
    assert np.diff(rows["indptr"]).min() >= 1
    assert 0 <= rows["columns"].min() <= rows["columns"].max() < columns
    assert np.bincount(row, rows["values"] ** 2) == pytest.approx(1, abs=1e-5)


SIZES = st.integers(10, 400), st.integers(10, 3000), st.integers(8, 90), st.integers(2, 60)


@settings(max_examples=40, deadline=None)
@given(*SIZES)
def test_citation_graphs_of_any_size(nodes: int, edges: int, features: int, classes: int) -> None:
    config = SyntheticCitation(nodes=nodes, edges=edges, features=features, classes=classes)
    graph = synthetic_graph(config)
    check_edges(graph, nodes, edges)
    check_rows(graph, nodes, features)
    masks = np.stack([graph["train"], graph["val"], graph["test"]])
    assert masks.sum(0).max() == 1
    assert masks.sum(1).min() >= 1
    assert graph["train"].sum() <= config.facts().train
    assert 0 <= graph["labels"].min() <= graph["labels"].max() < classes


@settings(max_examples=40, deadline=None)
@given(*SIZES)
def test_graphs_like_reddit_of_any_size(
    nodes: int, edges: int, features: int, classes: int
) -> None:
    config = RedditShaped(nodes=nodes, edges=edges, features=features, classes=classes)
    made, again = skewed_graph(config), skewed_graph(config)
    check_edges(made, nodes, edges)
    assert (made["dense"].shape, made["dense"].dtype) == ((nodes, features), np.float32)
    assert (made["train"].astype(int) + made["val"] + made["test"] == 1).all()
    assert made["train"].sum() == config.facts().train
    assert all(np.array_equal(array, again[key]) for key, array in made.items())


def test_reddits_shape_is_skewed_and_has_the_published_shares() -> None:
    config = RedditShaped(nodes=6_000, edges=300_000, features=64, classes=12)
    made = skewed_graph(config)
    labels, (source, target) = made["labels"], made["edges"]
    degree = np.bincount(target, minlength=config.nodes)
    assert len(source) == config.edges
    assert degree.max() > 15 * np.median(degree)
    assert 0.7 < (labels[source] == labels[target]).mean() < 0.8
    for split, share in REDDIT_SHARES.items():
        assert made[split].mean() == pytest.approx(share, abs=1e-3)
