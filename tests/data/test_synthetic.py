"""Synthetic data: the same every time, well formed at any size, and with something to learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnhpc.data.data_settings import (
    REDDIT_SHARES,
    RedditShaped,
    SyntheticCifar10,
    SyntheticCitation,
)
from gnnhpc.data.load_graph import load_graph
from gnnhpc.data.synthetic.citation import synthetic_graph
from gnnhpc.data.synthetic.images import synthetic_images
from gnnhpc.data.synthetic.ordered_edges import Arrays, distinct
from gnnhpc.data.synthetic.reddit_shaped import skewed_graph

SMALL = RedditShaped(nodes=6_000, edges=300_000, features=64, classes=12)


def test_images_are_the_same_whatever_is_asked_for_with_them() -> None:
    few = synthetic_images(SyntheticCifar10(train=30), "train")
    many = synthetic_images(SyntheticCifar10(train=1200), "train")
    assert np.array_equal(few[0], many[0][:30])
    assert np.array_equal(few[1], many[1][:30])
    test = synthetic_images(SyntheticCifar10(test=30), "test")
    assert not np.array_equal(few[0], test[0])
    assert np.bincount(many[1][:1000]).tolist() == [100] * 10


@pytest.mark.parametrize(("size", "classes"), [(2, 2), (8, 3), (32, 40)])
def test_images_of_any_size(size: int, classes: int) -> None:
    pixels, labels = synthetic_images(
        SyntheticCifar10(train=50, image_size=size, classes=classes), "train"
    )
    assert pixels.shape == (50, 3, size, size)
    assert pixels.dtype == np.uint8
    assert labels.min() >= 0
    assert labels.max() < classes


def test_mean_colour_tells_most_classes() -> None:
    config = SyntheticCifar10(train=500, test=300)
    (seen, seen_labels), (pixels, labels) = (
        synthetic_images(config, split) for split in ("train", "test")
    )
    colours = seen.mean((2, 3))
    centres = np.stack([colours[seen_labels == c].mean(0) for c in range(10)])
    distance = np.linalg.norm(pixels.mean((2, 3))[:, None] - centres, axis=2)
    right = (distance.argmin(1) == labels).mean()
    assert 0.6 < right < 1


def check_edges(graph: Arrays, nodes: int, edges: int) -> None:
    """Edges are ordered, single, symmetric, and no more than was asked for."""
    source, target = graph["edges"]
    key = target * nodes + source
    assert (np.diff(key) > 0).all()
    assert (source != target).all()
    assert np.array_equal(np.sort(source * nodes + target), key)
    assert len(source) <= edges + 1


def check_rows(rows: Arrays, nodes: int, columns: int) -> None:
    assert len(rows["indptr"]) == nodes + 1
    assert rows["indptr"][0] == 0
    assert rows["indptr"][-1] == len(rows["columns"]) == len(rows["values"])
    row = np.repeat(np.arange(nodes), np.diff(rows["indptr"]))
    assert (np.diff(row * columns + rows["columns"]) > 0).all()
    assert np.diff(rows["indptr"]).min() >= 1
    assert 0 <= rows["columns"].min() <= rows["columns"].max() < columns
    assert np.bincount(row, rows["values"] ** 2) == pytest.approx(1, abs=1e-5)


@settings(max_examples=40, deadline=None)
@given(st.integers(10, 400), st.integers(10, 3000), st.integers(8, 90), st.integers(2, 60))
def test_graphs_of_any_size(nodes: int, edges: int, features: int, classes: int) -> None:
    config = SyntheticCitation(nodes=nodes, edges=edges, features=features, classes=classes)
    graph = synthetic_graph(config)
    check_edges(graph, nodes, edges)
    check_rows(graph, nodes, features)
    masks = np.stack([graph["train"], graph["val"], graph["test"]])
    assert masks.sum(0).max() == 1
    assert masks.sum(1).min() >= 1
    assert 0 <= graph["labels"].min() <= graph["labels"].max() < classes


@given(st.lists(st.integers(-50, 50)))
def test_distinct(keys: list[int]) -> None:
    assert distinct(np.array(keys, dtype=np.int64)).tolist() == sorted(set(keys))


@pytest.mark.parametrize("nodes", [10, 150, 2_000])
@pytest.mark.parametrize("classes", [2, 7])
def test_it_is_known_before_it_is_made_how_many_nodes_are_trained_on(
    nodes: int, classes: int
) -> None:
    config = SyntheticCitation(nodes=nodes, edges=4 * nodes, classes=classes)
    assert 0 < int(synthetic_graph(config)["train"].sum()) <= config.facts().train
    shaped = RedditShaped(nodes=nodes, edges=4 * nodes, features=8, classes=classes)
    assert int(skewed_graph(shaped)["train"].sum()) == shaped.facts().train


@settings(max_examples=40, deadline=None)
@given(st.integers(10, 300), st.integers(10, 3_000), st.integers(8, 20), st.integers(2, 9))
def test_graphs_of_any_size_are_well_formed(
    nodes: int, edges: int, features: int, classes: int
) -> None:
    config = RedditShaped(nodes=nodes, edges=edges, features=features, classes=classes)
    made, again = skewed_graph(config), skewed_graph(config)
    check_edges(made, nodes, edges)
    assert made["dense"].shape == (nodes, features)
    assert made["dense"].dtype == np.float32
    assert (made["train"].astype(int) + made["val"] + made["test"] == 1).all()
    assert made["train"].any()
    assert all(np.array_equal(array, again[key]) for key, array in made.items())


def test_reddits_shape_is_skewed_and_has_the_published_shares() -> None:
    made = skewed_graph(SMALL)
    labels, (source, target) = made["labels"], made["edges"]
    degree = np.bincount(target, minlength=SMALL.nodes)
    assert len(source) == SMALL.edges
    assert degree.max() > 15 * np.median(degree)
    assert 0.7 < (labels[source] == labels[target]).mean() < 0.8
    for split, share in REDDIT_SHARES.items():
        assert made[split].mean() == pytest.approx(share, abs=1e-3)


def test_it_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path))
    config = RedditShaped(nodes=80, edges=400, features=9, classes=3)
    graph = load_graph(config, None)
    (kept,) = tmp_path.rglob("edges.npy")
    stamp = kept.stat().st_mtime_ns
    again = load_graph(config, None)
    assert kept.stat().st_mtime_ns == stamp
    assert torch.equal(graph.features, again.features)
    assert torch.equal(graph.edges, again.edges)
    assert not load_graph(config.model_copy(update={"edges": 300}), None).edges.equal(graph.edges)
