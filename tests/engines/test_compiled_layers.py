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
from tests.training.test_ways_to_train import Way, both
from tests.validation.custom_models import GRAPH, write_model

GCN = {"name": "gcn", "implementation": "pyg"}
AOT = functools.partial(torch.compile, backend="aot_eager")
"""Traces layers and differentiates them as torch does, but computes each operation eagerly."""


def without_inductor() -> None:
    torch.compile = AOT  # type: ignore[assignment]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", AOT)


PLANTS = {"traced": without_inductor, "compiled": None}


@pytest.mark.quick("traced")
@pytest.mark.distributed
@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_two_stages_learn_the_same(plant: Callable[[], None] | None, run_once: RunOnce) -> None:
    """All validation included; no recorded step compiles anything."""
    if plant is None and shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    one: dict[str, Any] = {"model": GCN, "dtype": "float64", "chunks": "halo", "microbatches": 1}
    two = one | {"layout": "pp2", "microbatches": 2, "compile": "default"}
    found = both(run_once, gat(**one), gat(**two), Way(plant=plant), "planted")[1]
    (header, *_) = found.lines(0, "header")
    assert header["implementation"] == "pyg, compiled (default)"
    assert header["startup_s"]["compile"] > 0
    assert not [line for line in found.lines(0, "step") if line["compilations"]]
    assert "recompiled" not in found.result.flags


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("microbatches", [1, 2])
def test_a_custom_model_trains_the_same(tmp_path: Path, microbatches: int) -> None:
    """From its second call on, which compiles; layers built anew share nothing but code."""
    net = CustomModel.model_validate(write_model(tmp_path, GRAPH)).planned(tmp_path)
    raw = GAT | {"model": net, "dtype": "float64", "chunks": "halo", "microbatches": microbatches}
    expected = step_of(Experiment.model_validate(raw))
    parts = parts_of(Experiment.model_validate(raw | {"compile": "default"}))
    counts = [compilations()]
    for _ in range(4):
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
