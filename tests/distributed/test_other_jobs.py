"""Which jobs share a node: as Slurm's programs say, and nothing where they do not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gnnhpc.distributed import other_jobs as module
from gnnhpc.distributed.environment import Environment, read_environment
from gnnhpc.distributed.other_jobs import OtherJobs, other_jobs
from tests.distributed.test_environment import SRUN

NODES = "NodeName=n1 CPUAlloc=14 CPUTot=16 State=MIXED\nNodeName=n2 CPUAlloc=9 CPUTot=16\n"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(module, "_TIMEOUT_S", 0.5)
    return tmp_path


def says(folder: Path, program: str, text: str, after: str = "") -> None:
    path = folder / program
    path.write_text(f"#!/bin/sh\n{after}\ncat <<'END'\n{text}\nEND\n")
    path.chmod(0o755)


def a_job(**changes: str) -> Environment:
    own = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_CPUS_PER_NODE": "7(x2)"}
    return read_environment(SRUN | own | changes)


def test_other_jobs_are_those_that_are_not_this_one(programs: Path) -> None:
    says(programs, "squeue", "1234\n77\n1234\n5\n77")
    says(programs, "scontrol", NODES)
    assert other_jobs(a_job()) == OtherJobs(("5", "77"), 23 - 14)
    says(programs, "squeue", "1234")
    assert other_jobs(a_job(SLURM_JOB_CPUS_PER_NODE="14,9")) == OtherJobs((), 0)


def test_slurm_that_does_not_answer_is_not_waited_for(programs: Path) -> None:
    says(programs, "squeue", "1234", after="sleep 60")
    began = time.monotonic()
    assert other_jobs(a_job()) is None
    # Far less than the program sleeps, however busy the machine is.
    assert time.monotonic() - began < 30
    says(programs, "squeue", "", after="exit 1")
    assert other_jobs(a_job()) is None
    (programs / "squeue").unlink()
    programs.joinpath("scontrol").write_text("")
    says(programs, "squeue", "1234")
    says(programs, "scontrol", "", after="exit 1")
    assert other_jobs(a_job()) == OtherJobs((), None)
