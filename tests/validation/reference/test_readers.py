"""The independent readers return what the run's loaders return."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.data.custom_graph import CustomGraph
from gnnhpc.data.data_settings import (
    Cifar10,
    Data,
    RedditShaped,
    SyntheticCifar10,
    SyntheticCitation,
    SyntheticGraphs,
)
from gnnhpc.data.images import load_images
from gnnhpc.data.load_graph import load_graph, load_graph_set
from gnnhpc.data.published_graphs import PublishedGraph
from gnnhpc.validation.readers.read_graph_sets import read_graph_set
from gnnhpc.validation.readers.read_graphs import Features, read_graph, sorted_edges
from gnnhpc.validation.readers.read_images import read_images
from tests.tools.data_files import (
    as_csr,
    cifar_records,
    custom_arrays,
    set_facts,
    write_binary,
    write_npz,
    write_planetoid,
    write_python,
)

NODES = 5
nodes = st.integers(0, NODES - 1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("write", [write_binary, write_python])
def test_published_images(tmp_path: Path, write: Callable[..., Path]) -> None:
    for name, count in (("data_batch_1", 5), ("data_batch_3", 4), ("test_batch", 3)):
        write(tmp_path, name, cifar_records(count, count))
    compare_images(Cifar10(), tmp_path)


def test_synthetic_images() -> None:
    compare_images(SyntheticCifar10(train=60, test=12, image_size=4, classes=7), None)


def compare_images(data: Data, root: Path | None) -> None:
    for split in ("train", "test"):
        loaded, (pixels, labels) = load_images(data, root, split), read_images(data, root, split)
        assert np.array_equal(pixels, loaded.pixels)
        assert np.array_equal(labels, loaded.labels)


def custom_graph(folder: Path, *, sparse: bool) -> Data:
    path, arrays = folder / "graph.npz", custom_arrays()
    np.savez(path, **(as_csr(arrays) if sparse else arrays))
    return CustomGraph(path=str(path)).planned(folder)


@pytest.mark.parametrize(
    "data",
    [
        SyntheticCitation(nodes=120, edges=500, features=24),
        RedditShaped(nodes=80, edges=400, features=9, classes=3),
        RedditShaped(nodes=80, edges=400, features=9, classes=3, storage="float16"),
    ],
    ids=lambda data: f"{data.name}-{getattr(data, 'storage', '')}",
)
def test_graph_of_a_generator(data: Data) -> None:
    compare_graph(data, None)


@pytest.mark.parametrize("sparse", [False, True])
def test_custom_graph(tmp_path: Path, sparse: bool) -> None:
    compare_graph(custom_graph(tmp_path, sparse=sparse), None)


def test_planetoid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_facts(monkeypatch, "cora", Facts("graph", 40, 3, nodes=700, edges=4_000))
    write_planetoid(tmp_path, "Cora")
    compare_graph(PublishedGraph(name="cora"), tmp_path)


def test_graph_without_a_published_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_facts(monkeypatch, "photo", Facts("graph", 30, 3, nodes=200, edges=4_000))
    raw = tmp_path / "Photo" / "raw"
    write_npz(raw, "amazon_electronics_photo.npz", nodes=200, columns=30, classes=3)
    compare_graph(PublishedGraph(name="photo"), tmp_path)


def compare_graph(data: Data, root: Path | None) -> None:
    loaded, read = load_graph(data, root), read_graph(data, root)
    assert np.array_equal(read.labels, loaded.labels.numpy())
    assert np.array_equal(np.stack([read.source, read.target]), loaded.edges.numpy())
    for split, mask in loaded.masks.items():
        assert np.array_equal(read.masks[split], mask.numpy()), split
    compare_features(read.features, loaded.features, rounded=read.rounded)


def compare_features(read: Features, loaded: torch.Tensor, *, rounded: bool = False) -> None:
    expected = loaded.to_dense().double().numpy()
    actual = dense(read).astype(np.float64)
    assert np.allclose(actual, expected, rtol=1e-5 if rounded else 0, atol=0)


def dense(features: Features) -> npt.NDArray[np.generic]:
    if isinstance(features, scipy.sparse.csr_array):
        assert features.has_sorted_indices
        return features.toarray()
    return features


@pytest.mark.parametrize("features", ["one-hot", "degree", "constant"])
def test_graph_set_of_the_generator(features: str) -> None:
    data = SyntheticGraphs(graphs=20, nodes=9, features=features, split=1)
    loaded, read = load_graph_set(data, None), read_graph_set(data, None)
    assert np.array_equal(read.labels, loaded.labels.numpy())
    assert np.array_equal(np.stack([read.source, read.target]), loaded.edges.numpy())
    assert np.array_equal(np.bincount(read.graph_of), loaded.first.diff().numpy())
    for split, mask in loaded.masks.items():
        assert np.array_equal(read.masks[split], mask.numpy()), split
    compare_features(read.features, loaded.features)


@given(pairs=st.lists(st.tuples(nodes, nodes), max_size=12))
def test_edges_are_sorted_once_each_and_without_loops(pairs: list[tuple[int, int]]) -> None:
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    source, target = sorted_edges(ends[:, 0], ends[:, 1], NODES)
    expected = sorted({(t, s) for s, t in pairs if s != t})
    assert list(zip(target.tolist(), source.tolist(), strict=True)) == expected
