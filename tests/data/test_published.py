"""The table of published graphs: facts as documented, and every layout read from files."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.datasets
from pydantic import ValidationError

from gnnhpc.core.errors import InputError
from gnnhpc.data.load_graph import load_graph
from gnnhpc.data.published_graphs import PUBLISHED, PublishedGraph, Pyg, graph_facts
from gnnhpc.data.registry import allowed_data, parse_data
from tests.data.test_graphs import check, counts
from tests.tools.data_files import (
    set_facts,
    write_geom_gcn,
    write_graphsaint,
    write_heterophilous,
)

OF_PYG = {name: row for name, row in PUBLISHED.items() if isinstance(row.reader, Pyg)}


def documented(reader: Pyg) -> list[int]:
    """Nodes, edges, features and classes in the documentation of PyG's class."""
    words = getattr(torch_geometric.datasets, reader.dataset).__doc__
    row = rf"- {re.escape(reader.argument)}\n" if reader.argument else "#(?:classes|tasks)\n"
    cells = re.search(rf"{row}((?:\s*\*?\s*- [\d,]+\n?)+)", words, re.IGNORECASE)
    if cells is None:
        said = re.search(r"([\d,]+) nodes,\s+([\d,]+) edges, (\d+) node features and (\d+)", words)
        assert said is not None
        return [int(number.replace(",", "")) for number in said.groups()]
    return [int(number.replace(",", "")) for number in re.findall(r"[\d,]+", cells[1])][:4]


@pytest.mark.parametrize("name", OF_PYG)
def test_facts_are_those_of_pygs_documentation(name: str) -> None:
    row = OF_PYG[name]
    assert isinstance(row.reader, Pyg)
    nodes, edges, features, classes = documented(row.reader)
    # The heterophilous graphs are documented with each edge counted once.
    directions = 2 if row.reader.dataset == "HeterophilousGraphDataset" else 1
    found = dataclasses.replace(row.facts, train=0)
    assert found == graph_facts(nodes, directions * edges, features, classes)


@pytest.mark.parametrize("name", OF_PYG)
def test_files_are_those_that_pygs_class_looks_for(name: str, tmp_path: Path) -> None:
    row = OF_PYG[name]
    assert isinstance(row.reader, Pyg)
    cls = getattr(torch_geometric.datasets, row.reader.dataset)
    dataset = cls.__new__(cls)
    dataset.root = str(tmp_path if row.reader.argument else row.directory(tmp_path).parent)
    names = {"Coauthor": "CS" if name == "cs" else "Physics", "Planetoid": row.reader.argument}
    lower = (row.reader.argument or "").lower().replace("-", "_")
    dataset.name = names.get(row.reader.dataset, lower)
    dataset.split = "public"
    found = dataset.raw_file_names
    listed = [found] if isinstance(found, str) else found
    assert sorted(listed) == sorted(row.files)
    assert Path(dataset.raw_dir) == row.directory(tmp_path)


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_downloaded_is_what_is_needed(name: str) -> None:
    row = PUBLISHED[name]
    single = [one.file for one in row.downloads if not one.archive]
    assert single in ([], list(row.files))
    assert all(one.url.startswith("http") for one in row.downloads)


Write = Callable[[Path], Any]
LAYOUTS: dict[str, tuple[Write, tuple[int, int, int, int], list[int]]] = {
    "flickr": (
        lambda raw: write_graphsaint(raw, nodes=60, columns=6, classes=7),
        (60, 180, 6, 7),
        [20, 20, 20],
    ),
    "reddit2": (
        lambda raw: write_graphsaint(raw, nodes=60, columns=6, classes=4),
        (60, 180, 6, 4),
        [20, 20, 20],
    ),
    "roman-empire": (
        lambda raw: write_heterophilous(
            raw / "roman_empire.npz", nodes=60, columns=6, classes=4
        ),
        (60, 180, 6, 4),
        [30, 15, 15],
    ),
    "actor": (
        lambda raw: write_geom_gcn(raw, "film", nodes=60, columns=9, binary=True),
        (60, 180, 9, 5),
        [20, 1, 39],
    ),
    "texas": (
        lambda raw: write_geom_gcn(raw, "texas", nodes=60, columns=9, binary=False),
        (60, 180, 9, 5),
        [20, 1, 39],
    ),
    "lastfm-asia": (lambda raw: _write_embedded(raw / "lastfm_asia.npz"), (60, 180, 6, 4), []),
}  # fmt: skip


def _write_embedded(path: Path) -> None:
    rng = np.random.default_rng(3)
    path.parent.mkdir(parents=True)
    edges, target = rng.integers(0, 60, (180, 2)), np.arange(60) % 4
    np.savez(path, features=rng.normal(size=(60, 6)), target=target, edges=edges)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_is_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    write, sizes, split = LAYOUTS[name]
    set_facts(monkeypatch, name, graph_facts(*sizes))
    config = PublishedGraph(name=name)
    with pytest.raises(InputError, match=f"found no such file; .*`gnnhpc data get {name}`"):
        load_graph(config, tmp_path)
    write(config.published.directory(tmp_path))
    graph = load_graph(config, tmp_path)
    check(graph, sizes[2])
    assert graph.nodes == sizes[0]
    assert not split or counts(graph) == split
    made = load_graph(PublishedGraph(name=name, features="made"), tmp_path)
    assert torch.equal(made.edges, graph.edges)
    assert made.features.layout == torch.sparse_csr


def test_another_of_ten_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    set_facts(monkeypatch, "roman-empire", graph_facts(60, 180, 6, 4))
    path = tmp_path / "roman_empire" / "raw" / "roman_empire.npz"
    write_heterophilous(path, nodes=60, columns=6, classes=4)
    first, third = (
        load_graph(PublishedGraph(name="roman-empire", split=n), tmp_path) for n in (0, 2)
    )
    assert torch.equal(third.masks["train"], first.masks["train"].roll(-2))
    assert PublishedGraph(name="roman-empire").content() == {"name": "roman-empire"}
    assert PublishedGraph(name="roman-empire", split=2).content()["split"] == 2


def test_objects_in_an_npz_are_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    raw = tmp_path / "LastFMAsia" / "raw"
    raw.mkdir(parents=True)
    np.savez(raw / "lastfm_asia.npz", features=np.array([{}], dtype=object))
    with pytest.raises(InputError, match=r"lastfm_asia.npz: features: found pickled Python obj"):
        load_graph(PublishedGraph(name="lastfm-asia"), tmp_path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("yelp", r"name: found 'yelp': its nodes have many labels each.*; allowed: cora, "),
        ({"name": "amazon-products"}, r"many labels each"),
        ({"name": "cora", "split": 1}, "split: found 1; allowed: 0, cora has no other"),
        ({"name": "photo", "split": 1}, "split: found 1; allowed: 0, photo has no other"),
        ({"name": "actor", "split": 10}, "split: found 10; allowed: 0 to 9"),
        ({"name": "actor", "split": -1}, "split: found -1; allowed: 0 to 9"),
    ],
)
def test_what_cannot_be_used_is_refused(value: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        parse_data(value)
    assert "yelp" not in allowed_data()
