"""Slurm that fails, hides or answers too late: nothing is lost, and nothing runs twice."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.runs import TINY_GAT, Run, User, wait_for
from tests.cluster.slurm import SEARCH_PATH, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

CLOSED = {"partition": "closed"}
SEQ = TINY_GAT | {"layouts": ["seq"], "microbatches": [1]}
NO_CONTROLLER = "Unable to contact slurm controller (connect failure)"
TIMED_OUT = "Socket timed out on send/recv operation"
FAILS = f"echo 'slurm_load_jobs error: {NO_CONTROLLER}' >&2; exit 1"
TIMES_OUT = f"echo 'sbatch: error: Batch job submission failed: {TIMED_OUT}' >&2; exit 1"
LOSES_ITS_ANSWER = f'"$real" "$@" >/dev/null || exit; {TIMES_OUT}'
KILLS_ITS_CALLER = '"$real" "$@"; kill -KILL $PPID; exit'
STARTED: list[Run] = []
"""Runs of this file of which every cell must run once, when the partition opens."""


@pytest.fixture(scope="module")
def login(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    """Somebody whose partition starts nothing until the last test opens it."""
    STARTED.clear()
    yield User(cluster, tmp_path_factory.mktemp("lost"))
    cluster.run("scontrol", "update", "PartitionName=closed", "State=DOWN")


def shims(folder: Path, **bodies: str) -> dict[str, str]:
    """Variables with which these programs run lines of bash first; `$real` is the real one."""
    folder = folder / "shims"
    folder.mkdir()
    for program, body in bodies.items():
        real = shutil.which(program, path=SEARCH_PATH)
        assert real is not None
        script = folder / program
        script.write_text(
            f'#!/bin/bash\nreal={shlex.quote(real)}\n{body}\nexec "$real" "$@"\n', encoding="utf-8"
        )
        script.chmod(0o755)
    return {"PATH": os.pathsep.join((str(folder), SEARCH_PATH))}


def status(run: Run, env: dict[str, str]) -> tuple[set[str], int]:
    """The states that `status` shows, and its exit status."""
    done = run.user.jobs("status", run.paths.root, "--json", check=False, env=env)
    return set(json.loads(done.stdout)["counts"]), done.returncode


def refused(run: Run, *command: str, env: dict[str, str] | None = None) -> str:
    """The one line with which a command refuses."""
    name, *flags = command
    done = run.user.jobs(name, run.paths.root, *flags, check=False, env=env)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stdout + done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("name", "bodies", "state", "words"),
    [
        ("silent", {"squeue": FAILS, "sacct": FAILS}, "unknown", NO_CONTROLLER),
        ("accounted", {"squeue": FAILS}, "pending", "no cell to run again (1 pending)"),
        ("hidden", {"squeue": "exit 0"}, "unknown", "squeue does not list JOB_0, sacct: PENDING"),
    ],
)
def test_cells_of_a_slurm_that_does_not_answer_are_not_run_again(
    login: User, tmp_path: Path, name: str, bodies: dict[str, str], state: str, words: str
) -> None:
    env = shims(tmp_path, **bodies)
    run = login.submit([SEQ], name=name, site=CLOSED)
    STARTED.append(run)
    wait_for(lambda: status(run, env) == ({state}, 3), "the accounting", 30)
    why = refused(run, "rerun", "--missing", env=env)
    assert words.replace("JOB", run.job("gat-seq")) in why
    assert "--force" in why
    if name == "silent":
        assert "--force" in refused(run, "cancel", env=env)
    assert len(run.jobs()) == 1


@pytest.mark.parametrize(
    ("name", "bodies", "words"),
    [
        ("lost", {"sbatch": LOSES_ITS_ANSWER}, "gat-seq 0: Slurm job "),
        ("kept", {"sbatch": LOSES_ITS_ANSWER, "squeue": FAILS, "sacct": FAILS}, TIMED_OUT),
        ("unheard", {"sbatch": TIMES_OUT}, "Slurm lists no such job"),
        ("dies", {"sbatch": KILLS_ITS_CALLER}, ""),
    ],
)
def test_an_array_whose_answer_is_lost_is_neither_lost_nor_submitted_twice(
    login: User, tmp_path: Path, name: str, bodies: dict[str, str], words: str
) -> None:
    env = shims(tmp_path, **bodies)
    run = login.submit([SEQ], name=name, site=CLOSED, check=name == "lost", env=env)
    STARTED.append(run)
    assert words in run.printed
    assert run.paths.submissions.exists() == (name == "lost")
    if name == "kept":
        assert f"`python -m jobs status {run.paths.root}` shows" in run.printed
        assert status(run, env)[0] == {"unknown"}
    if name == "unheard":
        assert run.jobs() == []
        login.jobs("rerun", run.paths.root, "--missing")
    assert len(run.jobs()) == 1
    assert "no cell to run again (1 pending)" in refused(run, "rerun", "--missing")


def test_cancel_leaves_the_jobs_of_others_alone(login: User, tmp_path: Path) -> None:
    accounted = shims(tmp_path, squeue=FAILS)
    run = login.submit([SEQ], name="foreign", site=CLOSED)
    wrap = ("sbatch", "--parsable", "--hold", "-o", "/dev/null", "--wrap", "true")
    foreign = login.cluster.run(*wrap).stdout.strip()
    line = json.loads(run.paths.submissions.read_text())
    with run.paths.submissions.open("a") as stream:
        # A job of this id was the run's once; now it is somebody else's.
        stream.write(json.dumps(line | {"job_id": foreign}) + "\n")
    login.jobs("cancel", run.paths.root, check=False, env=accounted)
    login.jobs("cancel", run.paths.root)
    assert run.jobs() == []
    left = login.cluster.run("squeue", "-h", "-j", foreign, "-o", "%T").stdout.strip()
    assert left == "PENDING"
    login.cluster.run("scancel", foreign)


def test_every_cell_of_these_runs_has_run_once(login: User) -> None:
    login.cluster.run("scontrol", "update", "PartitionName=closed", "State=UP")
    for run in STARTED:
        run.wait_until_idle()
        assert set(run.states().values()) == {"done"}, run.explain()
        assert run.attempts() == [1]
