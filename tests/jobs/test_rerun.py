"""Rerun selects cells by state or index, and leaves alone what runs, waits or may do so."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from gnnhpc.core.errors import InputError
from gnnhpc.records.failures import utc_now
from gnnhpc.records.schema import Check, Failure
from jobs.cli import main
from jobs.submit.rerun import Selection, rerun
from jobs.submit.submission import Options
from jobs.submit.submit import Submitted, cancel
from tests.jobs.conftest import FakeSlurm, MadeRun

HUNG = Failure(1, "n2", 3, "train", "frozen", utc_now())


@pytest.fixture
def ended(run: MadeRun, slurm: FakeSlurm) -> MadeRun:
    """gat-seq: done and failed; gat-pp2: invalid and never started."""
    slurm.queue.clear()
    run.finish(run.cell("gat-seq", 0), job="101_0")
    run.finish(run.cell("gat-seq", 1), job="101_1", status="failed", failure=HUNG)
    run.finish(run.cell("gat-pp2", 0), job="102_0", audit=[Check("edges", "invalid", "")])
    return run


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"failed": True}, ["gat-seq 1"]),
        ({"missing": True}, ["gat-seq 1", "gat-pp2 1"]),
        ({"failed": True, "flagged": True}, ["gat-pp2 0", "gat-seq 1"]),
        ({"array": "gat-seq"}, ["gat-seq 0-1"]),
        ({"array": "gat-pp2", "missing": True}, ["gat-pp2 1"]),
        ({"array": "gat-seq", "index": "0"}, ["gat-seq 0"]),
        ({}, "rerun: found no cell selected; allowed: --index"),
        ({"array": "no"}, "--array: found 'no'; allowed: gat-pp2, gat-seq"),
        ({"index": "0"}, "--index: found no --array; allowed: --array with gat-pp2, gat-seq"),
        ({"array": "gat-seq", "index": "7"}, "--index: found 7; allowed: 0-1"),
        ({"index": "0", "failed": True}, "--index: found a state beside it"),
    ],
)
def test_selected_cells_are_submitted_again(
    ended: MadeRun, slurm: FakeSlurm, selection: dict[str, Any], expected: list[str] | str
) -> None:
    if isinstance(expected, str):
        with pytest.raises(InputError, match=f"^{re.escape(expected)}"):
            rerun(ended.root, Selection(**selection))
    else:
        rerun(ended.root, Selection(**selection))
    found = [f"{job.array} {job.task_ids}" for job in slurm.queue]
    assert found == ([] if isinstance(expected, str) else expected)


def test_cells_of_a_silent_slurm_are_run_again_or_cancelled_only_with_force(
    run: MadeRun, slurm: FakeSlurm
) -> None:
    slurm.silent = True
    for selection in ({"missing": True}, {"array": "gat-seq", "index": "0"}):
        with pytest.raises(InputError, match="--force"):
            rerun(run.root, Selection(**selection))  # type: ignore[arg-type]
    rerun(run.root, Selection(array="gat-seq", index="0", force=True))
    assert len(slurm.calls) == 3
    with pytest.raises(InputError, match=r"jobs 101, 102, 103, which may have ended.*or --force"):
        cancel(run.root)
    assert slurm.cancelled == []
    assert cancel(run.root, force=True) == [f"Slurm job {n}" for n in (101, 102, 103)]
    slurm.silent = False
    rerun(run.root, Selection(missing=True))
    assert cancel(run.root) == ["Slurm job 104", "Slurm job 105"]
    assert cancel(run.root) == []


def test_other_settings_make_another_script_which_a_dry_run_prints(
    ended: MadeRun, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match="--paired: found gat-seq 1, which is in no block"):
        rerun(ended.root, Selection(failed=True), Options(paired=True))
    before = sorted(ended.root.rglob("*"))
    assert main(["rerun", str(ended.root), "--missing", "--dry-run", "--mem", "9G"]) == 0
    out = capsys.readouterr().out
    assert "dry run of run: 2 cells in 2 arrays; site test" in out
    assert "#SBATCH --mem=9G\n" in out
    assert slurm.queue == []
    assert sorted(ended.root.rglob("*")) == before
    rerun(ended.root, Selection(failed=True), Options(settings={"mem": "9G"}))
    script = ended.paths.script("gat-seq.rerun-1")
    assert slurm.queue[0].script == str(script)
    assert "#SBATCH --mem=9G\n" in script.read_text()
    assert "--mem=9G" not in ended.paths.script("gat-seq").read_text()


def test_whole_blocks_are_run_again(
    submit_small: Callable[..., Submitted], slurm: FakeSlurm
) -> None:
    run = MadeRun(submit_small(paired=True).run)
    slurm.queue.clear()
    run.finish(run.cell("gat-seq", 0), job="101_0")
    done = rerun(run.root, Selection(missing=True, array="gat-seq"), Options(paired=True))
    assert [(job.job_id, job.task_ids) for job in slurm.queue] == [("102", "1")]
    assert {cell.array for cell in done.submission.cells} == {"gat-seq", "gat-pp2"}


def test_code_that_changed_since_is_refused(
    submit_small: Callable[..., Submitted], slurm: FakeSlurm
) -> None:
    run = MadeRun(submit_small(live=False).run)
    slurm.queue.clear()
    file = run.paths.code / "gnnhpc" / "training" / "loop.py"
    file.write_text(file.read_text() + "# edited\n")
    with pytest.raises(InputError, match=r"gnnhpc/training/loop.py changed since the run was sub"):
        rerun(run.root, Selection(missing=True))
    rerun(run.root, Selection(missing=True), Options(live=True))
    assert "--live" in run.paths.script("gat-seq.rerun-1").read_text()
