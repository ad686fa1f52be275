"""A graph of Reddit's shape: well formed at any size, skewed, and learnt from neighbours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnhpc.data.data_settings import REDDIT_SHARES, RedditShaped
from gnnhpc.data.load_graph import load_graph
from gnnhpc.data.synthetic.reddit_shaped import HOMOPHILY, SkewedGraph, skewed_graph

SMALL = RedditShaped(nodes=6_000, edges=300_000, features=64, classes=12)


@pytest.fixture(scope="module")
def small() -> SkewedGraph:
    return skewed_graph(SMALL)


@settings(max_examples=40, deadline=None)
@given(st.integers(10, 300), st.integers(10, 3_000), st.integers(8, 20), st.integers(2, 9))
def test_graphs_of_any_size_are_well_formed(
    nodes: int, edges: int, features: int, classes: int
) -> None:
    config = RedditShaped(nodes=nodes, edges=edges, features=features, classes=classes)
    made, again = skewed_graph(config), skewed_graph(config)
    source, target = made.edges
    assert np.all(np.diff(target * nodes + source) > 0)
    assert np.all(source != target)
    both = scipy.sparse.csr_matrix((np.ones(len(source)), (source, target)), shape=(nodes, nodes))
    assert (both != both.T).nnz == 0
    assert len(source) <= edges
    assert made.features.shape == (nodes, features)
    assert made.features.dtype == np.float32
    assert (made.train.astype(int) + made.val + made.test == 1).all()
    assert made.train.any()
    for name in ("features", "labels", "edges", "train"):
        assert np.array_equal(getattr(made, name), getattr(again, name))


def test_degrees_are_skewed_and_edges_as_many_as_asked_for(small: SkewedGraph) -> None:
    degree = np.bincount(small.edges[1], minlength=SMALL.nodes)
    assert small.edges.shape[1] == SMALL.edges
    assert degree.max() > 15 * np.median(degree)
    assert degree.mean() > 1.4 * np.median(degree)


def test_most_edges_stay_in_a_class(small: SkewedGraph) -> None:
    within = (small.labels[small.edges[0]] == small.labels[small.edges[1]]).mean()
    assert HOMOPHILY - 0.05 < within < HOMOPHILY + (1 - HOMOPHILY) / 12


def test_splits_have_the_published_shares(small: SkewedGraph) -> None:
    assert small.train.mean() == pytest.approx(REDDIT_SHARES["train"], abs=1e-3)
    assert small.val.mean() == pytest.approx(REDDIT_SHARES["val"], abs=1e-3)


def nearest_centre(features: npt.NDArray[np.float64], made: SkewedGraph) -> float:
    """The accuracy, on test nodes, of the nearest mean of a class's training nodes."""
    mine = [features[made.train & (made.labels == label)].mean(0) for label in range(12)]
    rows = features[made.test]
    found = ((rows[:, None] - np.array(mine)[None]) ** 2).sum(2).argmin(1)
    return float((found == made.labels[made.test]).mean())


def test_a_class_shows_in_a_neighbourhood_more_than_in_a_node(small: SkewedGraph) -> None:
    source, target = small.edges
    shape = (SMALL.nodes, SMALL.nodes)
    links = scipy.sparse.csr_matrix((np.ones(len(source)), (target, source)), shape=shape)
    around = links @ small.features / np.maximum(links.sum(1), 1)
    alone = nearest_centre(small.features.astype(np.float64), small)
    assert 0.4 < alone < 0.9
    assert nearest_centre(np.asarray(around), small) > 0.95


def test_it_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path))
    config = RedditShaped(nodes=80, edges=400, features=9, classes=3)
    graph = load_graph(config, None)
    (kept,) = tmp_path.rglob("arrays.json")
    stamp = kept.stat().st_mtime_ns
    again = load_graph(config, None)
    assert kept.stat().st_mtime_ns == stamp
    assert torch.equal(graph.features, again.features)
    assert torch.equal(graph.edges, again.edges)
    assert not load_graph(config.model_copy(update={"edges": 300}), None).edges.equal(graph.edges)


def test_what_other_code_has_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path))
    config = RedditShaped(nodes=80, edges=400, features=9, classes=3)
    load_graph(config, None)
    monkeypatch.setattr("gnnhpc.data.load_graph.skewed_version", lambda: "other code")
    load_graph(config, None)
    assert len(list(tmp_path.rglob("arrays.json"))) == 2
