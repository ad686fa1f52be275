"""OGB's own folders, read without its package."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gnnhpc.core.errors import InputError
from gnnhpc.data.load_graph import load_graph
from gnnhpc.data.published_graphs import PUBLISHED, PublishedGraph, graph_sizes
from tests.data.test_graphs import check, counts
from tests.tools.data_files import set_facts, write_ogb, write_table

SPLITS = {"ogbn-arxiv": "time", "ogbn-products": "sales_ranking"}


@pytest.fixture(params=SPLITS)
def config(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> PublishedGraph:
    """A graph of 30 nodes in the folder where OGB has it."""
    name = request.param
    set_facts(monkeypatch, name, graph_sizes(30, 60, 5, 4))
    folder = tmp_path / name.replace("-", "_")
    write_ogb(folder, SPLITS[name], nodes=30, columns=5, classes=4)
    return PublishedGraph(name=name)


def test_both_directions_of_every_edge(config: PublishedGraph, tmp_path: Path) -> None:
    graph = load_graph(config, tmp_path)
    check(graph, 5)
    assert graph.edges.shape == (2, 60)
    ring = {(node, (node + 1) % 30) for node in range(30)}
    assert {tuple(ends) for ends in graph.edges.T.tolist()} == ring | {(b, a) for a, b in ring}
    assert counts(graph) == [10, 10, 10]
    assert graph.masks["val"][1]
    assert torch.equal(graph.labels, torch.arange(30) % 4)
    table = gzip.decompress(
        (tmp_path / config.published.folder / "raw/node-feat.csv.gz").read_bytes()
    )
    expected = np.loadtxt(table.decode().splitlines(), delimiter=",", dtype=np.float32)
    assert np.array_equal(graph.features.numpy(), expected)


def test_made_features_need_no_table_of_them(config: PublishedGraph, tmp_path: Path) -> None:
    (tmp_path / config.published.folder / "raw" / "node-feat.csv.gz").unlink()
    with pytest.raises(InputError, match=r"node-feat.csv.gz: found no such file; .*features: made"):
        load_graph(config, tmp_path)
    made = PublishedGraph(name=config.name, features="made")
    assert load_graph(made, tmp_path).features.shape == (30, 5)


@pytest.mark.parametrize(
    ("table", "rows", "message"),
    [
        ("raw/edge", [[0, 30]], "edge.csv.gz: found 1 lines; allowed: .31. as num-edge-list"),
        ("raw/edge", [[0, 1]] * 30 + [[0, 30]], "edge.csv.gz: found 0 to 30; allowed: edges betw"),
        ("raw/edge", [[0, 1, 2]] * 31, "edge.csv.gz: found 3 columns; allowed: 2; the table as"),
        ("raw/node-label", [[0]] * 29, "node-label.csv.gz: found 29 lines; allowed: .30. as num-n"),
        ("raw/node-label", [["a"]] * 30, r"node-label.csv.gz: found a damaged file \(ValueError"),
        ("raw/node-label", [[9]] * 30, "raw: labels: found 9 to 9; allowed: 0 to 3"),
        ("raw/node-feat", [[1, 2]] * 30, r"raw: features: found \[30, 2\]; allowed: \[30, 5\]"),
        ("split/{}/train", [[30]], "train.csv.gz: found node numbers that are none; allowed: 0 t"),
    ],
)
def test_damage_is_named(
    config: PublishedGraph, tmp_path: Path, table: str, rows: list[list[object]], message: str
) -> None:
    name = f"{table.format(SPLITS[config.name])}.csv.gz"
    write_table(tmp_path / config.published.folder / name, rows)
    with pytest.raises(InputError, match=message):
        load_graph(config, tmp_path)


def test_a_cut_off_archive_is_named(config: PublishedGraph, tmp_path: Path) -> None:
    path = tmp_path / config.published.folder / "raw" / "edge.csv.gz"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(InputError, match=r"edge.csv.gz: found a damaged file .*fetch it again"):
        load_graph(config, tmp_path)


@pytest.mark.quick("ogbn-arxiv")
def test_reading_needs_neither_ogb_nor_pyg(config: PublishedGraph, tmp_path: Path) -> None:
    code = f"""
import dataclasses, pathlib, sys
from gnnhpc.data.published_graphs import graph_sizes
from gnnhpc.data.published_graphs import PUBLISHED, PublishedGraph
name = {config.name!r}
PUBLISHED[name] = dataclasses.replace(PUBLISHED[name], facts=graph_sizes(30, 60, 5, 4))
from gnnhpc.data.load_graph import load_graph
assert load_graph(PublishedGraph(name=name), pathlib.Path({str(tmp_path)!r})).nodes == 30
sys.exit("ogb" in sys.modules or "torch_geometric" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_published_sizes() -> None:
    arxiv, products = (PUBLISHED[name].facts for name in SPLITS)
    assert (arxiv.nodes, arxiv.features, arxiv.classes) == (169_343, 128, 40)
    assert (products.nodes, products.features, products.classes) == (2_449_029, 100, 47)
