"""Where `rerun` runs cells that nobody told it where to run, and what it says of that."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnhpc.core.errors import InputError
from gnnhpc.records.run_paths import RunPaths
from jobs.actions import rerun as rerunning
from jobs.actions.local_cells import LocalLimits
from jobs.actions.submit import choose_launch
from jobs.cli import main
from jobs.cluster.launch import Launch
from jobs.cluster.sbatch_options import parse_options
from jobs.cluster.site import Site
from jobs.folder.run_folder import create_run_folder
from jobs.folder.submission_records import Cluster, record_submission
from jobs.spec.planning import plan
from jobs.state.run_status import status
from tests.jobs.test_run_status import GRID, attempt, finish
from tests.jobs.test_sbatch_retries import program


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """A run that nobody submitted yet, on a machine without Slurm."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    monkeypatch.setenv("GNNHPC_CACHE", str(tmp_path / "cache"))
    (tmp_path / "bin").mkdir()
    one = plan({"name": "run", "grids": [GRID]})
    return create_run_folder(one, tmp_path / "run", Launch(live=True))


def submitted(run: RunPaths, cluster: Cluster) -> None:
    # No process has this id: it is above what Linux gives.
    record_submission(run, cluster, "gat-seq", [0, 1], str(2**22 + 1), Launch())


def complaint(capsys: pytest.CaptureFixture[str], run: RunPaths, *arguments: str) -> str:
    assert main(["rerun", str(run.root), "--missing", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return err.rstrip("\n")


def test_a_run_of_this_machine_waits_for_no_job(
    run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    submitted(run, "local")
    assert complaint(capsys, run, "--after", "12") == (
        f"error: --after: found 12 for {run.root}, which was submitted on this machine; "
        "allowed: none, or --cluster slurm"
    )
    told = complaint(capsys, run, "--after", "12", "--cluster", "local")
    assert told.startswith("error: --after: found 12 with --cluster local; ")


def test_a_run_of_slurm_where_there_is_none(
    run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    submitted(run, "slurm")
    assert complaint(capsys, run) == (
        f"error: --cluster: found {run.root}, which was submitted to Slurm, but no sbatch here; "
        "allowed: --cluster local, which runs it here"
    )


def test_a_run_that_does_not_say_where_it_was_submitted(
    run: RunPaths,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for text in (None, ""):
        if text is not None:
            run.submissions.write_text(text)
        assert complaint(capsys, run).startswith(
            f"error: --cluster: found no word of where {run.root} was submitted, but no sbatch here"
        )
    chosen: list[str] = []

    class Started:
        def finish(self, *_: object) -> None: ...

    def start(_: RunPaths, __: object, cluster: str, *___: object, **____: object) -> Started:
        chosen.append(cluster)
        return Started()

    monkeypatch.setattr(rerunning, "start_cells", start)
    for name in ("sbatch", "srun", "squeue"):
        program(tmp_path / "bin", name, "")
    told: list[str] = []
    rerunning.rerun(run.root, missing=True, live=True, tell=told.append)
    assert chosen == ["slurm"]
    assert told[0] == "the run does not say where it was submitted; uses Slurm"


@pytest.mark.parametrize(
    "flags",
    [["--mem", "64G"], ["--exclude", "n3"], ["--exclude-failed"], ["--slurm", "partition=long"]],
)
def test_cells_of_this_machine_take_no_options_that_only_slurm_knows(
    flags: list[str], run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    submitted(run, "local")
    given = " ".join(flags).replace("--slurm partition=", "--partition ")
    before = run.submissions.read_text()
    assert complaint(capsys, run, *flags) == (
        f"error: command line: found {given} for cells of this machine; "
        "allowed: none, or --cluster slurm"
    )
    assert run.submissions.read_text() == before


def test_cells_of_this_machine_have_what_a_site_file_says_and_a_time_limit(run: RunPaths) -> None:
    site = ("here", Site(mem="64G", partition="lab"))
    settings = parse_options(["time=30", "cpus-per-task=2"])
    for extends in (True, False):
        how = choose_launch(run.root, "local", site, settings, extends=extends, live=True)
        assert (how.launch.site.mem, how.launch.site.cpus_per_task) == ("64G", 2)
        assert LocalLimits.of_launch(how.launch, run).time_min == 30
        with pytest.raises(InputError, match="found --mem 1G for cells of this machine"):
            choose_launch(run.root, "local", site, {"mem": "1G"}, extends=extends, live=True)


def test_a_run_without_submissions_is_not_called_local(run: RunPaths) -> None:
    assert status(run.root).slurm == "no Slurm here"
    for one in plan({"name": "run", "grids": [GRID]}).cells:
        finish(attempt(run, one), one)
    assert status(run.root).slurm == "no job in Slurm"
    submitted(run, "local")
    assert status(run.root).slurm == "local run"
