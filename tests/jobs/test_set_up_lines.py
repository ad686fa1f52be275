"""Set-up lines: each one's end is looked at, and a failing one is the cell's cause of failure."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from jobs.cluster.array_script import setup_lines
from jobs.cluster.arrays import group_by_array, resources_for
from jobs.cluster.launch import Launch
from jobs.cluster.site import Site
from jobs.folder.attempt_files import read_attempt_job
from jobs.folder.run_folder import create_run_folder
from jobs.spec.planning import Plan, plan
from jobs.state.run_status import status

import analysis
from gnnhpc.records.run_paths import RunPaths

GRID = {"models": "gat", "data": "synthetic-citation", "layouts": ["seq", "pp2"], "repeats": 2}
MODULE_3 = """\
module() {
    if [ "$2" = gcc/99 ]; then
        echo "ModuleCmd_Load.c(213):ERROR:105: Unable to locate a modulefile for 'gcc/99'" >&2
    fi
    export LOADED="$LOADED $2"
    return 0
}
"""
"""Environment Modules 3, which end with status 0 whatever happened."""


JOB = {
    "SLURM_JOB_ID": "19",
    "SLURM_ARRAY_JOB_ID": "17",
    "SLURM_ARRAY_TASK_ID": "1",
    "SLURMD_NODENAME": "n1",
}


@dataclass(frozen=True)
class Ended:
    """How a job ended whose ranks print what they find."""

    status: int
    out: str
    err: str


@pytest.fixture
def planned() -> Plan:
    return plan({"name": "sweep", "grids": [GRID]})


@pytest.fixture
def run(planned: Plan, tmp_path: Path) -> RunPaths:
    return create_run_folder(planned, tmp_path / "run", Launch(live=True))


def job(run: RunPaths, planned: Plan, site: Site, ranks: str, before: str = "") -> Ended:
    """The lines as both kinds of job have them, for cell 1 of gat-pp2."""
    array = group_by_array(planned.cells)[1]
    lines = setup_lines(Launch("here", site), resources_for(array.layout, site), None, array.name)
    script = "\n".join([before, f"run='{run.root}'", "index=1", *lines, ranks])
    done = subprocess.run(
        ["bash", "-c", script],
        env=os.environ | JOB,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not list(run.logs.glob(".set-up-*"))
    return Ended(done.returncode, done.stdout, done.stderr)


def cause(run: RunPaths) -> str:
    """The one failed cell's cause, as status says it; it is cell 1 of gat-pp2."""
    failed = [cell for cell in status(run.root).cells if cell.state != "missing"]
    assert [(cell.array, cell.index, cell.state) for cell in failed] == [("gat-pp2", 1, "failed")]
    return str(failed[0].detail)


def test_what_lines_define_lasts(run: RunPaths, planned: Plan) -> None:
    setup = (
        "greet() { echo hello $1; }",
        "export GREETED=world; declare -a THREE=(1 2 3)",
        "shopt -s nullglob # with a remark",
        "false || true",
        "cd /",
    )
    # A signal that was ignored before the shell began, as under nohup, stays in its list of traps.
    ended = job(run, planned, Site(setup=setup), "greet $GREETED ${#THREE[@]}; pwd; trap -p EXIT")
    assert (ended.status, ended.out, ended.err) == (0, "hello world\n/\n", "")


def test_a_trap_of_the_users_stays(run: RunPaths, planned: Plan) -> None:
    tidy = "trap 'echo tidied up' EXIT"
    ended = job(run, planned, Site(setup=(tidy, "true")), "echo ranks started")
    assert (ended.status, ended.out) == (0, "ranks started\ntidied up\n")
    ended = job(run, planned, Site(setup=(tidy, "false")), "echo ranks started")
    assert (ended.status, ended.out) == (1, "tidied up\n")
    assert "set-up line 'false' failed with status 1" in cause(run)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("false", "set-up line 'false' failed with status 1: it said nothing"),
        ("ls /no/such/place", "failed with status 2: ls: cannot access '/no/such/place'"),
        ("no-such-program", "failed with status 127: "),
        ("exit 3", "set-up line 'exit 3' ended the job with status 3: it said nothing"),
        ("exit 0", "ended the job with status 0"),
        ("if true; then", "failed with status "),
        ("set -e; false", "set-up line 'set -e; false' ended the job with status 1"),
        ("set -u; echo $NO_SUCH_NAME", "NO_SUCH_NAME: unbound variable"),
        (r"""echo 'a "b" \c' "ü"; echo second; false""", r"""1: a "b" \c """),
        ("head -c 100000 /dev/zero | tr '\\0' x; false", "xxx ... xxx"),
    ],
)
def test_a_line_that_fails_ends_the_job_and_is_the_cause(
    line: str, told: str, run: RunPaths, planned: Plan
) -> None:
    site = Site(setup=("true", line, "echo not reached"))
    ended = job(run, planned, site, "echo ranks started")
    assert ended.status == 1
    assert "not reached" not in ended.out
    assert "ranks started" not in ended.out
    assert f"error: set-up line '{line}'" in ended.err
    said = cause(run)
    assert said.startswith("rank 0 on n1: set-up line '")
    assert told in said
    assert len(said) < 1000


