"""Cells that are started later run as those before them did, unless a user says otherwise."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import jobs
from gnnhpc.core.errors import InputError
from gnnhpc.experiment.manifest import read_manifest
from gnnhpc.records.run_paths import RunPaths
from gnnhpc.records.schema import Result
from jobs.cli import main
from jobs.cluster.launch import Launch, resolved
from jobs.cluster.site import Site
from jobs.folder.recorded_launch import read_launch, relaunch
from jobs.folder.run_folder import create_run_folder, extend_run_folder
from jobs.folder.submission_records import read_submissions

GRAPH = {"name": "synthetic-citation", "nodes": 60, "edges": 200, "features": 16}
GRID: dict[str, Any] = {"models": "gat", "data": [GRAPH], "layouts": ["seq"], "train_steps": 3}
LAB = Site(partition="lab", cpus_per_task=2, modules=("gcc/12",), time="00:30:00")


@pytest.fixture(autouse=True)
def nothing_else_says_how(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("GNNHPC_THREADS", "GNNHPC_SITE_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def planned(**keys: Any) -> jobs.Plan:
    return jobs.plan({"name": "run", "grids": [GRID | keys]})


def made(folder: Path, site: Site = LAB) -> RunPaths:
    return create_run_folder(planned(), folder / "run", Launch("lab", resolved(site, "slurm")))


def test_a_run_is_started_again_as_it_was_submitted(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("sites: {other: {cpus_per_task: 7}}")
    how = relaunch(made(tmp_path), "slurm", None, live=False)
    assert how.launch == how.submitted
    assert (how.launch.site_name, how.launch.site) == ("lab", resolved(LAB, "slurm"))
    assert (how.launch.python, how.launch.live, how.notes) == (sys.executable, False, ())


def test_other_settings_are_said_in_one_line(tmp_path: Path) -> None:
    paths = made(tmp_path)
    told = ("desk", Site(partition="lab", modules=("gcc/12", "mpi")))
    how = relaunch(paths, "slurm", told, live=False)
    assert how.launch.site.cpus_per_task == 1
    assert how.submitted.site.cpus_per_task == 2
    assert how.notes == (
        "site desk, not lab as submitted: cpus_per_task 1 instead of 2, "
        "time 01:00:00 instead of 00:30:00, modules gcc/12; mpi instead of gcc/12",
    )
    assert relaunch(paths, "slurm", ("same", LAB), live=False).notes == ()


def test_the_interpreter_of_the_submission_is_taken_where_it_is(tmp_path: Path) -> None:
    paths = made(tmp_path)
    facts = json.loads(paths.provenance.read_text())
    other = tmp_path / "venv/bin/python"
    other.parent.mkdir(parents=True)
    other.write_text("")
    paths.provenance.write_text(json.dumps(facts | {"python": str(other)}))
    how = relaunch(paths, "slurm", None, live=False)
    assert how.launch.interpreter() == str(other)
    assert how.notes == (f"runs {other}, as the run was submitted, not {sys.executable}",)
    named = relaunch(paths, "slurm", ("lab", Site(python="/opt/python")), live=False).launch
    assert named.interpreter() == "/opt/python"
    other.unlink()
    assert relaunch(paths, "slurm", None, live=False).launch.python == sys.executable


@pytest.mark.parametrize("text", [None, '{"version": 1}'])
def test_a_run_that_does_not_say_how_takes_the_site_of_now(
    text: str | None, tmp_path: Path
) -> None:
    (tmp_path / "site.yaml").write_text("sites: {here: {cpus_per_task: 3}}")
    paths = made(tmp_path)
    paths.provenance.unlink()
    if text is not None:
        paths.provenance.write_text(text)
    assert read_launch(paths) is None
    how = relaunch(paths, "slurm", None, live=False)
    assert (how.launch.site_name, how.launch.site.cpus_per_task) == ("here", 3)
    assert how.notes == ("the run does not say with which site it was submitted; uses here",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "provenance.json: found damaged JSON"),
        ("null", "provenance.json: found nothing"),
        ("[]", "provenance.json: found a list"),
        ("3", "provenance.json: found a number"),
        ("{}", "provenance.json: version: found nothing; allowed: 1"),
        ('{"version": 1, "site": 3}', "provenance.json: site: found 3"),
        ('{"version": 1, "site": {}}', "provenance.json: site: found {}"),
    ],
)
def test_a_damaged_provenance_is_no_older_run(text: str, says: str, tmp_path: Path) -> None:
    paths = made(tmp_path)
    paths.provenance.write_text(text)
    with pytest.raises(InputError, match=re.escape(says)):
        relaunch(paths, "slurm", None, live=False)


def test_a_run_of_an_older_version_runs_the_code_of_now_and_says_so(tmp_path: Path) -> None:
    old = create_run_folder(planned(), tmp_path / "run", Launch(live=True))
    how = relaunch(old, "local", None, live=False)
    assert how.launch.live
    assert "the run keeps no code of its own; runs that in " in how.notes[0]


def test_threads_of_a_variable_are_those_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNHPC_THREADS", "3")
    assert resolved(Site(), "local").settings() == {"cpus_per_task": 3, "tasks_per_node": 1}
    assert resolved(Site(), "slurm").cpus_per_task == 1
    assert resolved(Site(cpus_per_task=2), "local").cpus_per_task == 2
    monkeypatch.setenv("GNNHPC_THREADS", "many")
    with pytest.raises(InputError, match="GNNHPC_THREADS: found 'many'; allowed: a whole number"):
        resolved(Site(), "local")


def test_threads_that_slurms_jobs_inherit_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = made(tmp_path)
    monkeypatch.setenv("GNNHPC_THREADS", "1")
    assert relaunch(paths, "slurm", None, live=False).notes == (
        "the jobs inherit GNNHPC_THREADS=1, in place of the site's 2 threads",
    )
    # The local executor sets it for its ranks.
    assert relaunch(paths, "local", None, live=False).notes == ()


def test_scripts_of_arrays_that_a_run_has_stay_as_submitted(tmp_path: Path) -> None:
    paths = made(tmp_path)
    how = relaunch(paths, "slurm", ("desk", Site(partition="desk")), live=False)
    larger = planned(layouts=["seq", "pp2"], seeds=[0, 1])
    extend_run_folder(larger, paths, how.launch, how.submitted)
    before, new = (paths.script(f"gat-{layout}").read_text() for layout in ("seq", "pp2"))
    assert "#SBATCH --partition=lab\n" in before
    assert "#SBATCH --array=0-1\n" in before
    assert "#SBATCH --partition=desk\n" in new
    for script in (before, new):
        assert 'export PYTHONPATH="$run/code"${PYTHONPATH' in script


def threads(paths: RunPaths, cell: int, attempt: int) -> tuple[int, Any]:
    """Threads of an attempt, and the site's settings in its result."""
    found = Result.read(paths.cell(read_manifest(paths.manifest)[cell].id).attempt(attempt).result)
    return found.provenance["ranks"][0]["threads"], found.provenance["site"]


