"""Submitting to a Slurm that answers, refuses, loses its answer or is not there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gnnhpc.core.errors import GnnhpcError, InputError
from jobs.cli import main
from jobs.cli.terminal_tables import print_submitted
from jobs.run.submission_records import read_submissions
from jobs.slurm.sbatch import MaybeSubmittedError
from jobs.slurm.site_settings import Site
from jobs.submit.rerun import Selection, rerun
from jobs.submit.submit import Submitted, submit
from tests.jobs.conftest import GRID, MadeRun, small_plan
from tests.jobs.fake_slurm import FakeSlurm

Submit = Callable[..., Submitted]
Capture = pytest.CaptureFixture[str]
LOST = "Batch job submission failed: Socket timed out on send/recv operation"
FULL = "fail:Batch job submission failed: Job violates policy (job submit limit)"
REFUSED = "Batch job submission failed: Invalid partition name specified"


def test_each_model_and_layout_is_an_array_and_paired_cells_share_a_job(
    submit_small: Submit, slurm: FakeSlurm, capsys: Capture
) -> None:
    done = submit_small()
    jobs = [(job[0], job[3]) for job in slurm.queue]
    assert jobs == [("101_[0-1]", "gat-seq@run"), ("102_[0-1]", "gat-pp2@run")]
    records = read_submissions(MadeRun(done.run).paths)
    found = [(one.array, one.indices, one.job_id) for one in records]
    assert found == [("gat-seq", "0-1", "101"), ("gat-pp2", "0-1", "102")]
    print_submitted(done)
    out = capsys.readouterr().out
    assert "advice: layouts run in jobs of their own" in out
    assert "site key: exclusive: true\n" in out
    done = submit_small("two", site=Site(exclusive=True), paired=True)
    assert [(job[0], job[3]) for job in slurm.queue[2:]] == [("103_[0-1]", "gat-paired@two")]
    table = (done.run / "arrays" / "gat-paired.cells").read_text().splitlines()
    assert table[0].split("\t") == ["block", "array", "index", "ranks", "cell"]
    assert len(table) == 5
    print_submitted(done)
    assert "advice" not in capsys.readouterr().out
    with pytest.raises(InputError, match="a run of this name; allowed: another --name"):
        submit_small()
    assert len(slurm.queue) == 3


def test_arrays_wait_for_runs_jobs_and_under_max_parallel_for_one_another(
    submit_small: Submit, slurm: FakeSlurm
) -> None:
    first = submit_small(site=Site(max_parallel=1))
    assert "--dependency" not in slurm.calls[0]
    assert "--dependency=afterany:101" in slurm.calls[1]
    submit_small("second", after=[str(first.run), "17"])
    assert "--dependency=afterany:101:102:17" in slurm.calls[-1]


def test_what_slurm_refuses_leaves_nothing(
    submit_small: Submit, slurm: FakeSlurm, tmp_path: Path
) -> None:
    slurm.next_calls(f"fail:{REFUSED}")
    with pytest.raises(InputError, match=r"sbatch gat-seq: found .*Invalid partition name"):
        submit_small()
    slurm.next_calls(FULL, FULL)
    with pytest.raises(InputError, match=r"job submit limit.*allowed: fewer jobs at once"):
        submit_small()
    assert slurm.queue == []
    assert not any((tmp_path / "runs").iterdir())


def test_a_later_array_that_is_refused_leaves_a_rerun(
    submit_small: Submit, slurm: FakeSlurm, tmp_path: Path
) -> None:
    slurm.next_calls("none:", f"fail:{REFUSED}")
    with pytest.raises(GnnhpcError, match=r"submitted before that: gat-seq as 101; .*--missing"):
        submit_small()
    states = MadeRun(tmp_path / "runs" / "run").states()
    assert (states["gat-seq:0"], states["gat-pp2:0"]) == ("pending", "missing")


def test_a_lost_answer_is_found_by_its_token_or_keeps_the_folder(
    submit_small: Submit, slurm: FakeSlurm, tmp_path: Path
) -> None:
    slurm.next_calls(f"lose:{LOST}")
    assert [job for _, job in submit_small().arrays] == ["101", "102"]
    assert len(slurm.calls) == len(slurm.queue) == 2
    slurm.next_calls(f"lose:{LOST}")
    slurm.fail("squeue")
    with pytest.raises(MaybeSubmittedError, match="Slurm does not say whether it is submitted"):
        submit_small("two")
    run = MadeRun(tmp_path / "runs" / "two")
    assert set(run.states().values()) == {"unknown"}
    slurm.work("squeue")
    assert run.states()["gat-seq:0"] == "pending"


@pytest.mark.parametrize(
    ("answers", "jobs"),
    [(["none:", FULL, "none:", FULL], ["0-1", "0"]), ([FULL, "none:", FULL], ["0"])],
)
def test_under_a_limit_of_jobs_a_sweep_goes_in_portions(
    submit_small: Submit, slurm: FakeSlurm, capsys: Capture, answers: list[str], jobs: list[str]
) -> None:
    slurm.next_calls(*answers)
    done = submit_small()
    assert [job[0].partition("_")[2].strip("[]") for job in slurm.queue] == jobs
    print_submitted(done)
    out = capsys.readouterr().out
    taken = {"0-1": 2, "0": 1}
    assert f"{sum(taken[tasks] for tasks in jobs)} of 4 tasks are submitted" in out
    assert f"rerun {done.run} --missing" in out
    rerun(done.run, Selection(missing=True))
    assert set(MadeRun(done.run).states().values()) == {"pending"}


@pytest.mark.parametrize(
    ("site", "paired", "words"),
    [
        (Site(time="2:00:00"), False, "time: found 2:00:00; allowed: at most 60 minutes in this"),
        (Site(time="40"), True, "found 40, 80 minutes for the 2 cells of a block of gat-paired; "
         "allowed: at most 60 minutes in this partition: time 30 (minutes of a cell), or no"),
    ],
)  # fmt: skip
def test_a_time_limit_that_the_partition_would_leave_waiting_is_refused(
    submit_small: Submit, slurm: FakeSlurm, site: Site, paired: bool, words: str
) -> None:
    slurm.offer("main*|up|1:00:00|4|2|4000|(null)|(null)")
    with pytest.raises(InputError) as caught:
        submit_small(site=site, paired=paired)
    assert words in str(caught.value)
    submit_small(site=Site(time="30"), paired=paired)


def test_a_dry_run_prints_one_script_and_writes_nothing(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(json.dumps({"name": "läufe", "grids": [GRID]}))
    assert main(["submit", "spec.yaml", "--dry-run", "--slurm", "mem=64G"]) == 0
    out = capsys.readouterr().out
    assert out.count("#SBATCH --job-name") == out.count("#SBATCH --mem=64G\n") == 1
    assert "dry run of läufe: 4 cells in 2 arrays; site built-in" in out
    assert "at most 6 core-hours" in out
    assert list(tmp_path.glob("runs*")) == []
    assert main(["submit", "spec.yaml", "--live"]) == 0
    assert "gat-seq 0-1: Slurm job 101\n" in capsys.readouterr().out


def test_without_slurm_nothing_is_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="slurm, but no sbatch here; allowed: local"):
        submit(small_plan(), runs=tmp_path / "runs")
    assert not any((tmp_path / "runs").iterdir())


def test_variables_that_would_change_the_run_are_refused(
    submit_small: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_TIMELIMIT", "7")
    submit_small()
    monkeypatch.setenv("SBATCH_CONSTRAINT", "fast")
    with pytest.raises(InputError, match=r"\$SBATCH_CONSTRAINT would change the run"):
        submit_small("two")
