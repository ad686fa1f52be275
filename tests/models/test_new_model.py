"""To add a model: one file, and one row of the registry."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.model_registry import BUILT_IN, allowed_models
from tests.tools.cells import GAT, manifest_of, run

FILE = '''
from typing import Literal

from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.models.model import Model


class Mean(Model):
    """A linear layer of the mean over neighbours, twice."""

    name: Literal["mean"] = "mean"
    hidden: int = 8

    def outline(self, facts):
        sizes = ((facts.features, self.hidden), (self.hidden, facts.classes))
        return [
            LayerSpec(f"layer{n}", (width,), (out,), kind="mean", rows="hop", number=n)
            for n, (width, out) in enumerate(sizes)
        ]

    def build(self, layer, options):
        import torch

        from gnnhpc.kernels.aggregate import weighted_sum
        from gnnhpc.models.layers.convolution_layers import mean_weights

        class Layer(torch.nn.Linear):
            def forward(self, x, context):
                block = context.chunk.blocks[layer.number]
                rows = super().forward(x.to_dense())
                return weighted_sum(rows, block, mean_weights(block, rows.dtype))

        return Layer(layer.inputs[0], layer.shape[0]).to(options.dtype)

    def implementation_note(self, dtype, device):
        return "fused"
'''


def register(folder: Path) -> None:
    sys.path.insert(0, str(folder))
    BUILT_IN["mean"] = "mean_of_neighbours:Mean"


@pytest.fixture
def added(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "mean_of_neighbours.py").write_text(FILE)
    register(tmp_path)
    yield tmp_path
    del BUILT_IN["mean"]
    sys.path.remove(str(tmp_path))
    sys.modules.pop("mean_of_neighbours", None)


@pytest.mark.distributed
@pytest.mark.parametrize("layout", ["seq", "pp2"])
def test_a_model_is_one_file_and_one_row(added: Path, layout: str) -> None:
    """Its cells run and are validated: layers without a reference form are their own reference."""
    assert "mean" in allowed_models()
    settings = GAT | {"model": {"name": "mean", "hidden": 6}, "layout": layout, "chunks": "halo"}
    (cell,) = manifest_of(added / "run", Experiment.model_validate(settings))
    ran = run(added / "run", cell, plant=functools.partial(register, added))
    assert set(ran.statuses) == {0}, ran.err
    checks = {check.name: check for check in ran.result.audit}
    assert ran.result.valid, checks
    assert checks["engine-parity"].verdict == "ok", checks["engine-parity"]
    losses = ran.losses()
    assert losses[-1] < losses[0]
