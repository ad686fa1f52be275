"""No check accuses a healthy cell in single precision on a GPU, where sums have another order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gnnhpc.experiment.experiment import Experiment
from tests.tools.cells import gat, graphs, linked, manifest_of, run, sampled, vig

pytestmark = [pytest.mark.gpu, pytest.mark.distributed]
DATA = {"name": "synthetic-citation", "nodes": 5_000, "edges": 100_000, "features": 500}
PAIRS: dict[str, Any] = {"data": DATA, "device": "gpu"}
LARGER = {**PAIRS, "chunks": "halo", "microbatches": 2}
PYG = {"implementation": "pyg"}
GCN_OF_PYG = {"model": {"name": "gcn", **PYG}}
CELLS = {
    "vig": vig(device="gpu"),
    "vig of pyg": vig(model={"name": "vig", "blocks": 2, **PYG}, device="gpu"),
    "vig of pyg, compiled": vig(
        model={"name": "vig", "blocks": 2, **PYG}, compile="default", device="gpu"
    ),
    "vig, checkpoint": vig(activation_checkpointing="always", device="gpu"),
    "gat": gat(**LARGER),
    "gat of pyg": gat(**LARGER | {"model": {"name": "gat", **PYG}}),
    "gcn of pyg, compiled": gat(**LARGER | GCN_OF_PYG | {"compile": "default"}),
    # torch records its own CUDA graphs in the steps that follow a compilation.
    "gcn of pyg, reduce-overhead": gat(
        **LARGER | GCN_OF_PYG | {"compile": "reduce-overhead", "warmup_steps": 3}
    ),
    "gat, checkpoint": gat(**LARGER | {"activation_checkpointing": "always"}),
    "gatv2": gat(**LARGER | {"model": {"name": "gatv2"}}),
    "gcn": gat(**LARGER | {"model": {"name": "gcn"}, "optimizer": {"name": "sgd", "lr": 0.1}}),
    "gcnii": gat(**LARGER | {"model": {"name": "gcnii", "layers": 4}, "chunks": "contiguous"}),
    "sage, max": gat(**LARGER | {"model": {"name": "sage", "aggregator": "max"}}),
    "sampled": sampled(**PAIRS),
    "sampled, checkpoint": sampled(**PAIRS, activation_checkpointing="always", microbatches=2),
    "sampled, pyg": sampled(**PAIRS, model={"name": "sage", **PYG}),
    "graphs": graphs(device="gpu"),
    "links of gatv2": linked(**PAIRS, model={"name": "gatv2"}),
}


@pytest.mark.parametrize("experiment", CELLS.values(), ids=CELLS)
def test_a_healthy_cell_is_valid(tmp_path: Path, experiment: Experiment) -> None:
    cell = run(tmp_path, manifest_of(tmp_path, experiment)[0])
    assert cell.statuses == [0], cell.err
    wrong = {c.name: c.detail for c in cell.result.audit if c.verdict == "invalid"}
    assert not wrong
