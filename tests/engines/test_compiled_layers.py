"""Layers that torch compiles train as they do without, on start-up's time, and are counted."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.custom_model import CustomModel
from gnnhpc.models.layers.compiled import compilations
from tests.engines.steps import parts_of, step_of, take_step
from tests.tools.cells import GAT, RunOnce, gat, sampled, vig
from tests.training.same_losses import Way, both

GCN = {"name": "gcn", "implementation": "pyg"}
NET = """
import torch
from gnnhpc import Dropout, Layer, Model

class Net(Model):
    def outline(self, facts):
        sizes = ((facts.features, 8), (8, facts.classes))
        return [
            Layer(f"layer{n}", (width,), (out,), rows="hop", number=n)
            for n, (width, out) in enumerate(sizes)
        ]

    def build(self, layer, options):
        class Mean(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.dropout = Dropout(layer.name, 0.5)
                self.linear = torch.nn.Linear(layer.inputs[0], layer.shape[0])

            def forward(self, x, context):
                block = context.chunk.blocks[layer.number]
                source, target = block.edge_index
                rows = self.linear(self.dropout(x, context))
                total = rows.new_zeros(block.rows_out, rows.shape[1])
                return total.index_add_(0, target, rows[source]).tanh()

        return Mean().to(options.dtype)
"""


def without_inductor() -> None:
    """Trace layers and differentiate them as torch does, but compute each operation eagerly."""
    torch.compile = functools.partial(torch.compile, backend="aot_eager")  # type: ignore[assignment]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))


@pytest.fixture
def net(tmp_path: Path) -> CustomModel:
    (tmp_path / "compiled_net.py").write_text(NET)
    planned = CustomModel(name="compiled_net:Net").planned(tmp_path)
    assert isinstance(planned, CustomModel)
    return planned


def check_compiled(run_once: RunOnce, way: Way, name: str) -> None:
    found = both(run_once, gat(**way.alone), gat(**way.other), way, name)[1]
    (header, *_) = found.lines(0, "header")
    assert header["implementation"] == "pyg, compiled (default)"
    assert header["startup_s"]["compile"] > 0
    assert not [line for line in found.lines(0, "step") if line["compilations"]]
    assert "recompiled" not in found.result.flags


def way(plant: Callable[[], None] | None, **layout: Any) -> Way:
    same = {"model": GCN, "dtype": "float64", "chunks": "halo"}
    return Way(same | {"microbatches": 1}, same | layout | {"compile": "default"}, plant)


@pytest.mark.distributed
def test_two_stages_learn_the_same(run_once: RunOnce) -> None:
    """All validation included; no recorded step compiles anything."""
    layout = {"layout": "pp2", "microbatches": 2}
    check_compiled(run_once, way(without_inductor, **layout), "traced")


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_compiled_code_learns_the_same(run_once: RunOnce) -> None:
    check_compiled(run_once, way(None, layout="pp2", microbatches=2), "compiled")


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("microbatches", [1, 2])
def test_a_custom_model_trains_the_same(net: CustomModel, microbatches: int) -> None:
    """From its second call on, which compiles; layers built anew share nothing but code."""
    raw = GAT | {"model": net, "dtype": "float64", "chunks": "halo", "microbatches": microbatches}
    expected = step_of(Experiment.model_validate(raw))
    parts = parts_of(Experiment.model_validate(raw | {"compile": "default"}))
    counts = [compilations()]
    for _ in range(4):
        parts.engine.gradients.zero()
        assert take_step(parts).is_to_rounding(expected)
        counts.append(compilations())
    assert counts[0] < counts[2] == counts[4]


CASES = {
    "vig, deferred BatchNorm, recomputed": vig(
        model={"name": "vig", "blocks": 1, "implementation": "pyg"},
        batchnorm="deferred",
        activation_checkpointing="always",
        dtype="float64",
    ),
    "gcnii": gat(
        model={"name": "gcnii", "layers": 3, "hidden": 8, "implementation": "pyg"},
        dtype="float64",
    ),
    "sage, max, sampled": sampled(
        model={"name": "sage", "layers": 2, "aggregator": "max", "implementation": "pyg"},
        dtype="float64",
    ),
}


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("experiment", CASES.values(), ids=CASES)
def test_layers_of_pyg_train_the_same(experiment: Experiment) -> None:
    """What is compiled for some layers serves others of their shapes, as those of a copy."""
    compiled = experiment.model_copy(update={"compile": "default"})
    before = compilations()
    assert step_of(compiled).is_to_rounding(step_of(experiment))
    after = compilations()
    assert before < after
    step_of(compiled)
    assert compilations() == after
