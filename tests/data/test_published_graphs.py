"""Published graphs: every layout as read from files, the cache, damaged files."""

from __future__ import annotations

import gzip
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.datasets
from pydantic import ValidationError

from gnnhpc.core.errors import InputError
from gnnhpc.data.data_settings import RedditShaped
from gnnhpc.data.load_graph import Graph, load_graph
from gnnhpc.data.published_graphs import PUBLISHED, PublishedGraph, graph_sizes
from gnnhpc.data.registry import parse_data
from tests.tools.data_files import (
    EVIL,
    real_file,
    set_facts,
    write_geom_gcn,
    write_graphsaint,
    write_heterophilous,
    write_npz,
    write_ogb,
    write_planetoid,
    write_reddit,
)

CORA = PublishedGraph(name="cora")


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


def files(folder: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in sorted(folder.rglob("*")) if p.is_file()}


def _write_embedded(path: Path) -> None:
    rng = np.random.default_rng(3)
    path.parent.mkdir(parents=True)
    edges, target = rng.integers(0, 60, (180, 2)), np.arange(60) % 4
    np.savez(path, features=rng.normal(size=(60, 6)), target=target, edges=edges)


def _write_ogb(split: str) -> Callable[[Path], Any]:
    return lambda folder: write_ogb(folder, split, nodes=30, columns=5, classes=4)


