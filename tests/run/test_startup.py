"""A rank starts with what it needs: no compiler, and the same arithmetic without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gnnhpc.core.run_paths import RunPaths
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.result_file import Result
from gnnhpc.records.schema import read_lines
from tests.tools.cells import gat, manifest_of, vig

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
    command += ["--cell", str(tmp_path / "cell.jsonl")]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node=2", *command], capture_output=True, text=True, check=True
    )
    logs = [log.read_text() for log in tmp_path.rglob("rank-*.log")]
    said = "".join([done.stderr, *logs])
    loaded = {line.rpartition("|")[2].strip() for line in said.splitlines() if "|" in line}
    assert "torch" in loaded
    assert not loaded & HEAVY
    attempt = RunPaths(tmp_path).cell(cell.id).attempt(1)
    result = Result.read(attempt.result)
    assert result.valid, result.audit
    assert f"{cell.id}: done" in done.stderr
    assert f"; results in {attempt.root}" in done.stderr
    (header, *_) = read_lines(attempt.records(1))
    assert {"imports", "rendezvous", "build", "total"} <= header["startup_s"].keys()


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
