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
from jobs.slurm.partitions import parse_sinfo
from jobs.slurm.site_settings import Site
from jobs.slurm.user_sbatch_options import sbatch_environment
from jobs.submit.submit import Submitted, submit
from tests.jobs.conftest import GRID, FakeSlurm, MadeRun, small_plan

Submit = Callable[..., Submitted]
Capture = pytest.CaptureFixture[str]
REFUSED = InputError("sbatch gat-seq", None, "Invalid partition name specified", "what there is")


def test_each_model_and_layout_is_an_array_and_paired_cells_share_a_job(
    submit_small: Submit, slurm: FakeSlurm, capsys: Capture
) -> None:
    done = submit_small()
    jobs = [(job.job_id, job.task_ids, job.name) for job in slurm.queue]
    assert jobs == [("101", "0-1", "gat-seq@run"), ("102", "0-1", "gat-pp2@run")]
    records = read_submissions(MadeRun(done.run).paths)
    found = [(one.array, one.indices, one.job_id) for one in records]
    assert found == [("gat-seq", "0-1", "101"), ("gat-pp2", "0-1", "102")]
    print_submitted(done)
    out = capsys.readouterr().out
    assert "advice: layouts run in jobs of their own" in out
    assert "site key: exclusive: true\n" in out
    done = submit_small("two", site=Site(exclusive=True), paired=True)
    assert [(job.task_ids, job.name) for job in slurm.queue[2:]] == [("0-1", "gat-paired@two")]
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


def test_a_first_array_that_is_refused_leaves_nothing_and_a_later_one_a_rerun(
    submit_small: Submit, slurm: FakeSlurm, tmp_path: Path
) -> None:
    slurm.refusals = [REFUSED, None, REFUSED]
    with pytest.raises(InputError, match=r"sbatch gat-seq: found Invalid partition name"):
        submit_small()
    assert not any((tmp_path / "runs").iterdir())
    with pytest.raises(GnnhpcError, match=r"submitted before that: gat-seq as 101; .*--missing"):
        submit_small()
    states = MadeRun(tmp_path / "runs" / "run").states()
    assert sorted(states) == ["missing", "missing", "pending", "pending"]


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
    slurm.partitions = parse_sinfo("main*|up|1:00:00|4|2|4000|(null)|(null)")
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
    assert main(["submit", "spec.yaml", "--dry-run", "--cluster", "local"]) == 0
    out = capsys.readouterr().out
    assert "exists already, so the submission needs another --name" in out
    assert "gat-pp2      2  2" in out, "ranks, and no nodes"


def test_without_slurm_nothing_is_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="slurm, but no sbatch here; allowed: local"):
        submit(small_plan(), runs=tmp_path / "runs")
    assert not any((tmp_path / "runs").iterdir())


def test_variables_that_would_change_the_run_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_TIMELIMIT", "7")
    assert "SBATCH_TIMELIMIT" not in sbatch_environment(["time"])
    monkeypatch.setenv("SBATCH_CONSTRAINT", "fast")
    with pytest.raises(InputError, match=r"\$SBATCH_CONSTRAINT would change the run"):
        sbatch_environment(["time"])
