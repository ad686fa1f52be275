"""Graphs through PyG's readers, the cache of them, and what is said of damaged files."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnnhpc.core.errors import InputError
from gnnhpc.data.data_settings import SyntheticCitation, shchur_split
from gnnhpc.data.load_graph import Graph, load_graph
from gnnhpc.data.published_graphs import PublishedGraph, graph_sizes
from tests.tools.data_files import real_file, set_facts, write_npz, write_planetoid


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> Path:
    """A root with a Cora of 700 nodes, 40 columns, 3 classes, as if published so."""
    set_facts(monkeypatch, "cora", graph_sizes(700, 4000, 40, 3))
    write_planetoid(tmp_path / "root", "Cora")
    return tmp_path / "root"


def check(graph: Graph, features: int) -> None:
    """What every loaded graph promises."""
    assert graph.features.shape == (graph.nodes, features)
    assert graph.features.dtype == torch.float32
    source, target = graph.edges
    assert (torch.diff(target * graph.nodes + source) > 0).all()
    assert (source != target).all()
    assert 0 <= int(source.min()) <= int(source.max()) < graph.nodes
    assert sorted(graph.masks) == ["test", "train", "val"]
    assert int(torch.stack(list(graph.masks.values())).sum(0).max()) == 1
    assert 0 <= int(graph.labels.min()) <= int(graph.labels.max()) < graph.classes


def counts(graph: Graph) -> list[int]:
    return [int(graph.masks[key].sum()) for key in ("train", "val", "test")]


def equal(a: Graph, b: Graph) -> bool:
    return (
        torch.equal(a.features.to_dense(), b.features.to_dense())
        and torch.equal(a.edges, b.edges)
        and torch.equal(a.labels, b.labels)
        and all(torch.equal(a.masks[key], b.masks[key]) for key in a.masks)
    )


def files(folder: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in sorted(folder.rglob("*")) if p.is_file()}


def test_planetoid_files(small: Path) -> None:
    before = files(small)
    graph = load_graph(PublishedGraph(name="cora"), small)
    check(graph, 40)
    assert graph.features.layout == torch.sparse_csr
    assert counts(graph) == [60, 500, 100]
    assert torch.equal(graph.labels[:60], torch.arange(60) % 3)
    sums = graph.features.to_dense().sum(1)
    assert torch.allclose(sums[sums > 0], torch.ones(()))
    assert files(small) == before
    assert not (small / "Cora" / "processed").exists()


def test_a_second_start_reads_the_cache_without_pyg(small: Path, cache: Path) -> None:
    graph = load_graph(PublishedGraph(name="cora"), small)
    before = files(cache)
    code = f"""