def test_a_module_that_is_not_there_is_told_though_its_status_is_0(
    run: RunPaths, planned: Plan
) -> None:
    site = Site(modules=("python/3.11", "gcc/99"))
    ended = job(run, planned, site, "echo ranks started", before=MODULE_3)
    assert (ended.status, ended.out.count("ranks started")) == (1, 0)
    assert "set-up line 'module load gcc/99' failed with status 0: ModuleCmd_Load.c" in cause(run)


def test_modules_are_loaded_into_the_jobs_own_shell(run: RunPaths, planned: Plan) -> None:
    site = Site(modules=("python/3.11", "ERROR_HANDLER/2"))
    ended = job(run, planned, site, "echo $LOADED", before=MODULE_3)
    assert (ended.status, ended.out) == (0, "python/3.11 ERROR_HANDLER/2\n")


def test_a_shell_without_modules_is_told(run: RunPaths, planned: Plan) -> None:
    ended = job(
        run, planned, Site(modules=("gcc",)), "echo ranks started", before="unset -f module"
    )
    assert ended.status == 1
    assert "set-up line 'module load gcc' failed with status 127" in cause(run)


def test_an_environment_and_a_scratch_folder_that_cannot_be_had(
    run: RunPaths, planned: Plan, tmp_path: Path
) -> None:
    site = Site(activate="source /no/venv/bin/activate")
    assert job(run, planned, site, "echo ranks started").status == 1
    assert "set-up line 'source /no/venv/bin/activate' failed with status 1" in cause(run)
    (tmp_path / "file").write_text("")
    site = Site(scratch=f"{tmp_path}/file/$USER")
    assert job(run, planned, site, "echo ranks started").status == 1
    assert "set-up line 'mkdir -p \"$TMPDIR\"' failed with status 1" in cause(run)
    folder = run.cells / status(run.root).cells[-1].cell
    assert sorted(path.name for path in folder.iterdir()) == ["attempt-1", "attempt-2"]


def test_the_record_is_one_more_attempt_whatever_there_is(run: RunPaths, planned: Plan) -> None:
    cell = next(cell for cell in planned.cells if (cell.array, cell.index) == ("gat-pp2", 1))
    for number in (1, 9, 10):
        run.cell(cell.id).attempt(number).root.mkdir(parents=True)
    job(run, planned, Site(setup=("false",)), "true")
    assert [each.number for each in run.cell(cell.id).attempts()] == [1, 9, 10, 11]
    record = json.loads(run.cell(cell.id).attempt(11).failure(0).read_text())
    assert (record["rank"], record["host"], record["step"]) == (0, "n1", None)
    assert record["job"] == "17_1"
    assert read_attempt_job(run.cell(cell.id).attempt(11)) == "17_1"


def test_a_site_without_lines_has_nothing_to_look_at(planned: Plan) -> None:
    array = group_by_array(planned.cells)[0]
    lines = setup_lines(Launch(), resources_for(array.layout, Site()), None, array.name)
    assert not any("gnnhpc_" in line for line in lines)


def test_a_report_tells_the_cause_too(run: RunPaths, planned: Plan) -> None:
    job(run, planned, Site(setup=("ls /no/such/place",)), "true")
    loaded = analysis.load_run(run.root)
    told = "rank 0 on n1: set-up line 'ls /no/such/place' failed with status 2: ls: cannot access"
    assert loaded.cells["failure"].dropna().str.startswith(told).tolist() == [True]
    assert loaded.attempts["failure"].str.startswith(told).tolist() == [True]
