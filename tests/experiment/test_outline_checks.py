"""Layer specs that do not fit the data or each other are errors of one line when planned."""

from __future__ import annotations

from typing import Any

import pytest

from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.core.errors import InputError
from gnnhpc.core.layer_specs import LayerSpec, check_outline

GRAPH = Facts("graph", 16, 3, nodes=60, edges=240)


def layer(name: Any = "a", inputs: Any = (16,), shape: Any = (3,), **rest: Any) -> LayerSpec:
    return LayerSpec(name, inputs, shape, **rest)


MISTAKES: list[tuple[list[Any], str]] = [
    ([layer(inputs=(3,))], "outline.0.inputs: found (3,) in a; allowed: (16,), the shape of a"),
    ([layer(shape=(8,))], "outline.0.shape: found (8,) in a; allowed: (3,), the classes of"),
    ([layer(shape=3)], "outline.0.shape: found 3; allowed: a list"),
    ([layer(shape=(0,))], "outline.0.shape.0: found 0; allowed: at least 1"),
    ([layer(rows="pool")], "outline.0.rows: found 'pool'; allowed: same or hop, for graph data"),
    ([layer(cost=float("nan"))], "outline.0.cost: found nan; allowed: "),
    ([layer(parameters=-1)], "outline.0.parameters: found -1; allowed: at least 0"),
]


@pytest.mark.parametrize(("layers", "line"), MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_is_one_line(layers: list[Any], line: str) -> None:
    with pytest.raises(InputError) as refused:
        check_outline(layers, GRAPH, "spec")
    assert str(refused.value).startswith(f"spec: {line}")


GRAPHS = Facts("graphs", 16, 3, nodes=30, edges=60, graphs=9, train=5, val=2, test=2)
POOL = layer(shape=(16,), rows="pool")


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([layer(rows="hop")], "no layer with rows 'pool'"),
        ([POOL, layer("b", rows="pool")], "'pool' after a, which pools"),
        ([POOL, layer("b", rows="hop")], "'hop' after a, which pools"),
    ],
)
def test_nodes_become_graphs_once_and_graphs_have_no_neighbours(
    layers: list[LayerSpec], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        check_outline(layers, GRAPHS, "spec")
