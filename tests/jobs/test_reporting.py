"""`submit --report`: the job that reports, what it runs, and the report of a local run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import jobs
from gnnhpc.core.errors import InputError
from gnnhpc.core.python_path import ROOT
from gnnhpc.records.code_snapshot import check_snapshot
from gnnhpc.records.run_paths import RunPaths
from jobs.actions.cancel import cancel
from jobs.cli import main
from jobs.cluster.launch import Launch
from jobs.cluster.report_job import report_command, report_home, report_needs, report_setup
from jobs.cluster.site import Site
from jobs.folder.submission_records import read_submissions

GRAPH = {"name": "synthetic-citation", "nodes": 60, "edges": 200, "features": 16}
GRID: dict[str, Any] = {"models": "gat", "data": [GRAPH], "chunks": "halo", "microbatches": 2}
SPEC = {"name": "run", "defaults": {"train_steps": 3}, "grids": [GRID | {"layouts": ["seq"]}]}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where an sbatch that counts jobs from 1 keeps the scripts, and squeue has the last.

    Nothing runs: what Slurm makes of it is tested on a real one.
    """
    folder = tmp_path / "slurm"
    (folder / "bin").mkdir(parents=True)
    programs = {
        "sbatch": f'[ -f "$1" ] || exit 1\nn=$(($(ls {folder}/*.sh 2>/dev/null | wc -l) + 1))\n'
        f'cat "$1" >{folder}/$n.sh\necho "Submitted batch job $n"',
        "srun": "exit 1",
        "squeue": f"cat {folder}/queue 2>/dev/null; exit 0",
        "scancel": f'for job; do sed -i "/^$job[^0-9]/d" {folder}/queue; done',
    }
    for name, text in programs.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path / "cache"))
    return folder


def test_one_more_job_waits_for_all_others(slurm: Path, tmp_path: Path) -> None:
    spec = SPEC | {"grids": [GRID | {"layouts": ["seq", "pp2"], "seq_microbatches": 2}]}
    site = Site(partition="p", exclusive=True, slurm={"dependency": "afterok:9"}, time="00:07:00")
    done = jobs.submit(jobs.plan(spec), runs=tmp_path, site=("here", site), reporting=True)
    assert [job for job, _, _ in done.jobs] == ["1", "2"]
    assert done.report_job == "3"
    script = (slurm / "3.sh").read_text()
    for line in (
        "#SBATCH --dependency=afterok:9,afterany:1:2", "#SBATCH --job-name=report@run",
        "#SBATCH --partition=p", "#SBATCH --time=7", "#SBATCH --ntasks-per-node=1",
    ):  # fmt: skip
        assert f"\n{line}\n" in script
    assert "--array" not in script
    assert "exclusive" not in script
    # Of cells alone the run's records tell.
    assert [one.array for one in read_submissions(RunPaths(done.run))] == ["gat-seq", "gat-pp2"]


def test_it_is_asked_for(slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(SPEC))
    assert main(["submit", str(file), "--runs", str(tmp_path / "a")]) == 0
    assert not (slurm / "2.sh").exists()
    assert not (tmp_path / "a/run/code/analysis").exists()
    assert main(["submit", str(file), "--runs", str(tmp_path / "b"), "--report"]) == 0
    assert "report, once these have ended: Slurm job 3\n" in capsys.readouterr().out


