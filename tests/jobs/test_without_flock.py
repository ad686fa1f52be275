"""A sweep where the file system refuses flock, as Lustre does that is mounted without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.no_flock import without_flock

ROOT = Path(__file__).parents[2]
GRAPH = {"name": "synthetic-citation", "nodes": 60, "edges": 200, "features": 16}
GRID = {"models": "gat", "data": [GRAPH], "layouts": ["seq"], "train_steps": 3, "seeds": [0, 1]}
SPEC = {"name": "run", "grids": [GRID]}


@pytest.mark.slow
@pytest.mark.distributed
def test_a_sweep_runs_and_is_shown(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(json.dumps(SPEC))
    env = os.environ | without_flock(tmp_path, "ENOSYS")
    env |= {"PYTHONPATH": str(ROOT)}

    def jobs(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "jobs", *arguments],
            env=env, cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip

    done = jobs("submit", "spec.yaml", "--cluster", "local", "--wait")
    assert done.returncode == 0, done.stderr
    assert "2 done\n" in done.stdout
    shown = jobs("status", "runs/run")
    assert shown.returncode == 0
    rerun = ("rerun", "runs/run", "--array", "gat-seq", "--cluster", "local", "--wait")
    assert jobs(*rerun).returncode == 0
    assert not (tmp_path / "runs/run/.lock.owner").exists()
