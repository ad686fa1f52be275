"""Steps that are replayed as CUDA graphs have the bits of steps that are computed one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gnnhpc.experiment.experiment import Experiment
from tests.gpu.test_cells import SHARED, ran, visible
from tests.tools.cells import Ran, gat, vig

pytestmark = pytest.mark.gpu
STEPS: dict[str, Any] = {
    "device": "gpu",
    "train_steps": 12,
    "test_every": 4,
    "test_steps": 3,
    "warmup_steps": 1,
    "optimizer": {"lr": 0.01, "lr_schedule": "cosine", "clip_norm": 0.5},
}
MOMENTUM = {"name": "sgd", "momentum": 0.9, "lr": 0.01, "clip_norm": 0.5}
CELLS = {
    "gat": gat(**STEPS),
    "gat, one chunk, sgd": gat(**STEPS | {"microbatches": 1, "optimizer": MOMENTUM}),
    "gcn": gat(model={"name": "gcn"}, **STEPS),
    "sage, max": gat(model={"name": "sage", "aggregator": "max"}, **STEPS),
    "gin": gat(model={"name": "gin"}, **STEPS),
    "vig": vig(**STEPS),
    "vig, deferred": vig(batchnorm="deferred", **STEPS),
    # Stages on one GPU replay their actions.
    "vig pp2": vig(layout="pp2", schedule="1f1b", **STEPS),
    "gat pp2": gat(layout="pp2", **STEPS),
    "gat dp2-pp2": gat(layout="dp2-pp2", **STEPS),
}


def graphs_of(cell: Ran) -> dict[str, str]:
    (event,) = [line for line in cell.lines(0, "event") if line["name"] == "cuda graph"]
    detail: dict[str, str] = event["detail"]
    return detail


def numbers(cell: Ran) -> list[tuple[Any, ...]]:
    keys = ("loss", "grad_norm", "lr")
    return [
        tuple(step[key] for key in keys) for p in ("train", "test") for step in cell.steps(0, p)
    ]


@pytest.mark.parametrize("experiment", CELLS.values(), ids=CELLS)
def test_replayed_steps_have_the_same_bits(tmp_path: Path, experiment: Experiment) -> None:
    env = SHARED | {"CUDA_VISIBLE_DEVICES": visible()[0]}
    captured = ran(tmp_path / "auto", experiment, env=env)
    off = experiment.model_copy(update={"cuda_graph": "off"})
    eager = ran(tmp_path / "off", off, env=env)
    assert set(captured.statuses) == set(eager.statuses) == {0}, captured.err + eager.err
    profiled = sum(step["profiled"] for step in captured.steps(0, "train"))
    found = graphs_of(captured)
    # The first step of each phase is captured, and profiled ones are computed.
    assert found["train"] == f"replayed {12 - 1 - profiled} times"
    assert found["test"] == "replayed 8 times"
    # Warm-up are the step that captures and the first that is computed after it.
    warm = [step["step"] for step in captured.steps(0, "train") if step["warmup"]]
    assert warm == [0, 1]
    assert graphs_of(eager) == {"all": "eager: cuda_graph is off"}
    assert numbers(captured) == numbers(eager)
