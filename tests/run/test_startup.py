"""A rank starts with what it needs: no compiler, and the same arithmetic without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gnnhpc.core.run_paths import RunPaths
from gnnhpc.engines.stage import build_stage
from gnnhpc.engines.step_timer import StepTimer
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.flags import build_experiment
from gnnhpc.records.result_file import Result
from gnnhpc.records.schema import read_lines
from gnnhpc.training.setup import build_optimizer
from tests.tools.cells import gat, manifest_of, vig
from tests.tools.ranks import run_ranks

HEAVY = {"torch._dynamo", "sympy", "torch.distributed.checkpoint", "torch_geometric", "pandas"}


@pytest.mark.quick("gat pp2")
@pytest.mark.distributed
@pytest.mark.parametrize(
    "experiment", [vig(layout="dp2"), gat(layout="pp2")], ids=["vig dp2", "gat pp2"]
)
def test_a_run_loads_nothing_heavy(experiment: Experiment, tmp_path: Path) -> None:
    cell = manifest_of(tmp_path / "made", experiment)[0]
    (tmp_path / "cell.jsonl").write_text(cell.to_line() + "\n")
    command = [sys.executable, "-X", "importtime", "-m", "gnnhpc", "run", "--out", str(tmp_path)]
    outputs = run_ranks([*command, "--cell", str(tmp_path / "cell.jsonl")], 2)
    said = "".join(output.stderr for output in outputs)
    said += "".join(log.read_text() for log in tmp_path.rglob("rank-*.log"))
    loaded = {line.rpartition("|")[2].strip() for line in said.splitlines() if "|" in line}
    assert "torch" in loaded
    assert not loaded & HEAVY
    attempt = RunPaths(tmp_path).cell(cell.id).attempt(1)
    result = Result.read(attempt.result)
    assert result.valid, result.audit
    assert f"{cell.id}: done" in outputs[0].stderr
    assert f"; results in {attempt.root}" in outputs[0].stderr
    assert result.provenance["launcher"] == "torchrun"
    (header, *_) = read_lines(attempt.records(1))
    assert {"imports", "rendezvous", "build", "total"} <= header["startup_s"].keys()


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_the_optimizer_is_torchs(name: str) -> None:
    small = {"name": "vig", "blocks": 1, "grapher_width": 8, "ffn_width": 8, "readout_width": 8}
    experiment = build_experiment(
        {
            "model": small,
            "data": {"name": "synthetic-cifar10", "image_size": 4},
            "batch_size": 4,
            "optimizer": {"name": name, "lr": 0.01, "weight_decay": 0.1},
        },
        "test",
    )
    layers = experiment.model.outline(experiment.data.facts())
    ours, theirs = (
        build_stage(experiment, layers, [range(len(layers))], StepTimer(torch.device("cpu")))
        for _ in range(2)
    )
    optimizer = build_optimizer(experiment, ours)
    assert optimizer is not None
    kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[name]
    reference = kind(theirs.parameters(), lr=0.01, weight_decay=0.1)
    if name == "adam":
        reference = torch.optim.Adam(theirs.parameters(), lr=0.01, weight_decay=0.1, fused=True)
    draw = torch.Generator().manual_seed(0)
    for _ in range(3):
        for mine, yours in zip(ours.parameters(), theirs.parameters(), strict=True):
            mine.grad = torch.randn(mine.shape, generator=draw)
            yours.grad = mine.grad.clone()
        optimizer.step()
        reference.step()
    assert all(map(torch.equal, ours.parameters(), theirs.parameters()))
    optimizer.zero_grad(set_to_none=False)
    assert all(p.grad is not None and not p.grad.any() for p in ours.parameters())


NUMPY = """
import os, sys
import gnnhpc.cli
from gnnhpc.cli import keep_numpy_to_one_thread
assert "numpy" not in sys.modules
keep_numpy_to_one_thread()
import numpy
values = numpy.ones((600, 600))
values @ values
print(len(os.listdir("/proc/self/task")))
"""


def test_numpy_has_no_threads_of_its_own() -> None:
    """They would look for work while steps are timed."""
    env = {name: v for name, v in os.environ.items() if not name.endswith("NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", NUMPY], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "1\n"
