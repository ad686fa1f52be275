"""Which nodes a rerun leaves out: those where a rank was lost or hung, not where code failed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gnnhpc.records.run_paths import RunPaths
from gnnhpc.records.schema import Failure
from jobs.actions.rerun import without_nodes
from jobs.cluster.launch import Launch
from jobs.folder.run_folder import create_run_folder
from jobs.spec.planning import plan
from jobs.state.failed_nodes import failed_nodes
from jobs.state.run_status import status
from tests.jobs.test_run_status import GRID, attempt, begin, cell, finish

LOST = "ended without an error message: killed, or out of memory"
IN_SLURM = {"slurm": {"SLURM_JOB_ID": "17"}}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """Four cells, on a machine without Slurm."""
    monkeypatch.setenv("PATH", str(tmp_path))
    one = plan({"name": "run", "grids": [GRID]})
    return create_run_folder(one, tmp_path / "run", Launch(live=True))


def failed(run: RunPaths, number: int, host: str, error: str, **changes: object) -> None:
    one = cell(run, number)
    failure = Failure(1, host, 3, "train", error, "")
    values = {"status": "failed", "failure": failure, "provenance": IN_SLURM} | changes
    finish(attempt(run, one), one, **values)


def found(run: RunPaths) -> list[str]:
    return failed_nodes(run, status(run.root).cells)


@pytest.mark.parametrize(
    ("error", "nodes"),
    [
        (LOST, ["n2"]),
        ("hung: no rank did anything for 60 s; it was in forward", ["n2"]),
        ("frozen for 60 s in backward of micro-batch 0", ["n2"]),
        ("ValueError: loss is nan", []),
        ("RuntimeError: Connection closed by peer", []),
    ],
)
def test_a_node_is_blamed_for_what_code_does_not_do(
    run: RunPaths, error: str, nodes: list[str]
) -> None:
    failed(run, 0, "n2", error)
    assert found(run) == nodes


def test_attempts_before_the_newest_count_and_this_machine_does_not(run: RunPaths) -> None:
    failed(run, 0, "n2", LOST)
    finish(attempt(run, cell(run)), cell(run))
    failed(run, 1, "n7", LOST)
    failed(run, 2, "login", LOST, provenance={"slurm": {}})
    assert found(run) == ["n2", "n7"]


def test_of_a_lost_cell_the_nodes_count_that_left_no_word(run: RunPaths) -> None:
    one = cell(run, 3)
    paths = attempt(run, one)
    for rank, host in ((0, "n4"), (1, "n5")):
        begin(paths, one, 2, host=host, pid=2**22 + 1, **IN_SLURM)
        paths.records(0).rename(paths.root / f"held-{rank}")
    for rank in (0, 1):
        (paths.root / f"held-{rank}").rename(paths.records(rank))
    for path in (paths.root, *paths.root.iterdir()):
        os.utime(path, (10**9, 10**9))
    assert status(run.root).cells[3].state == "lost"
    assert found(run) == ["n4", "n5"]
    failure = {"rank": 0, "host": "n4", "step": 1, "phase": "train", "error": "x", "at": ""}
    cells = status(run.root).cells
    paths.failure(0).write_text(json.dumps(failure))
    assert failed_nodes(run, cells) == ["n5"]


def test_nodes_are_left_out_beside_those_that_the_user_names() -> None:
    told: list[str] = []
    settings = {"time": "30", "slurm": {"exclude": "n1", "nice": 5}}
    assert without_nodes(settings, ["n2", "n7"], told.append) == {
        "time": "30",
        "slurm": {"exclude": "n1,n2,n7", "nice": 5},
    }
    assert told == ["nodes where a cell failed by their fault: n2, n7"]
    assert without_nodes({}, [], told.append) == {"slurm": {}}
