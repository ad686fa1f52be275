"""Sets of small graphs: TU's files, synthetic threads, and the independent reader of both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnnhpc.core.errors import InputError
from gnnhpc.data.graph_sets import TU, GraphSetData, SyntheticGraphs, TuGraphs, TuSet
from gnnhpc.data.load_graph import load_graph_set
from gnnhpc.graphs.graph_set import GraphSet
from gnnhpc.validation.data_digests import verify_data

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """MUTAG in small: 12 graphs of 1 to 4 nodes, one of them without edges, labels -1 and 1."""
    rng = np.random.default_rng(3)
    counts = np.array([1, *rng.integers(2, 5, 11)])
    first = np.concatenate(([0], np.cumsum(counts)))
    nodes = int(first[-1])
    lines = []
    for graph in range(1, 12):
        a, b = int(first[graph]) + 1, int(first[graph]) + 2
        # Both directions, one of them twice; and a node's edge to itself.
        lines += [f"{a}, {b}", f"{b}, {a}", f"{a}, {b}", f"{b}, {b}"]
    folder = tmp_path / "data" / "MUTAG" / "raw"
    folder.mkdir(parents=True)
    files = {
        "A": lines,
        "graph_indicator": np.repeat(np.arange(1, 13), counts),
        "graph_labels": np.where(np.arange(12) % 2, 1, -1),
        "node_labels": np.arange(nodes) % 3 + 5,
    }
    for name, rows in files.items():
        (folder / f"MUTAG_{name}.txt").write_text("".join(f"{row}\n" for row in rows))
    monkeypatch.setitem(TU, "mutag", TuSet("MUTAG", 12, nodes, 22, 3, 2))
    return folder


def verified(config: GraphSetData, root: Path | None) -> GraphSet:
    """The set, which the independent reader reads the same."""
    found = load_graph_set(config, root)
    assert verify_data(config, root).verdict == "ok"
    assert found.features.shape == (found.nodes, config.facts().features)
    assert sum(mask.int() for mask in found.masks.values()).eq(1).all()  # type: ignore[union-attr]
    return found


@pytest.mark.parametrize("features", ["stored", "one-hot", "degree", "constant"])
def test_tu_files_are_read(raw: Path, features: str) -> None:
    config = TuGraphs.model_validate({"name": "mutag", "features": features})
    found = verified(config, raw.parents[1])
    assert found.labels.tolist() == [0, 1] * 6
    assert found.edges.shape == (2, 22)
    counts = [int(found.masks[split].sum()) for split in ("train", "val", "test")]
    assert counts == [9, 1, 2]


def append(text: str) -> Callable[[Path], Any]:
    return lambda path: path.write_text(path.read_text() + text)


def cut(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("graph_indicator", cut, "damaged files"),
        ("graph_labels", cut, "damaged files"),
        ("graph_labels", lambda path: path.write_text("1\n" * 12), "1 classes, not 2"),
        ("node_labels", cut, "damaged files"),
        ("A", append("1, 900\n"), "damaged files"),
        ("A", append("1, 2\n"), "ends of a graph's edges from 0 to 1, not 0 to 0"),
        ("A", append("7\n"), "damaged files"),
        ("A", Path.unlink, "no file that may be read; allowed: `gnnhpc data get mutag`"),
    ],
)
def test_damage_is_one_line(
    raw: Path, name: str, damage: Callable[[Path], Any], words: str
) -> None:
    damage(raw / f"MUTAG_{name}.txt")
    with pytest.raises(InputError, match=words) as refused:
        load_graph_set(TuGraphs(name="mutag"), raw.parents[1])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("features", ["one-hot", "degree", "constant"])
@pytest.mark.parametrize("sizes", [{}, {"graphs": 33, "nodes": 1}, {"degree": 9.0, "classes": 4}])
def test_threads_have_the_planned_sizes(sizes: dict[str, Any], features: Any) -> None:
    config = SyntheticGraphs.model_validate({"graphs": 40, "features": features} | sizes)
    found = verified(config, None)
    assert (len(found), found.nodes) == (config.graphs, config.graphs * config.nodes)
    assert found.edges.shape[1] <= config.facts().edges
    assert set(found.labels.tolist()) == set(range(config.classes))
    graph_of = torch.repeat_interleave(torch.arange(len(found)), found.first.diff())
    assert torch.equal(graph_of[found.edges[0]], graph_of[found.edges[1]])


def test_each_number_has_a_split_of_its_own() -> None:
    first, second = (load_graph_set(SyntheticGraphs(split=split), None) for split in (0, 1))
    facts = SyntheticGraphs().facts()
    for found in (first, second):
        counts = [int(found.masks[split].sum()) for split in ("train", "val", "test")]
        assert counts == [facts.train, facts.val, facts.test] == [800, 100, 100]
    assert not torch.equal(first.masks["test"], second.masks["test"])
