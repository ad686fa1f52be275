"""A user's own model on sampled mini-batches is held against itself, whoever draws them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gnnhpc.kernels import sample
from gnnhpc.records.schema import Result
from tests.tools.dgl import needs_dgl
from tests.tools.forked import started
from tests.tools.pyg_sampler import needs_pyg_sampler

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not sample.is_here(), reason="needs a C++ compiler, as g++"),
]
EXAMPLE = Path(__file__).parents[2] / "jobs" / "sweeps" / "own-model"
CELL = ["--model", "deep_gcn:DeepGcn", "--set", "model.layers=2", "--set", "model.hidden=8"]
CELL += ["--data", "synthetic-citation", "--set", "data.nodes=150", "--set", "data.edges=1500"]
CELL += ["--set", "data.features=12", "--layout", "dp2", "--microbatches", "2"]
CELL += ["--set", "batch_size=12", "--set", "train_steps=4", "--set", "test_steps=1"]


@pytest.mark.quick("ours-replace: false", "dgl-replace: true")
@pytest.mark.parametrize(
    "options",
    [
        "replace: false",
        "replace: true",
        pytest.param("inductive: true", marks=pytest.mark.slow),
        "evaluation: sampled, inductive: true",
    ],
)
@pytest.mark.parametrize("sampler", ["ours", "pyg", "dgl"])
def test_a_users_model_is_its_twin(sampler: str, options: str, tmp_path: Path) -> None:
    if "evaluation" in options and sampler != "ours":
        pytest.skip("sampler ours alone evaluates so")
    if sampler == "dgl":
        needs_dgl()
    if sampler == "pyg":
        needs_pyg_sampler()
    drawn = f"sampling={{fanouts: [4, 3], sampler: {sampler}, {options}}}"
    out = tmp_path / "out"
    command = ["run", *CELL, "--set", drawn, "--out", out]
    with started(command, 2, tmp_path, plant=add_example) as ranks:
        assert ranks.wait() == [0, 0], ranks.err(0)
    (path,) = out.glob("cells/*/*/result.json")
    checks = {check.name: check for check in Result.read(path).audit}
    assert [check for check in checks.values() if check.verdict == "invalid"] == []
    assert [checks[name].verdict for name in ("self-check", "last self-check")] == ["ok", "ok"]


def add_example() -> None:
    sys.path.insert(0, str(EXAMPLE))
