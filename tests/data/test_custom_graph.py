"""A custom graph: what is read of its file, when, and one line for each mistake."""

from __future__ import annotations

import json
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
from tests.data.test_published_graphs import check, counts
from tests.tools.data_files import EVIL, custom_arrays

Arrays = dict[str, Any]


def write(path: Path, arrays: Arrays) -> CustomGraph:
    np.savez(path, **arrays)
    return CustomGraph(path=path.name)


def test_a_graph_is_read_as_the_file_says(tmp_path: Path) -> None:
    arrays = custom_arrays()
    arrays["test_mask"][50:] = False
    arrays["y"] = np.where(np.arange(60) < 50, arrays["y"], -1)
    config = write(tmp_path / "graph.npz", arrays).planned(tmp_path)
    facts = config.facts()
    assert (facts.nodes, facts.edges, facts.features, facts.classes) == (60, 225, 12, 3)
    graph = load_graph(config, None)
    assert graph.name == "graph"
    assert counts(graph) == [20, 15, 15]
    assert np.array_equal(graph.features.numpy(), arrays["x"].astype(np.float32))
    listed = {(a, b) for a, b in arrays["edge_index"].T.tolist() if a != b}
    assert {tuple(ends) for ends in graph.edges.T.tolist()} == listed
    # Nodes outside of all splits have no label and no target.
    assert all((labels >= -100).all() for labels in graph.targets(torch.arange(60)).values())


def _put(**values: Any) -> Callable[[Arrays], Arrays]:
    return lambda arrays: arrays | values


def _at(key: str, place: Any, value: Any) -> Callable[[Arrays], Arrays]:
    def change(arrays: Arrays) -> Arrays:
        array = np.array(arrays[key])
        array[place] = value
        return arrays | {key: array}

    return change


def _without_x(arrays: Arrays) -> Arrays:
    return {key: array for key, array in arrays.items() if key != "x"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without_x, r"found no x; allowed: x: numbers \[nodes, features\]"),
        (_put(edge_atr=np.ones(3)), "found an array edge_atr; allowed: edge_index, x, y, train_m"),
        (_put(x=np.ones((60, 2), object)), r"found no .npz file of plain arrays \(Object arrays"),
        (_put(x=np.ones((50, 2))), r"x: found \[50, 2\]; allowed: one row for each of 60 nodes"),
        (_at("x", (4, 3), 1e300), "x: found a number that is not finite in float32, in row 4;"),
        (_put(edge_index=np.ones((9, 2), int)), r"edge_index: found \[9, 2\]; allowed: int \[2"),
        (_at("edge_index", (0, 7), 60), "edge_index: found another node at edge 7; allowed: nodes"),
        (_put(edge_index=np.array([[3], [3]])), "edge_index: found self-loops only"),
        (_put(y=np.zeros(60)), r"y: found float64 \[60\]; allowed: int \[nodes\], classes from 0"),
        (_put(y=np.zeros(60, int)), "y: found highest label 0 of 60 nodes; allowed: at least two"),
        (_at("y", 9, -2), "y: found a label below -1 of node 9; allowed: int"),
        (_at("y", 9, -1), "train_mask: found without a label, node 9"),
        (_put(val_mask=np.zeros(60, bool)), "val_mask: found 0 of 60 nodes; allowed: at least one"),
        (_at("test_mask", 0, True), "train_mask: found in test_mask too, node 0"),
        (_put(edge_weight=np.ones(3)), r"edge_weight: found 3 weights of 242 edges"),
        (_put(edge_weight=-np.ones(242)), "edge_weight: found less than 0 at edge 0; allowed: "),
        (_put(edge_weight=np.ones(242)), r"edge_index: found \d+ self-loops or repeated"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(
    tmp_path: Path, change: Callable[[Arrays], Arrays], message: str
) -> None:
    with pytest.raises(InputError, match=rf"^{tmp_path}/graph.npz: {message}") as caught:
        write(tmp_path / "graph.npz", change(custom_arrays())).planned(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "found No such file or directory; allowed: a file written by numpy.savez"),
        (lambda path: path.write_bytes(EVIL), "found no .npz file"),
        (lambda path: np.save(path.open("wb"), np.ones(3)), "found no .npz file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-300]), "found no .npz file"),
    ],
    ids=["missing", "pickle", "npy", "cut off"],
)
def test_a_file_that_is_none(
    tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    config = write(tmp_path / "graph.npz", custom_arrays())
    damage(tmp_path / "graph.npz")
    with pytest.raises(InputError, match=rf"^{tmp_path}/graph.npz: {message}"):
        config.planned(tmp_path)


def test_the_file_must_be_the_planned_one(tmp_path: Path) -> None:
    arrays = custom_arrays()
    config = write(tmp_path / "graph.npz", arrays).planned(tmp_path)
    write(tmp_path / "graph.npz", arrays | {"x": arrays["x"] + 1})
    with pytest.raises(InputError, match=r"graph.npz: digest: found \w{64}; allowed: \w{64}, the"):
        load_graph(config, None)
    (tmp_path / "graph.npz").unlink()
    with pytest.raises(InputError, match=r"graph.npz: found no file that may be read"):
        config.check(None)


def test_a_cell_is_its_content_and_is_read_without_the_file(tmp_path: Path) -> None:
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "graph.npz", custom_arrays())
    planned = [CustomGraph(path="graph.npz").planned(tmp_path / f) for f in ("one", "other")]
    assert CustomGraph(path="../one/graph.npz").planned(tmp_path / "other") == planned[0]
    one, other = (Experiment.model_validate({"model": "gat", "data": d}) for d in planned)
    assert one.id == other.id
    assert one.id.startswith("gat-graph-seq-")
    (tmp_path / "one" / "graph.npz").unlink()
    again = Experiment.model_validate(json.loads(json.dumps(one.model_dump(mode="json"))))
    assert again == one
    assert again.data.facts().nodes == 60


