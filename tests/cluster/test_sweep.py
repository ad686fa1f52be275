"""A sweep of tiny cells on the real Slurm, and the ways to run parts of it again by hand."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gnnhpc.records.schema import Result
from tests.cluster.runs import ROOT, TINY_GAT, TINY_VIG, Run, User, losses, wait_for
from tests.cluster.slurm import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

LAYOUTS = {"vig": ["seq", "pp4"], "gat": ["seq", "pp2", "dp2-pp2"]}
NAME = 'Läufe \'n "Zeug" $HOME; 100'


@pytest.fixture(scope="module")
def sweep(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Both models, four layouts, one rank a node, in a run whose name needs quoting."""
    user = User(cluster, tmp_path_factory.mktemp("sweep"))
    vig = TINY_VIG | {"layouts": LAYOUTS["vig"], "microbatches": [2], "seq_microbatches": [2]}
    gat = TINY_GAT | {"layouts": LAYOUTS["gat"], "microbatches": [2]}
    run = user.submit([vig, gat], name=NAME)
    run.results()
    run.wait_until_idle()
    yield run


def fingerprints(folder: Path) -> dict[str, str]:
    """Every file below, with what is in it."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def test_every_cell_is_done_on_as_many_nodes_as_it_has_ranks(sweep: Run) -> None:
    assert len(sweep.cells) == 6
    for cell in sweep.cells:
        result = sweep.result(cell)
        size = cell.experiment.layout.world_size
        assert (result.status, result.failure) == ("done", None), cell.id
        assert result.train_steps == 3
        assert sorted(set(result.provenance["hosts"])) == sorted(result.provenance["hosts"])
        assert len(result.provenance["hosts"]) == size
        assert set(result.provenance["hosts"]) <= {"n1", "n2", "n3", "n4"}
        assert sorted(losses(sweep.attempt(cell), size)) == [0, 1, 2]


def test_one_job_array_a_model_and_layout_is_in_the_accounting(sweep: Run) -> None:
    arrays = {cell.array for cell in sweep.cells}
    assert arrays == {f"{model}-{layout}" for model in LAYOUTS for layout in LAYOUTS[model]}
    jobs = {sweep.job(array): array for array in arrays}
    expected = {f"{sweep.job(cell.array)}_{cell.index}": "COMPLETED" for cell in sweep.cells}

    def accounted() -> dict[str, str]:
        command = ("sacct", "-X", "-n", "-P", "-j", ",".join(jobs), "-o", "JobID,State")
        lines = sweep.cluster.run(*command).stdout.split()
        return {job: state for job, _, state in (line.partition("|") for line in lines)}

    wait_for(lambda: accounted() == expected, f"accounting of {expected}", 30)


def test_status_has_every_cell_done(sweep: Run) -> None:
    assert {cell["state"] for cell in sweep.status().values()} == {"done"}
    shown = sweep.user.jobs("status", sweep.paths.root).stdout
    assert "6 done" in shown


def test_a_submit_that_waits_says_how_it_came_out(user: User) -> None:
    grid = TINY_GAT | {"layouts": ["seq", "pp2"], "microbatches": [1]}
    file = user.home / "spec.yaml"
    file.write_text(yaml.safe_dump({"name": "waits", "grids": [grid]}))
    done = user.jobs(
        "submit", file, "--runs", user.runs, "--wait", *user.site({"tasks_per_node": 2})
    )
    assert "2 done, 0 failed" in done.stdout


def test_an_array_and_one_index_are_rerun_by_hand_and_nothing_is_overwritten(
    sweep: Run, tmp_path: Path
) -> None:
    before = fingerprints(sweep.paths.cells)
    script = sweep.paths.script("gat-seq")
    sbatch(sweep.cluster, script, cwd=tmp_path)
    sbatch(sweep.cluster, "--array=1", "--time=5", script, cwd=tmp_path)
    first, second = sweep.cell("gat-seq", 0), sweep.cell("gat-seq", 1)
    assert sweep.result(first, 2).status == "done"
    assert sweep.result(second, 2).status == "done"
    assert sweep.result(second, 3).status == "done"
    assert not sweep.attempt(first, 3).root.exists()
    after = fingerprints(sweep.paths.cells)
    assert {name: after[name] for name in before} == before
    assert losses(sweep.attempt(second, 3), 1) == losses(sweep.attempt(second, 1), 1)
    assert list(tmp_path.iterdir()) == []


def test_several_nodes_rerun_by_hand_after_the_run_was_moved(sweep: Run, tmp_path: Path) -> None:
    moved = tmp_path / "moved ünd 'quoted'"
    shutil.copytree(sweep.paths.root, moved, symlinks=True)
    here = Run(sweep.user, type(sweep.paths)(moved))
    before = fingerprints(sweep.paths.root)
    sbatch(sweep.cluster, moved / "arrays" / "gat-dp2-pp2.sbatch", cwd=moved / "arrays")
    cell = here.cell("gat-dp2-pp2")
    result = here.result(cell, 2)
    assert result.status == "done"
    assert len(set(result.provenance["hosts"])) == 4
    assert fingerprints(sweep.paths.root) == before


def test_an_index_out_of_range_is_refused(sweep: Run, tmp_path: Path) -> None:
    before = fingerprints(sweep.paths.cells)
    done = sbatch(
        sweep.cluster, "--array=7", sweep.paths.script("gat-pp2"), cwd=tmp_path, check=False
    )
    assert done != 0
    log = wait_for(lambda: list(sweep.paths.logs.glob("gat-pp2-7-*.log")), "the log of index 7")
    assert "index of gat-pp2: found 7; allowed: 0 to 0" in log[0].read_text()
    assert fingerprints(sweep.paths.cells) == before


def test_rerun_makes_a_new_attempt_of_just_that_cell(sweep: Run) -> None:
    before = {c.id: len(sweep.paths.cell(c.id).attempts()) for c in sweep.cells}
    sweep.user.jobs(
        "rerun", sweep.paths.root, "--array", "vig-seq", "--index", "0", *sweep.user.site({})
    )
    cell = sweep.cell("vig-seq", 0)
    number = before[cell.id] + 1
    assert sweep.result(cell, number).status == "done"
    after = {c.id: len(sweep.paths.cell(c.id).attempts()) for c in sweep.cells}
    assert after == before | {cell.id: number}


def test_the_report_of_the_sweep_has_a_row_for_every_cell_and_phase(
    sweep: Run, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    sweep.cluster.run(
        sys.executable, "-m", "analysis", "report", sweep.paths.root, "--out", out, cwd=ROOT
    )
    summary = (out / "summary.csv").read_text().splitlines()
    assert len(summary) == 1 + 2 * len(sweep.cells)
    assert (out / "report.html").stat().st_size > 10_000


def sbatch(cluster: Cluster, *arguments: str | Path, cwd: Path, check: bool = True) -> int:
    """Submit by hand from a folder of its own, and wait."""
    return cluster.run("sbatch", "--wait", *arguments, cwd=cwd, check=check).returncode


def test_results_are_read_back_as_they_were_written(sweep: Run) -> None:
    for cell in sweep.cells:
        assert Result.read(sweep.attempt(cell).result).cell == cell.id
