"""Cells whose tensors lie on another device than the arrays that they are compared with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gnnhpc.experiment.experiment import Experiment
from tests.tools import other_device
from tests.tools.cells import gat, graphs, linked, manifest_of, run, sampled, vig

pytestmark = pytest.mark.distributed
CELLS = {
    "vig": vig(),
    "gat": gat(chunks="halo"),
    "sampled, evaluated by drawn ones": sampled(
        sampling={"fanouts": [4, 3], "evaluation": "sampled"}, microbatches=2
    ),
    "in two stages": gat(layout="pp2", activation_checkpointing="always"),
    "graphs": graphs(),
    "links": linked(),
}


@pytest.mark.slow
@pytest.mark.parametrize("experiment", CELLS.values(), ids=CELLS)
def test_nothing_is_read_without_bringing_it_back(tmp_path: Path, experiment: Experiment) -> None:
    cell = run(tmp_path, manifest_of(tmp_path, experiment)[0], plant=other_device.emulate)
    assert set(cell.statuses) == {0}, cell.err
    assert cell.result.valid


def test_what_is_there_is_no_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "to", other_device.to)
    there = torch.ones(3).to(torch.device("cpu"))
    for take in (np.asarray, torch.Tensor.numpy):
        with pytest.raises(TypeError, match="another device"):
            take(2 * there)
    assert np.array_equal((2 * there).cpu().numpy(), [2.0, 2.0, 2.0])
