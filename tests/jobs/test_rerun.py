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
from tests.jobs.conftest import MadeRun
from tests.jobs.fake_slurm import FakeSlurm

HUNG = Failure(1, "n2", 3, "train", "frozen", utc_now())


@pytest.fixture
def ended(run: MadeRun, slurm: FakeSlurm) -> MadeRun:
    """gat-seq: done and failed; gat-pp2: invalid and never started."""
    slurm.set_queue()
    run.finish(run.cell("gat-seq", 0), job="101_0")
    run.finish(run.cell("gat-seq", 1), job="101_1", status="failed", failure=HUNG)
    run.finish(run.cell("gat-pp2", 0), job="102_0", audit=[Check("edges", "invalid", "")])
    return run


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"failed": True}, ["gat-seq_[1]"]),
        ({"missing": True}, ["gat-seq_[1]", "gat-pp2_[1]"]),
        ({"failed": True, "flagged": True}, ["gat-pp2_[0]", "gat-seq_[1]"]),
        ({"array": "gat-seq"}, ["gat-seq_[0-1]"]),
        ({"array": "gat-pp2", "missing": True}, ["gat-pp2_[1]"]),
        ({"array": "gat-seq", "index": "0"}, ["gat-seq_[0]"]),
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
        assert slurm.queue == []
        return
    rerun(ended.root, Selection(**selection))
    found = [f"{job[3].partition('@')[0]}_{job[0].partition('_')[2]}" for job in slurm.queue]
    assert found == expected


def test_cells_that_wait_are_refused_by_index_and_left_by_state(
    run: MadeRun, slurm: FakeSlurm
) -> None:
    with pytest.raises(InputError, match="gat-seq 0, which is pending; allowed: cells that nei"):
        rerun(run.root, Selection(array="gat-seq", index="0"))
    with pytest.raises(InputError, match=r"no cell to run again \(4 pending\)"):
        rerun(run.root, Selection(missing=True))
    assert len(slurm.calls) == 2


def test_unknown_cells_need_force(run: MadeRun, slurm: FakeSlurm) -> None:
    slurm.fail("squeue")
    slurm.fail("sacct")
    for selection in ({"missing": True}, {"array": "gat-seq", "index": "0"}):
        with pytest.raises(InputError, match="--force"):
            rerun(run.root, Selection(**selection))  # type: ignore[arg-type]
    rerun(run.root, Selection(array="gat-seq", index="0", force=True))
    assert len(slurm.calls) == 3


def test_other_settings_make_another_script(ended: MadeRun, slurm: FakeSlurm) -> None:
    with pytest.raises(InputError, match="--paired: found gat-seq 1, which is in no block"):
        rerun(ended.root, Selection(failed=True), Options(paired=True))
    settings = {"time": "2:00:00", "mem": "64G", "slurm": {"exclude": "n3"}}
    rerun(ended.root, Selection(failed=True), Options(settings=settings))
    script = ended.paths.script("gat-seq.rerun-1")
    assert slurm.queue[0][4] == str(script)
    text = script.read_text()
    for line in ("#SBATCH --time=120\n", "#SBATCH --mem=64G\n", "#SBATCH --exclude=n3\n"):
        assert line in text
    assert "--time=120" not in ended.paths.script("gat-seq").read_text()


def test_a_dry_run_submits_nothing(
    ended: MadeRun, slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(ended.root.rglob("*"))
    assert main(["rerun", str(ended.root), "--missing", "--dry-run", "--mem", "9G"]) == 0
    out = capsys.readouterr().out
    assert "dry run of run: 2 cells in 2 arrays; site test" in out
    assert "#SBATCH --mem=9G\n" in out
    assert slurm.queue == []
    assert sorted(ended.root.rglob("*")) == before


def test_whole_blocks_are_run_again(
    submit_small: Callable[..., Submitted], slurm: FakeSlurm
) -> None:
    run = MadeRun(submit_small(paired=True).run)
    slurm.set_queue()
    run.finish(run.cell("gat-seq", 0), job="101_0")
    done = rerun(run.root, Selection(missing=True, array="gat-seq"), Options(paired=True))
    assert [job[0] for job in slurm.queue] == ["102_[1]"]
    assert {cell.array for cell in done.submission.cells} == {"gat-seq", "gat-pp2"}


def test_code_that_changed_since_is_refused(
    submit_small: Callable[..., Submitted], slurm: FakeSlurm
) -> None:
    run = MadeRun(submit_small(live=False).run)
    slurm.set_queue()
    file = run.paths.code / "gnnhpc" / "training" / "loop.py"
    file.write_text(file.read_text() + "# edited\n")
    with pytest.raises(InputError, match=r"gnnhpc/training/loop.py changed since the run was sub"):
        rerun(run.root, Selection(missing=True))
    rerun(run.root, Selection(missing=True), Options(live=True))
    assert "--live" in run.paths.script("gat-seq.rerun-1").read_text()


def test_cancel_removes_all_arrays_and_of_a_silent_slurm_only_with_force(
    run: MadeRun, slurm: FakeSlurm
) -> None:
    slurm.fail("squeue")
    with pytest.raises(InputError, match=r"jobs 101, 102, which may have ended.*or --force"):
        cancel(run.root)
    assert slurm.cancelled == []
    assert cancel(run.root, force=True) == ["Slurm job 101", "Slurm job 102"]
    assert slurm.cancelled == ["101 102"]
    slurm.work("squeue")
    assert cancel(run.root) == []
    submitted = rerun(run.root, Selection(missing=True))
    assert cancel(run.root) == [f"Slurm job {job}" for _, job in submitted.arrays]
    assert slurm.queue == []
