"""What an array measures: the code it was submitted with, whatever the checkout holds meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from gnnhpc.records.run_paths import RunPaths
from gnnhpc.records.schema import Result
from tests.cluster.runs import ROOT, TINY_GAT, Run, User, losses

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

GRID = TINY_GAT | {"layouts": ["seq", "pp2"], "microbatches": [1]}


def checkout(folder: Path) -> Path:
    """A checkout of the user's own, to edit."""
    for package in ("gnnhpc", "jobs", "analysis"):
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, folder / package, ignore=unwanted)
    return folder


def origin(result: Result) -> tuple[str, str, str | None, int]:
    """Digest of the code, where it is from, and name and CPUs of the site."""
    provenance = result.provenance
    site = provenance["site"]
    return provenance["code"], provenance["code_from"], site["name"], site["cpus_per_task"]


def test_an_edit_while_arrays_wait_changes_nothing_that_they_measure(user: User) -> None:
    """Nor does it change what is submitted by hand later, from a moved run folder, or rerun."""
    mine = checkout(user.home / "mine")
    env = {"PYTHONPATH": str(mine), "PYTHONSAFEPATH": "1"}
    (user.home / "spec.yaml").write_text(yaml.safe_dump({"name": "kept", "grids": [GRID]}))
    site = user.site({"cpus_per_task": 2})
    user.cluster.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    try:
        user.jobs("submit", "spec.yaml", "--runs", user.runs, *site, env=env)
        run = Run(user, RunPaths(user.runs / "kept"))
        assert {cell["state"] for cell in run.status().values()} == {"pending"}
        worker = mine / "gnnhpc/run/worker.py"
        worker.write_text(worker.read_text() + "raise SystemExit('the edited checkout ran')\n")
    finally:
        user.cluster.run("scontrol", "update", "PartitionName=main", "State=UP")
    seq, pp2 = run.cell("gat-seq"), run.cell("gat-pp2")
    first = {cell.id: run.result(cell) for cell in (seq, pp2)}
    run.wait_until_idle()
    assert all(result.valid for result in first.values()), run.logs()
    code = first[seq.id].provenance["code"]
    assert {origin(result) for result in first.values()} == {(code, "snapshot", "test", 2)}

    moved = RunPaths(user.home / "moved")
    run.paths.root.rename(moved.root)
    run = Run(user, moved)
    user.cluster.run("sbatch", "--wait", moved.script("gat-pp2"), cwd=mine)
    assert origin(run.result(pp2, 2)) == (code, "snapshot", "test", 2), run.logs()
    assert losses(run.attempt(pp2, 2), 2) == losses(run.attempt(pp2), 2)

    # No site file, and the checkout as it stands now.
    rerun = ("rerun", moved.root, "--array", "gat-seq", "--index", "0")
    said = user.jobs(*rerun, env=env).stderr
    assert (
        said == f"note: runs the code that the run keeps, not that in {mine}, which --live would\n"
    )
    assert origin(run.result(seq, 2)) == (code, "snapshot", "test", 2), run.logs()
    run.wait_until_idle()
    said = user.jobs(*rerun, "--live", *user.site({"cpus_per_task": 1})).stderr
    assert "note: site test, not as submitted: cpus_per_task 1 instead of 2\n" in said
    assert f"note: runs the code in {ROOT} as it is when each cell starts\n" in said
    assert origin(run.result(seq, 3)) == (code, "live", "test", 1), run.logs()


def test_a_copy_that_was_changed_measures_nothing(user: User) -> None:
    run = user.submit([TINY_GAT | {"layouts": ["seq"], "microbatches": [1]}], name="changed")
    cell = run.cells[0]
    assert run.result(cell).valid
    run.wait_until_idle()
    loop = run.paths.code / "gnnhpc/train/loop.py"
    loop.write_text(loop.read_text() + "# edited\n")
    refused = user.jobs("rerun", run.paths.root, "--array", "gat-seq", check=False)
    assert refused.returncode == 2
    assert "gnnhpc/train/loop.py changed since the run was submitted" in refused.stderr
    user.cluster.run("sbatch", "--wait", run.paths.script("gat-seq"), check=False)
    assert "gnnhpc/train/loop.py changed since the run was submitted" in run.logs()
    assert len(run.paths.cell(cell.id).attempts()) == 1
    # Slurm lists a job that has just ended a little longer.
    run.wait_until_idle()
    (shown,) = run.status().values()
    assert shown["state"] == "done", "the attempt from before still counts"
