"""A run keeps the code it was submitted with, and nothing else measures its cells unasked."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import jobs
from gnnhpc.core.errors import InputError
from gnnhpc.experiment.manifest import read_manifest
from gnnhpc.records.code_snapshot import PACKAGES, check_snapshot, read_snapshot
from gnnhpc.records.provenance import code_digest
from gnnhpc.records.run_paths import RunPaths
from gnnhpc.records.schema import Result
from jobs.cli import main
from jobs.cluster.launch import Launch
from jobs.folder.run_folder import create_run_folder
from jobs.folder.submission_records import read_submissions

ROOT = Path(__file__).parents[2]
GRAPH = {"name": "synthetic-citation", "nodes": 60, "edges": 200, "features": 16}
GRID: dict[str, Any] = {"models": "gat", "data": [GRAPH], "layouts": "seq", "train_steps": 3}
SPEC: dict[str, Any] = {"name": "run", "grids": [GRID]}


def made(folder: Path, *, live: bool = False) -> RunPaths:
    return create_run_folder(jobs.plan(SPEC), folder / "run", Launch(live=live))


def checkout(folder: Path) -> Path:
    """A checkout of one's own, to edit."""
    for package in (*PACKAGES, "analysis"):
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, folder / package, ignore=unwanted)
    return folder


