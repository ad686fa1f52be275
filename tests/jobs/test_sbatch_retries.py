"""What is done after each way in which sbatch fails, by programs that stand for Slurm's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.records.run_paths import RunPaths
from jobs.actions import submit as submitting
from jobs.actions.submit import submit
from jobs.cluster import sbatch_retries, slurm_queue
from jobs.cluster.array_executor import outside_of_jobs
from jobs.cluster.arrays import group_by_array, resources_for
from jobs.cluster.launch import Launch
from jobs.cluster.sbatch_retries import MaybeSubmittedError
from jobs.cluster.site import Site
from jobs.cluster.slurm_submit import submit_array
from jobs.folder import submission_records
from jobs.folder.run_folder import create_run_folder
from jobs.spec.planning import Plan, plan

ERROR = "echo 'sbatch: error: Batch job submission failed: {}' >&2; exit 1"
LOST = ERROR.format("Socket timed out on send/recv operation")
REFUSED = ERROR.format("Requested node configuration is not available")
UNREACHED = ERROR.format("Unable to contact slurm controller (connect failure)")
DOWN = "echo 'slurm_load_jobs error: nothing answers' >&2; exit 1"


@pytest.fixture
def bin_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs, first on PATH; no pause is made between tries."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(sbatch_retries, "WAITS_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(slurm_queue, "_WAITS_S", ())
    for name in ("srun", "squeue", "sacct", "scancel"):
        program(folder, name, "")
    return folder


def program(folder: Path, name: str, *bodies: str) -> None:
    """One body a call, the last one ever after."""
    cases = "\n".join(f"{number}) {body or ':'} ;;" for number, body in enumerate(bodies[:-1], 1))
    file = folder / name
    file.write_text(
        f'#!/bin/bash\necho "$@" >>{folder}/{name}.calls\n'
        f'case "$(wc -l <{folder}/{name}.calls)" in\n{cases}\n*) {bodies[-1] or ":"} ;;\nesac\n'
    )
    file.chmod(0o755)


def calls(folder: Path, name: str) -> list[str]:
    file = folder / f"{name}.calls"
    return file.read_text().splitlines() if file.exists() else []


def one_plan() -> Plan:
    grid = {"models": "gat", "data": "synthetic-citation", "layouts": "seq"}
    return plan({"name": "run", "grids": [grid]})


def submitted(folder: Path) -> str:
    one = one_plan()
    launch = Launch(live=True)
    paths = create_run_folder(one, folder / "run", launch)
    array = group_by_array(one.cells)[0]
    return submit_array(paths, array, resources_for(array.layout, launch.site), launch, {"3"})


def row(job: str, script: str, comment: str, name: str = "gat-seq@run") -> str:
    fields = (f"{job}_0", "PENDING", "Priority", name, script, comment)
    return "printf '%s\\n' '" + "\x1f".join(fields) + "'"


@pytest.mark.parametrize(
    ("bodies", "tries"),
    [
        ([], 1),
        ([UNREACHED], 2),
        ([LOST, UNREACHED], 3),
        # Killed without a word, and an answer that names no job.
        (["kill -KILL $$", "echo accepted"], 3),
    ],
)
def test_what_did_not_submit_is_tried_again(
    bodies: list[str], tries: int, bin_: Path, tmp_path: Path
) -> None:
    program(bin_, "sbatch", *bodies, "echo Submitted batch job 12")
    assert submitted(tmp_path) == "12"
    assert len(calls(bin_, "sbatch")) == tries
    assert bool(calls(bin_, "squeue")) == (len(bodies) > 0 and bodies != [UNREACHED])


def test_a_refusal_is_final_and_leaves_nothing(bin_: Path, tmp_path: Path) -> None:
    program(bin_, "sbatch", REFUSED)
    with pytest.raises(InputError, match="node configuration is not available"):
        submit(one_plan(), runs=tmp_path / "runs")
    assert len(calls(bin_, "sbatch")) == 1
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_controller_that_is_never_reached_leaves_nothing(bin_: Path, tmp_path: Path) -> None:
    program(bin_, "sbatch", UNREACHED)
    with pytest.raises(GnnhpcError, match="connect failure") as caught:
        submit(one_plan(), runs=tmp_path / "runs")
    assert not isinstance(caught.value, InputError)
    assert len(calls(bin_, "sbatch")) == 3
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize("then", [LOST, REFUSED, UNREACHED])
def test_what_may_be_submitted_keeps_its_folder(then: str, bin_: Path, tmp_path: Path) -> None:
    program(bin_, "sbatch", LOST, then)
    with pytest.raises(MaybeSubmittedError, match="stays as it is; once Slurm answers"):
        submit(one_plan(), runs=tmp_path / "runs")
    assert (tmp_path / "runs/run/manifest.jsonl").is_file()


def test_nothing_is_tried_again_while_the_queue_does_not_answer(bin_: Path, tmp_path: Path) -> None:
    program(bin_, "sbatch", LOST)
    program(bin_, "squeue", DOWN)
    with pytest.raises(MaybeSubmittedError, match=r"Slurm does not say .*nothing answers"):
        submit(one_plan(), runs=tmp_path / "runs")
    assert len(calls(bin_, "sbatch")) == 1
    assert (tmp_path / "runs/run/manifest.jsonl").is_file()


def test_the_queued_job_is_known_by_its_script(bin_: Path, tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    others = [
        # By hand, of an earlier time, recorded, another run's, another array's.
        row("1", f"{run}/arrays/gat-seq.sbatch", run),
        row("2", f"{run}/.submitit/an-older-one.sh", run),
        row("3", "/spool/copy", run),
        row("4", "/spool/copy", f"{run}-2"),
        row("5", "/spool/copy", run, "gat-pp2@run"),
    ]
    program(bin_, "sbatch", f'echo "$1" >{bin_}/script; {LOST}', "echo Submitted batch job 12")
    ours = row("11", f"'\"$(cat {bin_}/script)\"'", run)
    program(bin_, "squeue", "\n".join([*others, ours]))
    assert submitted(tmp_path) == "11"
    assert len(calls(bin_, "sbatch")) == 1

    program(bin_, "squeue", "\n".join(others))
    for name in ("sbatch", "squeue"):
        (bin_ / f"{name}.calls").unlink()
    assert submitted(tmp_path / "again") == "12"


def test_the_queued_job_is_known_where_sbatch_submits_a_copy(bin_: Path, tmp_path: Path) -> None:
    program(bin_, "sbatch", LOST)
    program(bin_, "squeue", row("11", "/spool/copy", str(tmp_path / "run")))
    assert submitted(tmp_path) == "11"


def test_what_a_wrapper_says_after_sbatch_has_submitted_is_no_refusal(
    bin_: Path, tmp_path: Path
) -> None:
    hook = "echo 'site hook: cannot log your job' >&2; exit 1"
    program(bin_, "sbatch", f'echo "$1" >{bin_}/script; echo Submitted batch job 11; {hook}')
    run = tmp_path / "runs/run"
    program(bin_, "squeue", row("11", f"'\"$(cat {bin_}/script)\"'", str(run)))
    assert submit(one_plan(), runs=tmp_path / "runs").jobs == (("11", "gat-seq", "0"),)
    # Where nobody can tell, the folder stays.
    program(bin_, "squeue", DOWN)
    with pytest.raises(MaybeSubmittedError, match="cannot log your job; whether it is submitted"):
        submit(one_plan(), runs=tmp_path / "more")
    assert (tmp_path / "more/run/manifest.jsonl").is_file()
    # And where Slurm has no such job nothing is left.
    program(bin_, "squeue", "")
    with pytest.raises(InputError, match="cannot log your job"):
        submit(one_plan(), runs=tmp_path / "none")
    assert list((tmp_path / "none").iterdir()) == []


def test_the_jobs_id_is_that_of_sbatchs_own_line(bin_: Path, tmp_path: Path) -> None:
    program(bin_, "sbatch", "echo Your job 2 nodes wide costs 3; echo Submitted batch job 12")
    assert submitted(tmp_path) == "12"


def test_an_interrupt_says_that_the_run_stays(
    bin_: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(submitting, "submit_array", interrupt)
    heard: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        submit(one_plan(), runs=tmp_path / "runs", tell=heard.append)
    said = f"{tmp_path}/runs/run stays, with the jobs submitted so far: ask for its status"
    assert heard == [said]
    assert (tmp_path / "runs/run/manifest.jsonl").is_file()


def test_a_job_that_cannot_be_recorded_keeps_its_folder(
    bin_: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise GnnhpcError("the disk is full, nothing added")

    program(bin_, "sbatch", "echo Submitted batch job 12")
    monkeypatch.setattr(submission_records, "append_lines", full)
    with pytest.raises(MaybeSubmittedError, match="gat-seq is Slurm job 12, which could not be"):
        submit(one_plan(), runs=tmp_path / "runs")
    assert (tmp_path / "runs/run/manifest.jsonl").is_file()


def test_a_job_needs_nothing_that_is_made_after_sbatch(bin_: Path, tmp_path: Path) -> None:
    """The script that sbatch is given names the manifest and the index, and no pickle."""
    program(bin_, "sbatch", f'cp "$1" {bin_}/given; echo Submitted batch job 12')
    submitted(tmp_path)
    manifest = RunPaths(tmp_path / "run").manifest
    cell = f'--manifest {manifest} --array gat-seq --index "$index" --live\n'
    text = (bin_ / "given").read_text()
    assert "\nindex=$((0 + SLURM_ARRAY_TASK_ID))\n" in text
    assert f" -u -m gnnhpc run {cell}" in text
    assert not list((tmp_path / "run").rglob("*.pkl"))


def test_variables_of_a_surrounding_job_stay_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"SLURM_CONF": "c", "SBATCH_ACCOUNT": "a", "SLURM_MEM_PER_CPU": "1", "MASTER_ADDR": "m"}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv("RANK", raising=False)
    with outside_of_jobs():
        assert names.items() <= os.environ.items()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    before = dict(os.environ)
    with outside_of_jobs():
        assert names.keys() & os.environ.keys() == {"SLURM_CONF", "SBATCH_ACCOUNT"}
    assert dict(os.environ) == before


@pytest.mark.parametrize("paired", [False, True])
def test_variables_of_the_shell_do_not_outrank_the_script(
    paired: bool, bin_: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sbatch takes the variable where the script says otherwise: other cells, another partition."""
    outrank = {
        "SBATCH_ARRAY_INX": "7", "SBATCH_JOB_NAME": "mine", "SBATCH_OUTPUT": "x",
        "SBATCH_NO_REQUEUE": "1", "SBATCH_TIMELIMIT": "3", "SBATCH_PARTITION": "debug",
        "SBATCH_SIGNAL": "USR1@5", "SBATCH_MEM_PER_CPU": "1", "SBATCH_WAIT": "1",
    }  # fmt: skip
    stay = {"SBATCH_ACCOUNT": "a", "SBATCH_RESERVATION": "r", "SBATCH_REQUEUE": "1"}
    for name, value in (outrank | stay).items():
        monkeypatch.setenv(name, value)
    program(bin_, "sbatch", f"env >{bin_}/env; echo Submitted batch job 12")
    site = ("s", Site(partition="compute", mem="4G"))
    submit(one_plan(), runs=tmp_path / "runs", site=site, paired=paired)
    names = {line.partition("=")[0] for line in (bin_ / "env").read_text().splitlines()}
    assert names.isdisjoint(outrank)
    assert stay.keys() <= names
    assert os.environ["SBATCH_ARRAY_INX"] == "7"


