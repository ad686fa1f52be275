"""The second reading of the data gives what the loaders give, by code of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gnnhpc.batches.image_loader import epoch_indices
from gnnhpc.check.plain.graph import plain_graph
from gnnhpc.check.plain.images import MADE, plain_images
from gnnhpc.check.plain.masks import plain_weights
from gnnhpc.check.plain.order import PlainOrder
from gnnhpc.core.facts import Facts
from gnnhpc.data.graphs import load_graph
from gnnhpc.data.images import load_images
from gnnhpc.data.own_graph import OwnGraph
from gnnhpc.data.published import PublishedGraph
from gnnhpc.data.settings import Cifar10, Data, SyntheticCifar10, SyntheticCitation
from gnnhpc.kernels.mask import layer_mask
from tests.tools.data_files import (
    as_csr,
    cifar_records,
    own_arrays,
    set_facts,
    write_binary,
    write_npz,
    write_planetoid,
    write_python,
)


def same_images(data: Data, root: Path | None) -> None:
    for split in ("train", "test"):
        loaded, plain = load_images(data, root, split), plain_images(data, root, split)
        assert plain.samples == len(loaded)
        labels = [plain.label(n) for n in range(plain.samples)]
        assert labels == loaded.labels.tolist()
        ids = np.arange(plain.readable)
        wanted = loaded.batch(ids).numpy()
        found = np.stack([plain.pixels(int(n)) for n in ids]).astype(np.float32) / np.float32(255)
        assert np.array_equal(found, wanted)


def test_published_images_in_both_layouts(tmp_path: Path) -> None:
    for write in (write_binary, write_python):
        root = tmp_path / write.__name__
        root.mkdir()
        write(root, "data_batch_1", cifar_records(5, 1))
        write(root, "data_batch_3", cifar_records(4, 2))
        write(root, "test_batch", cifar_records(3, 3))
        same_images(Cifar10(), root)


def test_made_images_of_several_blocks() -> None:
    same_images(SyntheticCifar10(train=2 * MADE + 7, test=12, image_size=4, classes=7), None)


@pytest.mark.parametrize("replica", range(3))
def test_the_order_is_that_of_the_loader(replica: int) -> None:
    order = PlainOrder(50, 4, 3, replica, seed=5)
    for step in range(3 * order.steps_per_epoch):
        epoch, wanted = epoch_indices(50, 4, 3, replica, 5, step)
        assert epoch == step // order.steps_per_epoch
        assert np.array_equal(order.ids(step), wanted)


def test_another_order_is_explained() -> None:
    order = PlainOrder(16, 4, 2, 0, seed=1)
    ids = {
        "a sample comes twice": np.array([1, 1, 2, 3]),
        "sample 16 is none of the split's 16": np.array([1, 2, 3, 16]),
        "in another order": order.ids(2)[::-1],
        "epoch 1 has the order of epoch 0": order.ids(0).copy(),
        "those of the step before": order.ids(1).copy(),
        "replica 0 has the samples of replica 1": PlainOrder(16, 4, 2, 1, seed=1).ids(2),
        "not those of the epoch's permutation": PlainOrder(16, 4, 2, 0, seed=2).ids(2),
    }
    for words, found in ids.items():
        assert words in order.explain(2, found)


@pytest.mark.parametrize("p", [0.1, 0.6, 1 - 1e-12])
def test_masks_are_those_of_the_layers(p: float) -> None:
    entries = np.array([0, 1, 7, 2**31, 2**40 + 3, *range(10**6, 10**6 + 500)])
    for seed, step, name in ((0, 0, "layer0.dropout"), (7, 123, "layer1.dropout")):
        mask = layer_mask(seed, step, name, p)
        wanted = mask.weights(torch.from_numpy(entries), torch.float64).numpy()
        assert np.array_equal(plain_weights(seed, step, name, p, entries), wanted)


def same_graph(data: Data, root: Path | None) -> None:
    loaded, plain = load_graph(data, root), plain_graph(data, root)
    assert np.array_equal(plain.labels, loaded.labels.numpy())
    assert np.array_equal(np.stack([plain.source, plain.target]), loaded.edges.numpy())
    for split, mask in loaded.masks.items():
        assert np.array_equal(plain.masks[split], mask.numpy()), split
    features = loaded.features.to_dense().double().numpy()
    for node in range(plain.nodes):
        found, wanted = plain.features(node), features[node]
        if plain.divided:
            error = (np.count_nonzero(wanted) + 2) * np.finfo(np.float32).eps
            assert (np.abs(found - wanted) <= error * np.abs(wanted)).all()
        else:
            assert np.array_equal(found.astype(np.float32), wanted.astype(np.float32))
    for node in (0, plain.nodes - 1):
        sources, numbers = plain.edges_into(node)
        assert np.array_equal(loaded.edges[:, numbers].numpy()[0], sources)
        assert plain.degrees(np.array([node])) == len(sources)


def test_made_graph() -> None:
    same_graph(SyntheticCitation(nodes=120, edges=500, features=24), None)


@pytest.mark.parametrize("sparse", [False, True])
def test_own_graph(tmp_path: Path, sparse: bool) -> None:
    path = tmp_path / "graph.npz"
    arrays = own_arrays()
    np.savez(path, **(as_csr(arrays) if sparse else arrays))
    same_graph(OwnGraph(path=str(path)).planned(tmp_path), None)


def test_planetoid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path / "cache"))
    set_facts(monkeypatch, "cora", Facts("graph", 40, 3, nodes=700, edges=4_000))
    write_planetoid(tmp_path, "Cora")
    same_graph(PublishedGraph(name="cora"), tmp_path)


def test_graph_without_a_published_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path / "cache"))
    set_facts(monkeypatch, "photo", Facts("graph", 30, 3, nodes=200, edges=4_000))
    raw = tmp_path / "Photo" / "raw"
    write_npz(raw, "amazon_electronics_photo.npz", nodes=200, columns=30, classes=3)
    same_graph(PublishedGraph(name="photo"), tmp_path)
