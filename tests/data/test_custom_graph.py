"""A custom graph: what is read of its file, when, and one line for each mistake."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnnhpc.core.errors import InputError
from gnnhpc.data.custom_graph_settings import CustomGraph
from gnnhpc.data.load_graph import load_graph
from gnnhpc.experiment.experiment import Experiment
from tests.data.test_published_graphs import check, counts, equal
from tests.tools.data_files import as_csr, custom_arrays, write_npz

Arrays = dict[str, Any]


def write(path: Path, arrays: Arrays) -> CustomGraph:
    np.savez(path, **arrays)
    return CustomGraph(path=path.name)


def test_a_graph_is_read_as_the_file_says(tmp_path: Path) -> None:
    arrays = custom_arrays()
    config = write(tmp_path / "graph.npz", arrays).planned(tmp_path)
    facts = config.facts()
    assert (facts.nodes, facts.edges, facts.features, facts.classes) == (60, 242, 12, 3)
    graph = load_graph(config, None)
    check(graph, 12)
    assert counts(graph) == [20, 15, 25]
    assert np.array_equal(graph.features.numpy(), arrays["x"].astype(np.float32))
    listed = {(a, b) for a, b in arrays["edge_index"].T.tolist() if a != b}
    assert {tuple(ends) for ends in graph.edges.T.tolist()} == listed
    assert graph.name == "graph"


def test_csr_and_lists_of_nodes_are_the_same_graph(tmp_path: Path) -> None:
    arrays = custom_arrays()
    dense = write(tmp_path / "dense.npz", arrays).planned(tmp_path)
    sparse = write(tmp_path / "sparse.npz", as_csr(arrays)).planned(tmp_path)
    graph = load_graph(sparse, None)
    assert graph.features.layout == torch.sparse_csr
    assert equal(graph, load_graph(dense, None))
    packed = tmp_path / "packed.npz"
    np.savez_compressed(packed, **as_csr(arrays))
    assert equal(graph, load_graph(CustomGraph(path=str(packed)).planned(tmp_path), None))


def _drop(key: str) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {name: value for name, value in arrays.items() if name != key}


def _put(**values: Any) -> Callable[[Arrays], Arrays]:
    return lambda arrays: arrays | values


def _change(key: str, change: Callable[[Any], Any]) -> Callable[[Arrays], Arrays]:
    return lambda arrays: arrays | {key: change(arrays[key])}


def _at(place: Any, value: Any) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        array = np.array(array)
        array[place] = value
        return array

    return change


EMPTY = {key: value[:0] for key, value in custom_arrays().items() if key not in ("edge_index", "x")}
NODES = np.arange(3)

# What is wrong with a graph that is dense with masks -> what is said after the file's name.
DENSE = [
    (_drop("edge_index"), r"found no edge_index among .*; allowed: edge_index: int \[2, "),
    (_drop("x"), r"found no x among .*; allowed: x: numbers \[nodes, features\], or x_indptr, x_"),
    (_drop("val_mask"), r"found no val_mask among .*; allowed: val_mask: bool .*or val_idx"),
    (_put(train_idx=NODES), "train_idx: found both train_mask and train_idx; allowed: one of"),
    (_put(x_data=np.ones(2)), "x_data: found both x and x_data; allowed: one form of features"),
    (_change("edge_index", lambda a: a.T), r"edge_index: found int64 \[242, 2\]; allowed: int"),
    (_change("edge_index", lambda a: a[:, :0]), r"edge_index: found int64 \[2, 0\]; .*at least"),
    (_change("edge_index", _at((0, 7), 60)), "edge_index: found edge 7 from 60 to .*: nodes 0 to"),
    (_put(edge_index=np.array([[3], [3]])), "edge_index: found self-loops only"),
    (_change("x", lambda a: a[:50]), "x: found 50 nodes; allowed: 60 nodes, as in y"),
    (_change("x", lambda a: a[:, :0]), "x: found no features; allowed: at least one column"),
    (_change("x", lambda a: a.astype(object)), r"x: found a damaged array \(Object arrays"),
    (_change("x", _at((4, 3), np.nan)), "x: found nan at node 4, column 3; allowed: finite float"),
    (_change("x", _at((4, 3), 1e300)), "x: found inf at node 4, column 3; allowed: finite float3"),
    (_change("y", _at(9, -2)), r"y: found label -2 of node 9; allowed: int \[nodes\], -1 or NaN"),
    (_change("y", _at(9, -1)), "train_mask: found node 9, which has no label; allowed: nodes wit"),
    (_change("y", _at(9, 600)), "y: found label 600 among 60 nodes; allowed: the classes"),
    (_change("y", lambda a: a * 0), "y: found one class; allowed: at least two"),
    (_change("y", lambda a: np.eye(3)[a]), r"y: found float64 \[60, 3\]; allowed: int \[nodes\]"),
    (_put(**EMPTY, x=np.ones((0, 12))), "y: found no nodes; allowed: .* at least one node"),
    (_change("train_mask", lambda a: a * 2), r"train_mask: found int64 \[60\]; allowed: bool \[no"),
    (_change("train_mask", lambda a: a & False), "train_mask: found no node; allowed: at least on"),
    (_change("test_mask", _at(0, True)), "test_mask: found node 0, which is in train too; allow"),
]  # fmt: skip

# The same of one with CSR features and lists of nodes.
SPARSE = [
    (_change("x_indptr", lambda a: a[:-1]), "x_indptr: found parts that do not fit"),
    (_change("x_indices", _at(2, 12)), "x_indptr: found parts that do not fit .*12"),
    (_change("x_indices", lambda a: a * 0), "x_indices: found a column twice in a row; allowed: "),
    (_change("x_data", lambda a: a[:-1]), "x_indptr: found parts that do not fit .*same size"),
    (_put(x_shape=np.array([60])), r"x_shape: found \[60\]; allowed: int \[2\]: nodes, features"),
    (_change("y", lambda a: a[:-1]), "x_shape: found 60 nodes; allowed: 59 nodes, as in y"),
    (_change("train_idx", _at(0, 60)), "train_idx: found node 60; allowed: 0 to 59"),
    (_change("val_idx", _at(0, 21)), "val_idx: found node 21 twice; allowed: each node once"),
    (_change("val_idx", _at(0, 3)), "val_idx: found node 3, which is in train too; allowed: spl"),
]  # fmt: skip


CASES = [(custom_arrays(), DENSE), (as_csr(custom_arrays()), SPARSE)]


@pytest.mark.parametrize(
    ("arrays", "change", "message"),
    [(arrays, *case) for arrays, cases in CASES for case in cases],
)
def test_a_mistake_is_one_line(
    tmp_path: Path, arrays: Arrays, change: Callable[[Arrays], Arrays], message: str
) -> None:
    message = message.replace(": nodes 0 to", "; allowed: nodes 0 to")
    with pytest.raises(InputError, match=rf"^{tmp_path}/graph.npz: {message}") as caught:
        load_graph(write(tmp_path / "graph.npz", change(arrays)).planned(tmp_path), None)
    assert "\n" not in str(caught.value)


def _cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-300])


def _overwrite(path: Path) -> None:
    """Damage inside the last array, which the archive's own checksum tells."""
    content = bytearray(path.read_bytes())
    place = content.index(b"y.npy") + 200
    content[place : place + 40] = b"\xff" * 40
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "found No such file or directory; allowed: a file written by numpy.savez"),
        (lambda path: path.write_bytes(b""), "found no .npz file; allowed: a file written by"),
        (lambda path: path.write_bytes(pickle.dumps({})), "found no .npz file"),
        (lambda path: np.save(path.open("wb"), np.ones(3)), "found no .npz file"),
        (lambda path: (path.unlink(), path.mkdir()), "found Is a directory"),
        (_cut_off, "found no .npz file"),
        (_overwrite, r"y: found a damaged array \(Bad CRC-32"),
    ],
)
def test_a_file_that_is_none(
    tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    config = write(tmp_path / "graph.npz", custom_arrays())
    damage(tmp_path / "graph.npz")
    with pytest.raises(InputError, match=rf"^{tmp_path}/graph.npz: {message}"):
        config.planned(tmp_path)


def test_planning_needs_no_torch(tmp_path: Path) -> None:
    write(tmp_path / "graph.npz", custom_arrays())
    code = f"""
import pathlib, sys
from gnnhpc.data.custom_graph_settings import CustomGraph
CustomGraph(path="graph.npz").planned(pathlib.Path({str(tmp_path)!r}))
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_file_must_be_the_planned_one(tmp_path: Path) -> None:
    arrays = custom_arrays()
    config = write(tmp_path / "graph.npz", arrays).planned(tmp_path)
    write(tmp_path / "graph.npz", arrays | {"x": arrays["x"] + 1})
    with pytest.raises(InputError, match=r"graph.npz: digest: found \w{64}; allowed: \w{64}, the"):
        load_graph(config, None)
    (tmp_path / "graph.npz").unlink()
    with pytest.raises(InputError, match=r"graph.npz: found no file that may be read"):
        config.check(None)
    with pytest.raises(InputError, match=r"graph.npz: found No such file"):
        load_graph(config, None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nodes": 61}, "nodes: found 60; allowed: 61, which the spec says"),
        ({"edges": 1}, "edges: found 242; allowed: 1, which the spec says"),
        ({"features": 13}, "features: found 12; allowed: 13, which the spec says"),
        ({"classes": 2}, "y: found label 2 of node 2; allowed: 0 to 1, as classes"),
        ({"digest": "0"}, r"digest: found \w{64}; allowed: 0, which the spec says"),
    ],
)
def test_what_the_spec_says_is_compared_with_the_file(
    tmp_path: Path, given: Any, message: str
) -> None:
    write(tmp_path / "graph.npz", custom_arrays())
    with pytest.raises(InputError, match=f"graph.npz: {message}"):
        CustomGraph(path="graph.npz", **given).planned(tmp_path)


def test_where_the_file_lies_is_no_content(tmp_path: Path) -> None:
    arrays = custom_arrays()
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "graph.npz", arrays)
    here, there = (CustomGraph(path="graph.npz").planned(tmp_path / f) for f in ("here", "there"))
    assert Path(here.path) == tmp_path / "here" / "graph.npz"
    assert here.content() == there.content()
    assert here.content()["nodes"] == 60
    assert "path" not in here.content()
    again = CustomGraph(path="../here/graph.npz").planned(tmp_path / "there")
    assert again == here
    cells = [Experiment.model_validate({"model": "gat", "data": data}) for data in (here, there)]
    assert cells[0].id == cells[1].id
    assert cells[0].id.startswith("gat-graph-seq-")


def test_a_manifest_is_read_without_the_file(tmp_path: Path) -> None:
    config = write(tmp_path / "graph.npz", custom_arrays()).planned(tmp_path)
    experiment = Experiment.model_validate({"model": "gat", "data": config})
    (tmp_path / "graph.npz").unlink()
    dumped = json.loads(json.dumps(experiment.model_dump(mode="json")))
    again = Experiment.model_validate(dumped)
    assert again == experiment
    assert again.id == experiment.id
    assert again.data.facts().nodes == 60


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("a/graph.npz", "graph"),
        ("my graph (2).npz", "my-graph-2"),
        ("../..npz", "graph"),
        ("pubmed.npz", "custom-pubmed"),
        ("v1.2.npz", "v1.2"),
    ],
)
def test_a_label_is_safe_and_no_published_name(path: str, label: str) -> None:
    assert CustomGraph(path=path).label == label


def symmetric(weighted: bool = True) -> Arrays:
    """A graph with both directions of each edge, of which each has its own weight."""
    arrays = custom_arrays()
    source, target = arrays["edge_index"]
    one, other = np.minimum(source, target), np.maximum(source, target)
    codes = np.unique((one * 60 + other)[one != other])
    ends = np.stack((codes // 60, codes % 60))
    arrays["edge_index"] = np.concatenate((ends, ends[::-1]), 1)
    if weighted:
        arrays["edge_weight"] = np.linspace(0, 2, 2 * len(codes))
    return arrays


def doubled(arrays: Arrays) -> Arrays:
    """The first edge once more, with another weight."""
    ends, weights = arrays["edge_index"], arrays["edge_weight"]
    more = {"edge_index": np.c_[ends, ends[:, :1]], "edge_weight": np.r_[weights, 1.5]}
    return arrays | more


def test_weights_follow_their_edges(tmp_path: Path) -> None:
    arrays = symmetric()
    config = write(tmp_path / "graph.npz", arrays).planned(tmp_path)
    assert config.weighted
    graph = load_graph(config, None)
    assert graph.edge_weight is not None
    found = dict(zip(map(tuple, graph.edges.T.tolist()), graph.edge_weight.tolist(), strict=True))
    listed = map(tuple, arrays["edge_index"].T.tolist())
    assert found == pytest.approx(dict(zip(listed, arrays["edge_weight"].tolist(), strict=True)))
    with pytest.raises(ValueError, match="found 'file' with weights of edges; allowed"):
        Experiment.model_validate({"model": "gat", "data": config})
    ignored = CustomGraph(path="graph.npz", ignore=("edge_weight",)).planned(tmp_path)
    assert not ignored.weighted
    assert load_graph(ignored, None).edge_weight is None
    Experiment.model_validate({"model": "gat", "data": ignored})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_change("edge_weight", _at(3, np.nan)), r"edge_weight: found nan of edge 3; .* from 0"),
        (_change("edge_weight", _at(3, -1)), "edge_weight: found -1.0 of edge 3"),
        (_change("edge_weight", lambda a: a[:-1]), r"edge_weight: found float64 \[\d+\];"),
        (_change("edge_index", _at((slice(None), 0), 7)), "edge_index: found weight 0.0 of the s"),
        (doubled, "edge_index: found two weights of the edge from "),
        (_put(edge_attr=np.ones((9, 1))), "edge_attr: found numbers that no model "),
    ],
)
def test_weights_that_cannot_be_used_are_one_line(
    tmp_path: Path, change: Callable[[Arrays], Arrays], message: str
) -> None:
    with pytest.raises(InputError, match=f"graph.npz: {message}"):
        write(tmp_path / "graph.npz", change(symmetric())).planned(tmp_path)


def test_an_undirected_graph_listed_once_needs_a_word(tmp_path: Path) -> None:
    arrays = symmetric()
    half = arrays["edge_index"].shape[1] // 2
    once = arrays | {key: arrays[key][..., :half] for key in ("edge_index", "edge_weight")}
    config = write(tmp_path / "graph.npz", once)
    message = f"edge_index: found {half} edges, of which 0 have their reverse; allowed: directed: t"
    with pytest.raises(InputError, match=message):
        config.planned(tmp_path)
    directed, undirected = (
        load_graph(CustomGraph(path="graph.npz", directed=each).planned(tmp_path), None)
        for each in (True, False)
    )
    assert directed.edges.shape[1] == half
    both = {*map(tuple, arrays["edge_index"].T.tolist())}
    assert {*map(tuple, undirected.edges.T.tolist())} == both
    codes = undirected.edges[0] * 60 + undirected.edges[1]
    reverse = undirected.edges[1] * 60 + undirected.edges[0]
    assert undirected.edge_weight is not None
    assert undirected.edge_weight[codes.argsort()].equal(undirected.edge_weight[reverse.argsort()])


@pytest.mark.parametrize("form", [lambda y: y, lambda y: np.where(y < 0, np.nan, y)])
def test_nodes_outside_of_all_splits_may_have_no_label(
    tmp_path: Path, form: Callable[[Any], Any]
) -> None:
    arrays = custom_arrays()
    arrays["test_mask"][50:] = False
    arrays["y"] = form(np.where(np.arange(60) < 50, arrays["y"], -1)).reshape(60, 1)
    graph = load_graph(write(tmp_path / "graph.npz", arrays).planned(tmp_path), None)
    assert counts(graph) == [20, 15, 15]
    assert (graph.labels[50:] == -1).all()
    assert graph.classes == 3
    assert all((labels >= -100).all() for labels in graph.targets(torch.arange(60)).values())


def test_a_split_is_a_column_of_masks(tmp_path: Path) -> None:
    arrays = custom_arrays()
    masks = {key: arrays[key] for key in ("train_mask", "val_mask", "test_mask")}
    several = {k: np.stack((v, np.roll(v, 7)), 1).astype(np.uint8) for k, v in masks.items()}
    write(tmp_path / "graph.npz", arrays | several)
    first, second = (
        load_graph(CustomGraph(path="graph.npz", split=n).planned(tmp_path), None) for n in (0, 1)
    )
    assert torch.equal(second.masks["val"], first.masks["val"].roll(7))
    with pytest.raises(InputError, match="train_mask: found split 2; allowed: split 0 to 1"):
        CustomGraph(path="graph.npz", split=2).planned(tmp_path)


@pytest.mark.parametrize("weights", [False, True])
def test_a_file_of_gnn_benchmark(tmp_path: Path, weights: bool) -> None:
    raw = tmp_path / "raw"
    path = write_npz(raw, "graph.npz", nodes=240, columns=20, classes=4)
    arrays = dict(np.load(path))
    rows = np.repeat(np.arange(240), np.diff(arrays["adj_indptr"]))
    ones = (rows == arrays["adj_indices"]) | (not weights)
    arrays["adj_data"] = np.where(ones, 1, arrays["adj_data"])
    # Each edge once, as published files list many.
    np.savez(path, **arrays)
    config = CustomGraph(path="graph.npz", directed=True if weights else None).planned(raw)
    graph = load_graph(config, None)
    check(graph, 20)
    assert counts(graph) == [80, 120, 40]
    assert (graph.edge_weight is not None) == weights
    source, target = graph.edges
    mirrored = torch.equal((source * 240 + target).sort().values, target * 240 + source)
    assert mirrored != weights