NPZ = {"nodes": 240, "columns": 20, "classes": 4}
SMALL = {"nodes": 60, "columns": 6}
TEXT = {"nodes": 60, "columns": 9}
# Writes a graph -> its nodes, edges, features and classes, and its nodes of each split.
LAYOUTS: dict[str, tuple[Callable[[Path], Any], tuple[int, int, int, int], list[int]]] = {
    "cora": (
        lambda raw: write_planetoid(raw.parents[1], "Cora"),
        (700, 4000, 40, 3),
        [60, 500, 100],
    ),
    "photo": (
        lambda raw: write_npz(raw, "amazon_electronics_photo.npz", **NPZ),
        (240, 4000, 20, 4),
        [80, 120, 40],
    ),
    "reddit": (lambda raw: write_reddit(raw, classes=3, **SMALL), (60, 400, 6, 3), [20] * 3),
    "flickr": (lambda raw: write_graphsaint(raw, classes=7, **SMALL), (60, 180, 6, 7), [20] * 3),
    "roman-empire": (
        lambda raw: write_heterophilous(raw / "roman_empire.npz", classes=4, **SMALL),
        (60, 180, 6, 4),
        [30, 15, 15],
    ),
    "actor": (
        lambda raw: write_geom_gcn(raw, "film", binary=True, **TEXT),
        (60, 180, 9, 5),
        [20, 1, 39],
    ),
    "texas": (
        lambda raw: write_geom_gcn(raw, "texas", binary=False, **TEXT),
        (60, 180, 9, 5),
        [20, 1, 39],
    ),
    "lastfm-asia": (lambda raw: _write_embedded(raw / "lastfm_asia.npz"), (60, 180, 6, 4), []),
    "ogbn-arxiv": (_write_ogb("time"), (30, 60, 5, 4), [10] * 3),
    "ogbn-products": (_write_ogb("sales_ranking"), (30, 60, 5, 4), [10] * 3),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_is_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    """And without its features where these are made; nothing is written beside the files."""
    write, sizes, split = LAYOUTS[name]
    set_facts(monkeypatch, name, graph_sizes(*sizes))
    config, root = PublishedGraph(name=name), tmp_path / "root"
    root.mkdir()
    missing = f"found no file that may be read; .*`gnnhpc data get {name}`"
    with pytest.raises(InputError, match=missing):
        load_graph(config, root)
    folder = config.files().directory(root)
    write(folder)
    before = files(root)
    graph = load_graph(config, root)
    check(graph, sizes[2])
    assert graph.nodes == sizes[0]
    assert not split or counts(graph) == split
    dense = config.published.dense
    assert graph.features.layout == (torch.strided if dense else torch.sparse_csr)
    assert files(root) == before
    unneeded = config.published.feature_files
    for file in unneeded:
        (folder / file).unlink()
    made = load_graph(PublishedGraph(name=name, features="made"), root)
    check(made, sizes[2])
    assert torch.equal(made.edges, graph.edges)
    assert torch.equal(made.labels, graph.labels)
    assert made.features.layout == torch.sparse_csr
    if unneeded:
        with pytest.raises(InputError, match=f"{unneeded[0]}: found no file that may be read"):
            load_graph(config, root)


def test_features_of_planetoid_sum_to_one(small: Path) -> None:
    graph = load_graph(CORA, small)
    assert torch.equal(graph.labels[:60], torch.arange(60) % 3)
    sums = graph.features.to_dense().sum(1)
    assert torch.allclose(sums[sums > 0], torch.ones(()))


def test_graphs_of_ogb_have_both_directions_of_every_edge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    set_facts(monkeypatch, "ogbn-arxiv", graph_sizes(30, 60, 5, 4))
    LAYOUTS["ogbn-arxiv"][0](tmp_path / "ogbn_arxiv")
    graph = load_graph(PublishedGraph(name="ogbn-arxiv"), tmp_path)
    ring = {(node, (node + 1) % 30) for node in range(30)}
    assert {tuple(ends) for ends in graph.edges.T.tolist()} == ring | {(b, a) for a, b in ring}
    assert graph.masks["val"][1]
    assert torch.equal(graph.labels, torch.arange(30) % 4)
    table = gzip.decompress((tmp_path / "ogbn_arxiv/raw/node-feat.csv.gz").read_bytes())
    expected = np.loadtxt(table.decode().splitlines(), delimiter=",", dtype=np.float32)
    assert np.array_equal(graph.features.numpy(), expected)


def test_another_of_ten_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    write, sizes, _ = LAYOUTS["roman-empire"]
    set_facts(monkeypatch, "roman-empire", graph_sizes(*sizes))
    write(tmp_path / "roman_empire" / "raw")
    first, third = (
        load_graph(PublishedGraph(name="roman-empire", split=n), tmp_path) for n in (0, 2)
    )
    assert torch.equal(third.masks["train"], first.masks["train"].roll(-2))
    assert PublishedGraph(name="roman-empire").content() == {"name": "roman-empire"}
    assert PublishedGraph(name="roman-empire", split=2).content()["split"] == 2


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"name": "photo", "split": 1}, "split: found 1; allowed: 0, photo has no other"),
        ({"name": "actor", "split": 10}, "split: found 10; allowed: 0 to 9"),
    ],
)
def test_what_cannot_be_used_is_refused(value: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        parse_data(value)


def test_a_second_start_reads_the_cache(
    small: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which nobody can change, and which is built anew for changed files."""
    edges = load_graph(CORA, small).edges.clone()
    before = files(cache)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch_geometric.datasets", None)
        again = load_graph(CORA, small)
        assert torch.equal(again.edges, edges)
        again.edges[:] = 0
        assert torch.equal(load_graph(CORA, small).edges, edges)
    assert files(cache) == before
    labels = small / "Cora" / "raw" / "ind.cora.y"
    os.utime(labels, ns=(0, labels.stat().st_mtime_ns + 1))
    load_graph(CORA, small)
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 2
    (tmp_path / "file").touch()
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(InputError, match=r"file/cache: cache: found .*named by \$GNNHPC_CACHE"):
        load_graph(CORA, small)


@pytest.mark.parametrize(
    ("part", "content", "message"),
    [
        ("graph", b"\x80\x02c", r"ind.cora.graph: found a damaged file .*fetch it again"),
        ("ty", EVIL, r"ind.cora.ty: found a damaged file \(it names posix.mkdir"),
        ("ally", pickle.dumps(np.ones((9, 3))), "raw: found damaged files"),
        ("graph", pickle.dumps({0: [1, 5000]}), "raw: found damaged files .*ends of edges from"),
        ("test.index", b"one\n", "raw: found damaged files"),
    ],
)
def test_damage_is_named(
    small: Path, monkeypatch: pytest.MonkeyPatch, part: str, content: bytes, message: str
) -> None:
    monkeypatch.chdir(small)
    (small / "Cora" / "raw" / f"ind.cora.{part}").write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_graph(CORA, small)
    assert not (small / "was-here").exists()


def test_sizes_must_be_the_published_ones(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_facts(monkeypatch, "cora", graph_sizes(701, 4000, 40, 3))
    with pytest.raises(InputError, match=r"Cora/raw: found damaged files .*700 nodes, not 701"):
        load_graph(CORA, small)


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
    graph = load_graph(config, real_file(config.published.files.folder).parents[1])
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


OF_PYG = {name: row for name, row in PUBLISHED.items() if row.dataset}


@pytest.mark.parametrize("name", OF_PYG)
def test_files_are_those_that_pygs_class_looks_for(name: str, tmp_path: Path) -> None:
    row = OF_PYG[name]
    cls = getattr(torch_geometric.datasets, str(row.dataset))
    dataset = cls.__new__(cls)
    dataset.root = str(tmp_path if row.argument else row.files.directory(tmp_path).parent)
    names = {"Coauthor": "CS" if name == "cs" else "Physics", "Planetoid": row.argument}
    lower = (row.argument or "").lower().replace("-", "_")
    dataset.name = names.get(str(row.dataset), lower)
    dataset.split = "public"
    found = dataset.raw_file_names
    listed = [found] if isinstance(found, str) else found
    assert sorted(listed) == sorted(row.files.names)
    assert Path(dataset.raw_dir) == row.files.directory(tmp_path)


def test_half_precision_rounds_features_and_nothing_else(cache: Path) -> None:
    small = {"nodes": 60, "edges": 400, "features": 9, "classes": 3}
    whole = load_graph(RedditShaped(**small), None)
    for _ in ("made", "cached"):
        rounded = load_graph(RedditShaped(**small, storage="float16"), None)
        assert torch.equal(rounded.features, whole.features.half())
        assert torch.equal(rounded.edges, whole.edges)
    assert len(list(cache.rglob("dense.npy"))) == 2
    assert len(list(cache.rglob("edges.npy"))) == 1
