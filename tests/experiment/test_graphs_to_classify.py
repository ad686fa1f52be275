"""What an experiment on many small graphs may say: all else is one line."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gnnhpc.data.registry import parse_data
from tests.tools.cells import graphs


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_size": None}, "batch_size: found none; allowed: graphs a mini-batch"),
        ({"batch_size": 33, "layout": "dp2"}, "33 x 2 replicas; allowed: at most the 64 graphs"),
        ({"microbatches": 25}, "microbatches: found 25; allowed: at most batch_size 24"),
        ({"sampling": {"fanouts": [2, 2]}}, "sampling: found a mapping; allowed: none for many"),
        ({"chunks": "halo"}, "chunks: found 'halo'; allowed: none for many small graphs"),
        ({"rebuild": "layer"}, "rebuild: found 'layer'; allowed: 'once' for graphs"),
        ({"layout": "pp2", "engine": "pipelining"}, "allowed: seq or dp<R> with many small"),
        ({"model": {"name": "gat"}}, "data: found 'synthetic-graphs'; allowed: graph data"),
        ({"model": {"name": "gcn", "pooling": "max"}}, "mean"),
    ],
)
def test_what_small_graphs_cannot_have(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as refused:
        graphs(**changes)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"name": "reddit10k", "features": "stored"}, "one-hot, degree or constant"),
        ({"name": "mutag", "degrees": 10}, "degrees: found 10; allowed: none for stored"),
        ({"name": "synthetic-graphs", "features": "stored"}, "one-hot"),
        ({"name": "synthetic-graphs", "split": -1}, "split: found -1"),
    ],
)
def test_inputs_that_nodes_do_not_have(data: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="(?s)" + words):
        parse_data(data)


def test_a_cell_has_one_id_whether_its_inputs_are_written_or_not() -> None:
    written = {"name": "reddit10k", "features": "one-hot"}
    assert graphs(data=written).id == graphs(data={"name": "reddit10k"}).id
    assert "features" not in parse_data({"name": "mutag", "features": "stored"}).content()  # type: ignore[attr-defined]
