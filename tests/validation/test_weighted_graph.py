"""Weights of a user's graph reach the layers and the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from gnnhpc.data.custom_graph_settings import CustomGraph
from gnnhpc.experiment.experiment import Experiment
from tests.tools.cells import STEPS, manifest_of, run


def weighted(folder: Path, settings: dict[str, Any]) -> Experiment:
    """An experiment on a weighted graph of 60 nodes."""
    draw = np.random.default_rng(1)
    ends = np.unique(draw.integers(0, 60, (2, 300)), axis=1)
    ends = ends[:, ends[0] < ends[1]]
    splits = draw.integers(0, 3, 60)
    np.savez(
        folder / "graph.npz",
        edge_index=np.concatenate((ends, ends[::-1]), 1),
        edge_weight=np.tile(draw.random(ends.shape[1]) * 3, 2),
        x=draw.random((60, 7)).astype(np.float32),
        y=draw.integers(0, 3, 60),
        **{f"{name}_mask": splits == n for n, name in enumerate(("train", "val", "test"))},
    )
    data = CustomGraph(path="graph.npz").planned(folder)
    return Experiment.model_validate({"data": data} | STEPS | settings)


CELLS: dict[str, dict[str, Any]] = {
    "gcn in halo chunks": {"model": {"name": "gcn"}, "chunks": "halo", "microbatches": 2},
    "graphconv in two stages": {"model": {"name": "graphconv"}, "layout": "pp2"},
    "gcn of samples": {
        "model": {"name": "gcn"},
        "sampling": {"fanouts": [3, 2]},
        "batch_size": 8,
    },
}


@pytest.mark.distributed
@pytest.mark.parametrize("name", CELLS)
def test_a_cell_of_weighted_edges_agrees_with_the_reference(tmp_path: Path, name: str) -> None:
    (cell,) = manifest_of(tmp_path / "run", weighted(tmp_path, CELLS[name]))
    ran = run(tmp_path / "run", cell)
    assert set(ran.statuses) == {0}, ran.err
    checks = {check.name: check for check in ran.result.audit}
    assert checks["engine-parity"].verdict == "ok", checks["engine-parity"]
    assert checks["kernel-parity"].verdict == "ok", checks["kernel-parity"]


def test_a_model_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="with weights of edges; allowed: a file without"):
        weighted(tmp_path, {"model": {"name": "gat"}})