def python(*arguments: object, path: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS` with the packages of one folder, standing in another."""
    found = {"PYTHONPATH": str(path), "PYTHONSAFEPATH": "1", "GNNHPC_THREADS": "1"}
    found |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": ""}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=os.environ | found, cwd=cwd, capture_output=True, text=True, check=False,
    )  # fmt: skip


def edit(file: Path, text: str = "# edited\n") -> None:
    file.write_text(file.read_text() + text)


def swap(code: Path) -> None:
    """Other code in place of the run's, with a record of its own."""
    record = code.parent / "code.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"code": "0" * 16}))


def result_of(paths: RunPaths, attempt: int) -> Result:
    (cell,) = read_manifest(paths.manifest)
    return Result.read(paths.cell(cell.id).attempt(attempt).result)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line with which a command refused its input."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_a_run_keeps_our_packages_as_they_are(tmp_path: Path) -> None:
    paths = made(tmp_path)
    copied = {path.relative_to(paths.code) for path in paths.code.rglob("*") if path.is_file()}
    names = {path.as_posix() for path in copied}
    assert {"gnnhpc/kernels/gat.cpp", "gnnhpc/py.typed", "jobs/task.py"} <= names
    assert {"jobs/sweeps/quickstart.yaml", "jobs/templates/array.sbatch.j2"} <= names
    assert {path.parts[0] for path in copied} == set(PACKAGES)
    assert not any("__pycache__" in path.parts for path in copied)
    assert sum((paths.code / path).stat().st_size for path in copied) < 4e6
    for path in copied:
        assert (paths.code / path).read_bytes() == (ROOT / path).read_bytes()
    snapshot = check_snapshot(paths)
    assert snapshot is not None
    assert snapshot.code == code_digest()
    facts = json.loads(paths.provenance.read_text())
    assert (facts["code"], facts["code_from"]) == (code_digest(), "snapshot")


def test_a_live_run_keeps_none(tmp_path: Path) -> None:
    paths = made(tmp_path, live=True)
    assert not paths.code.exists()
    assert read_snapshot(paths) is None
    assert json.loads(paths.provenance.read_text())["code_from"] == "live"
    script = next(paths.arrays.iterdir()).read_text()
    assert '"$run/code"' not in script
    assert f"export PYTHONPATH={ROOT}" in script


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda code: edit(code / "gnnhpc/engines/native.py"), "gnnhpc/engines/native.py changed"),
        # Nor is a file imported that Python would not take.
        (lambda code: edit(code / "gnnhpc/cli.py", "("), "gnnhpc/cli.py changed"),
        (lambda code: (code / "gnnhpc/kernels/vig_nodes.h").unlink(), "vig_nodes.h missing"),
        (lambda code: (code / "gnnhpc/torch.py").write_text(""), "gnnhpc/torch.py added"),
        (lambda code: (code / "torch.py").write_text("found = 1"), "code: found torch.py added"),
        (lambda code: (code / "numpy").mkdir(), "code: found numpy added"),
        (lambda code: edit(code.parent / "code.json", "}"), "found damaged JSON"),
        (swap, "found 0000000000000000, other code than provenance.json says"),
        (lambda code: (code.parent / "code.json").unlink(), "no such file beside code/"),
    ],
)
def test_code_that_has_changed_since_is_not_run(
    damage: Any, found: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = made(tmp_path)
    damage(paths.code)
    cell = ("-m", "gnnhpc", "run", "--manifest", paths.manifest, "--array", "gat-seq", "--index", 0)
    assert found in refused(python(*cell, path=paths.code, cwd=tmp_path))
    task = f"from jobs.task import CellTask; CellTask({str(paths.manifest)!r}, 'gat-seq', 0)()"
    assert found in refused(python("-c", task, path=paths.code, cwd=tmp_path))
    assert main(["rerun", str(paths.root), "--missing", "--cluster", "local", "--wait"]) == 2
    assert found in capsys.readouterr().err
    assert list(paths.cells.iterdir()) == []


def test_bytecode_of_the_copy_is_no_change(tmp_path: Path) -> None:
    paths = made(tmp_path)
    done = python("-m", "gnnhpc", "--version", path=paths.code, cwd=tmp_path)
    assert done.stdout.startswith("gnnhpc ")
    assert str(paths.code) in done.stdout
    assert list(paths.code.rglob("*.pyc"))
    assert check_snapshot(paths) is not None


def test_a_checkout_does_not_run_a_cell_of_a_run_that_keeps_its_code(tmp_path: Path) -> None:
    paths = made(tmp_path)
    cell = ("-m", "gnnhpc", "run", "--manifest", paths.manifest, "--array", "gat-seq", "--index", 0)
    line = refused(python(*cell, path=ROOT, cwd=tmp_path))
    assert f"found {ROOT}, and the run keeps its own; allowed: --live" in line
    shutil.rmtree(paths.code)
    assert "run/code unreadable" in refused(python(*cell, path=ROOT, cwd=tmp_path))
    paths.code_record.unlink()
    assert "no such file, and no code/" in refused(python(*cell, path=ROOT, cwd=tmp_path))
    assert list(paths.cells.iterdir()) == []


def test_a_path_that_pythonpath_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a path with :; allowed: one without, or --live"):
        create_run_folder(jobs.plan(SPEC), tmp_path / "at 16:30", Launch())
    create_run_folder(jobs.plan(SPEC), tmp_path / "at 16:30", Launch(live=True))


@pytest.mark.slow
@pytest.mark.distributed
def test_a_run_measures_the_code_it_was_submitted_with(tmp_path: Path) -> None:
    """Though the checkout is edited, the run folder moved, and the rerun called from elsewhere."""
    mine = checkout(tmp_path / "mine")
    (tmp_path / "spec.yaml").write_text(json.dumps(SPEC))
    local = ("--cluster", "local", "--wait")
    submit = ("-m", "jobs", "submit", "spec.yaml", *local)
    done = python(*submit, path=mine, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    first = result_of(RunPaths(tmp_path / "runs/run"), 1)
    assert first.valid
    assert first.provenance["code"] == code_digest()
    assert first.provenance["code_from"] == "snapshot"

    # As it stands no cell could be run.
    edit(mine / "gnnhpc/run/worker.py", "raise SystemExit('the edited checkout ran')\n")
    moved = RunPaths(tmp_path / "moved")
    (tmp_path / "runs/run").rename(moved.root)
    rerun = ("-m", "jobs", "rerun", moved.root, "--array", "gat-seq", *local)
    done = python(*rerun, path=mine, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == (
        f"note: runs the code that the run keeps, not that in {mine}, which --live would\n"
    )
    second = result_of(moved, 2)
    assert second.valid
    assert second.provenance["code"] == first.provenance["code"]
    assert second.provenance["code_from"] == "snapshot"
    assert second.final["train_loss"] == first.final["train_loss"]

    done = python(*rerun, "--live", path=mine, cwd=tmp_path)
    assert done.returncode == 1, done.stdout
    assert f"note: runs the code in {mine} as it is when each cell starts" in done.stderr
    assert "the edited checkout ran" in "".join(
        log.read_text() for log in moved.logs.glob("gat-seq-0-local-*.log")
    )
    done = python(*rerun, "--live", path=ROOT, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert result_of(moved, 3).provenance["code_from"] == "live"
    assert [one.live for one in read_submissions(moved)] == [False, False, True, True]


def test_cells_that_the_kept_code_does_not_read_are_not_added(tmp_path: Path) -> None:
    """One such line, and no cell of the run could be run again."""
    mine = checkout(tmp_path / "mine")
    (tmp_path / "spec.yaml").write_text(json.dumps(SPEC))
    paths = made(tmp_path / "runs")
    before = paths.manifest.read_bytes()
    experiment = mine / "gnnhpc/experiment/experiment.py"
    text = experiment.read_text().replace("    seed: ", "    luck: int = 7\n    seed: ", 1)
    experiment.write_text(text)
    extend = ("-m", "jobs", "submit", "spec.yaml", "--extend", "--cluster", "local")
    line = python(*extend, "--set", "seed=3", path=mine, cwd=tmp_path).stderr.splitlines()[-1]
    assert "found cells that its own code does not read (" in line
    assert "luck" in line
    assert paths.manifest.read_bytes() == before


def test_a_disk_without_room_for_the_code_leaves_no_run(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(InputError, match=r"code that the run cannot keep \(File too large: "):
            made(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