def symmetric() -> Arrays:
    """A graph with both directions of each edge, of which each has its own weight."""
    arrays = custom_arrays()
    source, target = arrays["edge_index"]
    one, other = np.minimum(source, target), np.maximum(source, target)
    codes = np.unique((one * 60 + other)[one != other])
    ends = np.stack((codes // 60, codes % 60))
    edges = np.concatenate((ends, ends[::-1]), 1)
    return arrays | {"edge_index": edges, "edge_weight": np.linspace(0, 2, 2 * len(codes))}


def test_weights_follow_their_edges(tmp_path: Path) -> None:
    arrays = symmetric()
    config = write(tmp_path / "graph.npz", arrays).planned(tmp_path)
    graph = load_graph(config, None)
    check(graph, 12)
    assert graph.edge_weight is not None
    found = dict(zip(map(tuple, graph.edges.T.tolist()), graph.edge_weight.tolist(), strict=True))
    listed = map(tuple, arrays["edge_index"].T.tolist())
    assert found == pytest.approx(dict(zip(listed, arrays["edge_weight"].tolist(), strict=True)))
    with pytest.raises(ValueError, match="with weights of edges; allowed: a file without"):
        Experiment.model_validate({"model": "gat", "data": config})


def test_an_undirected_graph_has_both_directions(tmp_path: Path) -> None:
    arrays = symmetric()
    half = arrays["edge_index"].shape[1] // 2
    once = arrays | {key: arrays[key][..., :half] for key in ("edge_index", "edge_weight")}
    config = write(tmp_path / "graph.npz", once)
    message = f"edge_index: found {half} edges, of which 0 have their reverse; allowed: both dir"
    with pytest.raises(InputError, match=message):
        config.planned(tmp_path)
    directed = CustomGraph(path="graph.npz", directed=True).planned(tmp_path)
    assert load_graph(directed, None).edges.shape[1] == directed.edges == half