@pytest.mark.parametrize("variable", ["SBATCH_PARTITION", "SLURM_HINT", "SBATCH_CLUSTERS"])
def test_a_variable_that_no_record_would_say_is_refused(
    variable: str, bin_: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "debug")
    program(bin_, "sbatch", "echo Submitted batch job 12")
    with pytest.raises(InputError, match=f"environment: {variable}: found 'debug'"):
        submit(one_plan(), runs=tmp_path / "runs")
    assert not calls(bin_, "sbatch")
    assert list((tmp_path / "runs").iterdir()) == []


def test_the_hint_of_the_job_that_submits_is_not_the_shells(
    bin_: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_HINT", "nomultithread")
    program(bin_, "sbatch", "echo Submitted batch job 12")
    assert submit(one_plan(), runs=tmp_path / "runs").jobs == (("12", "gat-seq", "0"),)


def test_blocks_take_the_same_care(bin_: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "run"
    program(bin_, "sbatch", f'echo "$1" >{bin_}/script; cp "$1" {bin_}/given; {LOST}')
    ours = row("11", f"'\"$(cat {bin_}/script)\"'", str(run), "gat-paired@run")
    program(bin_, "squeue", ours)
    done = submit(one_plan(), runs=tmp_path / "runs", paired=True)
    assert done.jobs == (("11", "gat-paired", "0"),)
    assert len(calls(bin_, "sbatch")) == 1
    # What is submitted is what a user submits by hand.
    assert (bin_ / "given").read_text() == (run / "arrays" / "gat-paired.sbatch").read_text()