@pytest.mark.slow
@pytest.mark.distributed
def test_a_cell_run_again_without_the_site_file_has_the_threads_of_the_first_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spec.yaml").write_text(json.dumps({"name": "run", "grids": [GRID]}))
    (tmp_path / "mine.yaml").write_text("sites: {lab: {cpus_per_task: 2}}")
    (tmp_path / "yours.yaml").write_text("sites: {desk: {cpus_per_task: 1}}")
    local = ["--cluster", "local", "--wait"]
    assert main(["submit", "spec.yaml", "--site-file", "mine.yaml", *local]) == 0
    paths = RunPaths(tmp_path / "runs/run")
    rerun = ["rerun", str(paths.root), "--array", "gat-seq", "--index", "0", *local]
    assert main(rerun) == 0
    assert capsys.readouterr().err == ""
    assert main(["submit", "spec.yaml", "--extend", "--set", "seed=1", *local]) == 0
    assert capsys.readouterr().err == ""
    lab = {"name": "lab", "cpus_per_task": 2, "parallel": 1}
    assert threads(paths, 0, 1) == threads(paths, 0, 2) == threads(paths, 1, 1) == (2, lab)

    assert main([*rerun, "--site-file", "yours.yaml"]) == 0
    assert capsys.readouterr().err == (
        "note: site desk, not lab as submitted: cpus_per_task 1 instead of 2\n"
    )
    assert threads(paths, 0, 3) == (1, {"name": "desk", "cpus_per_task": 1, "parallel": 1})
    sites = [one.site and one.site["name"] for one in read_submissions(paths)]
    assert sites == ["lab", "lab", "lab", "desk"]
    assert "GNNHPC_SITE" not in os.environ