def test_the_run_keeps_the_code_that_reports(slurm: Path, tmp_path: Path) -> None:
    run = RunPaths(jobs.submit(jobs.plan(SPEC), runs=tmp_path, reporting=True).run)
    snapshot = check_snapshot(run)
    assert snapshot is not None
    assert "analysis/cli.py" in snapshot.files
    assert report_home(run, Launch()) == str(run.code)
    assert report_home(run, Launch(live=True)) == str(ROOT)
    version = f"{sys.executable} -m analysis --version"
    done = subprocess.run(
        ["bash", "-c", "\n".join([*report_setup(run, Launch()), version])],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"({run.code}, " in done.stdout
    (run.code / "analysis/cli.py").write_text("changed")
    with pytest.raises(InputError, match=r"analysis/cli\.py changed since"):
        check_snapshot(run)
    (run.code / "analysis/cli.py").unlink()
    with pytest.raises(InputError, match=r"analysis/cli\.py missing since"):
        check_snapshot(run)


def test_code_that_was_not_recorded_is_not_run(slurm: Path, tmp_path: Path) -> None:
    run = RunPaths(jobs.submit(jobs.plan(SPEC), runs=tmp_path).run)
    assert check_snapshot(run) is not None
    (run.code / "analysis").mkdir()
    (run.code / "analysis/__init__.py").write_text("")
    with pytest.raises(InputError, match=r"analysis/__init__\.py added since"):
        check_snapshot(run)


def test_a_run_without_that_code_says_which_is_run(slurm: Path, tmp_path: Path) -> None:
    jobs.submit(jobs.plan(SPEC), runs=tmp_path)
    heard: list[str] = []
    more = SPEC | {"defaults": {"train_steps": 3, "repeats": 2}}
    done = jobs.submit(
        jobs.plan(more), runs=tmp_path, extend_run=True, reporting=True, tell=heard.append
    )
    assert done.report_job == "3"
    words = f"the run keeps no code that reports; its report job runs that in {ROOT}"
    assert words in heard
    assert f"export PYTHONPATH={ROOT}$" in (slurm / "3.sh").read_text()


def test_a_set_up_line_that_fails_ends_the_job(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    launch = Launch("here", Site(setup=("export A=1", "cd /nowhere/at/all"), activate="echo no"))
    script = "\n".join([*report_setup(paths, launch), "echo reported"])
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.endswith("error: set-up line 'cd /nowhere/at/all' failed\n")


def test_it_runs_the_sites_interpreter_in_any_folder(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "my runs" / "it's one")
    (tmp_path / "my runs" / "it's one").mkdir(parents=True)
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    python.chmod(0o755)
    command = report_command(paths, Launch("here", Site(python=str(python))))
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    run = str(paths.root)
    words = ["-m", "jobs", "status", "--cost", "--patience", "60", run]
    words += ["-m", "analysis", "report", run]
    assert done.stdout.splitlines() == words


def test_the_signal_before_a_jobs_end_does_not_end_it(tmp_path: Path) -> None:
    """Slurm sends it to the step's processes 90 seconds before; short jobs get it early."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nkill -USR2 $$\necho "$2"\n')
    python.chmod(0o755)
    command = report_command(RunPaths(tmp_path), Launch("here", Site(python=str(python))))
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["jobs", "analysis"])


def test_it_needs_one_task_and_no_node_alone() -> None:
    site = Site(cpus_per_task=4, tasks_per_node=4, exclusive=True, gres="gpu:1", max_parallel=2)
    needs = report_needs(Launch("here", site), ["1"])
    assert (needs.tasks, needs.cpus_per_task, needs.exclusive) == (1, 4, False)
    assert (needs.gres, needs.gpus_per_node, needs.max_parallel) == (None, None, None)


def test_a_refused_report_job_leaves_the_cells(slurm: Path, tmp_path: Path) -> None:
    sbatch = slurm / "bin/sbatch"
    refuse = f'[ -e {slurm}/1.sh ] && {{ echo "sbatch: error: Invalid qos" >&2; exit 1; }}\n'
    sbatch.write_text(sbatch.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{refuse}"))
    heard: list[str] = []
    done = jobs.submit(jobs.plan(SPEC), runs=tmp_path, reporting=True, tell=heard.append)
    assert done.report_job is None
    assert heard[-1].startswith("no job will write the report: sbatch report: found Invalid qos")
    assert len(read_submissions(RunPaths(done.run))) == 1


def test_cancel_cancels_it_too(slurm: Path, tmp_path: Path) -> None:
    run = jobs.submit(jobs.plan(SPEC), runs=tmp_path, reporting=True).run
    queue = [
        ("1_0", "PENDING", "None", "gat-seq@run", "/x", str(run)),
        ("2", "PENDING", "Dependency", "report@run", "/x", str(run)),
        ("7", "RUNNING", "None", "report@run", "/x", "/another/run"),
    ]
    (slurm / "queue").write_text("".join("\x1f".join(line) + "\n" for line in queue))
    assert cancel(run, "gat-seq") == ["Slurm job 1"]
    assert cancel(run) == ["Slurm job 2"]


@pytest.mark.slow
@pytest.mark.distributed
def test_a_local_run_that_is_waited_for_is_reported_here(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match="without --wait"):
        jobs.submit(jobs.plan(SPEC), cluster="local", runs=tmp_path, reporting=True)
    assert not (tmp_path / "run").exists()
    done = jobs.submit(
        jobs.plan(SPEC), cluster="local", runs=tmp_path, reporting=True, wait=True, live=True
    )
    assert done.failed == 0
    assert "2 cells, 2 valid" in (done.run / "report/report.html").read_text()
    assert f"report: {done.run}" in capfd.readouterr().out