import sys, pathlib
import dataclasses
from gnnhpc.data.published_graphs import graph_sizes
from gnnhpc.data.published_graphs import PUBLISHED
facts = graph_sizes(700, 4000, 40, 3)
PUBLISHED["cora"] = dataclasses.replace(PUBLISHED["cora"], facts=facts)
from gnnhpc.data.load_graph import load_graph
from gnnhpc.data.published_graphs import graph_sizes
from gnnhpc.data.published_graphs import PublishedGraph
graph = load_graph(PublishedGraph(name="cora"), pathlib.Path({str(small)!r}))
assert graph.edges.shape == {tuple(graph.edges.shape)}
assert graph.features.values().sum() == {float(graph.features.values().sum())}
sys.exit("torch_geometric" in sys.modules or "scipy" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    again = load_graph(PublishedGraph(name="cora"), small)
    assert equal(graph, again)
    again.labels[:] = 0
    assert files(cache) == before
    assert equal(graph, load_graph(PublishedGraph(name="cora"), small))


def test_the_cache_is_built_anew_for_changed_or_damaged_files(small: Path, cache: Path) -> None:
    graph = load_graph(PublishedGraph(name="cora"), small)
    (kept,) = (path for path in cache.iterdir() if path.is_dir())
    (kept / "edges.npy").write_bytes(b"short")
    assert equal(graph, load_graph(PublishedGraph(name="cora"), small))
    (kept / "test.npy").unlink()
    assert equal(graph, load_graph(PublishedGraph(name="cora"), small))
    (kept / "labels.npy").write_bytes(b"")
    assert equal(graph, load_graph(PublishedGraph(name="cora"), small))
    labels = small / "Cora" / "raw" / "ind.cora.y"
    stat = labels.stat()
    os.utime(labels, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    load_graph(PublishedGraph(name="cora"), small)
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 2


def test_no_place_for_a_cache(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = load_graph(PublishedGraph(name="cora"), small)
    (tmp_path / "file").touch()
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path / "file" / "cache"))
    assert equal(graph, load_graph(PublishedGraph(name="cora"), small))


def test_made_features_need_no_feature_files(small: Path) -> None:
    real = load_graph(PublishedGraph(name="cora"), small)
    for part in ("x", "tx", "allx"):
        (small / "Cora" / "raw" / f"ind.cora.{part}").unlink()
    made = load_graph(PublishedGraph(name="cora", features="made"), small)
    check(made, 40)
    assert torch.equal(made.edges, real.edges)
    assert torch.equal(made.labels, real.labels)
    assert counts(made) == counts(real)
    with pytest.raises(InputError, match=r"raw/ind.cora.x: found no such file"):
        load_graph(PublishedGraph(name="cora"), small)


class _Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("was-here",)


@pytest.mark.parametrize(
    ("part", "content", "message"),
    [
        ("graph", b"\x80\x02c", r"ind.cora.graph: found a damaged file .*fetch it again"),
        ("ty", pickle.dumps(_Evil()), r"ind.cora.ty: found a damaged file \(it names posix.mkdir"),
        ("ally", pickle.dumps(np.ones((9, 3))), "raw: found damaged files"),
        ("graph", pickle.dumps({0: [1, 5000]}), "raw: edges: "),
        ("test.index", b"one\n", "raw: found damaged files"),
    ],
)
def test_damage_is_named(
    small: Path, monkeypatch: pytest.MonkeyPatch, part: str, content: bytes, message: str
) -> None:
    monkeypatch.chdir(small)
    (small / "Cora" / "raw" / f"ind.cora.{part}").write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_graph(PublishedGraph(name="cora"), small)
    assert not (small / "was-here").exists()


def test_sizes_must_be_the_published_ones(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_facts(monkeypatch, "cora", graph_sizes(701, 4000, 40, 3))
    with pytest.raises(InputError, match=r"Cora/raw: nodes: found 700; allowed: 701"):
        load_graph(PublishedGraph(name="cora"), small)


@pytest.mark.parametrize(
    ("name", "folder", "file"),
    [
        ("photo", "Photo", "amazon_electronics_photo.npz"),
        ("physics", "Physics", "ms_academic_phy.npz"),
        ("computers", "Computers", "amazon_electronics_computers.npz"),
        ("cs", "CS", "ms_academic_cs.npz"),
        ("dblp", "dblp", "dblp.npz"),
        ("cora-ml", "cora_ml", "cora_ml.npz"),
    ],
)
def test_npz_files_and_their_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path, name: Any, folder: str, file: str
) -> None:
    set_facts(monkeypatch, name, graph_sizes(240, 4000, 20, 4))
    path = write_npz(tmp_path / folder / "raw", file, nodes=240, columns=20, classes=4)
    graph = load_graph(PublishedGraph(name=name), tmp_path)
    check(graph, 20)
    assert counts(graph) == [80, 120, 40]
    assert set(graph.features.values().tolist()) == {1.0}
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(InputError, match=f"{folder}/raw: found damaged files"):
        load_graph(PublishedGraph(name=name), tmp_path)


def test_labels_out_of_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    set_facts(monkeypatch, "photo", graph_sizes(240, 4000, 20, 4))
    raw = tmp_path / "Photo" / "raw"
    write_npz(raw, "amazon_electronics_photo.npz", nodes=240, columns=20, classes=5)
    with pytest.raises(InputError, match=r"raw: labels: found 0 to 4; allowed: 0 to 3"):
        load_graph(PublishedGraph(name="photo"), tmp_path)


def test_reddit_files_stay_dense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    scipy_sparse = pytest.importorskip("scipy.sparse")
    set_facts(monkeypatch, "reddit", graph_sizes(50, 400, 6, 3))
    raw = tmp_path / "Reddit" / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    feature = rng.normal(size=(50, 6)).astype(np.float32)
    np.savez(
        raw / "reddit_data.npz",
        feature=feature,
        label=np.arange(50) % 3,
        node_types=np.arange(50) % 3 + 1,
    )
    edges = scipy_sparse.random(50, 50, 0.1, "coo", np.float32, rng)
    scipy_sparse.save_npz(raw / "reddit_graph.npz", edges)
    graph = load_graph(PublishedGraph(name="reddit"), tmp_path)
    check(graph, 6)
    assert torch.equal(graph.features, torch.from_numpy(feature))
    assert counts(graph) == [17, 17, 16]


def test_a_split_is_20_and_30_a_class_and_the_rest() -> None:
    labels = np.arange(1000) % 5
    train, val, test = shchur_split(labels, 5, np.random.default_rng(0))
    assert np.bincount(labels[train]).tolist() == [20] * 5
    assert np.bincount(labels[val]).tolist() == [30] * 5
    assert (train.astype(int) + val + test == 1).all()


def test_a_generated_graph_is_a_graph() -> None:
    config = SyntheticCitation(nodes=300, edges=1200, features=64, classes=4)
    graph = load_graph(config, None)
    check(graph, 64)
    assert equal(graph, load_graph(config, None))


@pytest.mark.parametrize(
    ("name", "features", "split"),
    [
        ("cora", "real", [140, 500, 1000]),
        ("citeseer", "real", [120, 500, 1000]),
        ("pubmed", "made", [60, 500, 1000]),
        ("photo", "real", [160, 240, 7250]),
        ("cs", "real", [300, 450, 17_583]),
    ],
)
def test_real_graphs_have_the_published_sizes(
    cache: Path, name: Any, features: Any, split: list[int]
) -> None:
    config = PublishedGraph(name=name, features=features)
    facts = config.facts()
    graph = load_graph(config, real_file(config.published.folder).parents[1])
    check(graph, facts.features)
    assert graph.nodes == facts.nodes
    assert graph.edges.shape == (2, facts.edges)
    assert counts(graph) == split
    assert int(graph.labels.max()) + 1 == graph.classes == facts.classes
    source, target = graph.edges
    assert torch.equal((source * graph.nodes + target).sort()[0], target * graph.nodes + source)
    if features == "made":
        density = graph.features.values().numel() / (facts.nodes * facts.features)
        assert density == pytest.approx(0.1, abs=0.005)
