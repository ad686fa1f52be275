"""What a site asks of Slurm reaches Slurm, by the script and by submitit, and is told."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.processes import Process
from tests.cluster.runs import TINY_GAT, Run, User, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

GRID = TINY_GAT | {"layouts": ["seq"], "train_steps": 2}
LATER = ("--slurm", "begin=now+1hour")


def shown(run: Run, job: str) -> str:
    return run.cluster.run("scontrol", "show", "job", job).stdout


def script_of(run: Run, job: str) -> str:
    return run.cluster.run("scontrol", "write", "batch_script", job, "-").stdout


def by_hand(run: Run, *flags: str) -> str:
    return run.cluster.run(
        "sbatch", "--parsable", *flags, run.paths.script("gat-seq")
    ).stdout.strip()


@pytest.fixture
def reservation(user: User) -> Iterator[str]:
    """A reservation of a node."""
    told = ("ReservationName=mine", "StartTime=now", "Duration=60", "Users=root", "Nodes=n2")
    user.cluster.run("scontrol", "create", "reservation", *told)
    yield "mine"
    jobs = user.cluster.run("squeue", "-h", "-o", "%A").stdout.split()
    if jobs:
        user.cluster.run("scancel", *set(jobs))
    delete = ("scontrol", "delete", "ReservationName=mine")
    wait_for(lambda: user.cluster.run(*delete, check=False).returncode == 0, "its end")


def test_options_reach_slurm_by_the_script_and_by_submitit(user: User, reservation: str) -> None:
    site = {
        "exclusive": True,
        "cpu_bind": "cores",
        "mem": "100M",
        "slurm": {"reservation": reservation, "mail-type": "END,FAIL", "no-kill": True, "nice": 7},
    }
    run = user.submit([GRID], *LATER, name="asked", site=site)
    jobs = [f"{run.job('gat-seq')}_0", f"{by_hand(run)}_0"]
    for job in jobs:
        told = shown(run, job)
        for word in (
            f"Reservation={reservation}",
            "OverSubscribe=NO",
            "MinMemoryNode=100M",
            "Nice=7",
            "MailType=END,FAIL",
        ):
            assert word in told, told
        script = script_of(run, job.partition("_")[0])
        assert re.search(r"srun .*--cpu-bind=cores", script.replace("\\\n", " "))
        assert "#SBATCH --no-kill\n" in script


def test_a_hint_is_recorded_with_what_may_decide_speed(user: User) -> None:
    run = user.submit([GRID], name="hint", site={"hint": "nomultithread", "exclusive": True})
    result = run.result(run.cells[0])
    assert result.valid
    site = result.provenance["site"]
    assert (site["hint"], site["exclusive"]) == ("nomultithread", True)
    assert result.provenance["slurm"]["SLURM_JOB_CPUS_PER_NODE"] == "2"


def test_an_option_that_sbatch_does_not_have_is_told_before_anything_is_written(user: User) -> None:
    spec = user.home / "spec.yaml"
    spec.write_text("name: s\ngrids: [{models: gat, layouts: seq, data: synthetic-citation}]\n")
    told: list[str | Path] = ["submit", spec, "--runs", user.runs, *user.site({}), "--slurm"]
    done = user.jobs(*told, "reservatoin=x", check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert (
        "slurm.reservatoin: found an unknown option of sbatch (is reservation meant?)"
        in done.stderr
    )
    done = user.jobs(*told, "array=0-3", check=False)
    assert "slurm.array: found array; allowed: other options of sbatch" in done.stderr
    # This Slurm's own list counts: it is older than the option.
    done = user.jobs(*told, "tres-per-task=cpu:1", check=False)
    assert "slurm.tres-per-task: found an unknown option of sbatch" in done.stderr
    assert not user.runs.exists()


def test_a_node_shared_with_another_job_is_told_and_a_whole_node_is_not(user: User) -> None:
    other = ("sbatch", "--parsable", "--nodelist=n1", "--mem=100M", "--output=/dev/null", "--wrap")
    job = user.cluster.run(*other, "sleep 300").stdout.strip()
    wait_for(
        lambda: "RUNNING" in user.cluster.run("squeue", "-h", "-o", "%T").stdout, "the sleeper"
    )
    site = {"slurm": {"nodelist": "n1"}}
    shared = user.submit([GRID], name="shared", site=site)
    result = shared.result(shared.cells[0])
    check = next(check for check in result.audit if check.name == "shared-node")
    assert check.verdict == "suspect"
    assert check.detail == f"its nodes had 1 other job at its start and end: {job}"
    assert "shared-node" in result.flags
    assert shared.status()[shared.cells[0].id]["state"] == "done"

    alone = user.submit([GRID], name="alone", site=site | {"exclusive": True})
    wait_for(
        lambda: "Resources" in shown(alone, alone.job("gat-seq")), "the whole node to be taken"
    )
    user.cluster.run("scancel", job)
    result = alone.result(alone.cells[0])
    check = next(check for check in result.audit if check.name == "shared-node")
    assert (check.verdict, check.values["end"]) == ("ok", {"jobs": [], "cpus": 0})


def test_a_controller_that_does_not_answer_holds_nothing_up(user: User) -> None:
    run = user.submit([GRID | {"train_steps": 300}], name="silent", site={"exclusive": True})
    cell = run.cells[0]
    run.wait_for_step(cell, 1)
    controller = Process.from_line((user.cluster.root / "pids" / "slurmctld").read_text())
    controller.send(signal.SIGSTOP)
    try:
        result = run.result(cell)
    finally:
        controller.send(signal.SIGCONT)
    assert result.valid
    assert result.provenance["other_jobs"]["start"] == {"jobs": [], "cpus": 0}
    assert result.provenance["other_jobs"]["end"] is None
    check = next(check for check in result.audit if check.name == "shared-node")
    assert (check.verdict, check.detail) == ("ok", "its nodes had no other job at its start")


@pytest.mark.parametrize("how", ["submitit", "by hand"])
def test_a_set_up_line_that_fails_is_the_cells_cause(user: User, how: str) -> None:
    site = {"modules": ["gcc/99"]}
    flags = () if how == "submitit" else LATER
    run = user.submit([GRID], *flags, name="set-up", site=site)
    if how == "by hand":
        run.user.jobs("cancel", run.paths.root)
        by_hand(run, "--begin=now")
    cell = run.cells[0]
    failure = run.attempt(cell).failure(0)
    wait_for(failure.exists, f"the record of the failure\n{run.logs()}")
    run.wait_until_idle()
    state = run.status()[cell.id]
    assert state["state"] == "failed"
    assert "set-up line 'module load gcc/99' failed with status" in state["detail"]
    assert "error: set-up line 'module load gcc/99'" in run.logs()
    run.user.jobs("rerun", run.paths.root, "--failed", *user.site({}))
    assert run.result(cell, 2).valid


def test_a_site_file_from_what_the_cluster_says_fits_it(user: User) -> None:
    done = user.jobs("site", "init", "--out", "made.yaml")
    assert done.stdout.startswith("wrote made.yaml; next: python -m jobs site check")
    text = (user.home / "made.yaml").read_text()
    assert text.count("gnnhpc-test") >= 2
    assert "    partition: main\n" in text
    assert "#   preemptible: 4 nodes, 2 CPUs, 16000 MiB, 60 min\n" in text
    shown = user.jobs("site", "check", "--site-file", "made.yaml").stdout
    assert shown.startswith("site gnnhpc-test, of made.yaml\n")
    assert "arrays of at most 1000 cells, larger ones in parts (MaxArraySize 1001)" in shown
    assert shown.endswith("fits\n")
    again = user.jobs("site", "init", "--out", "made.yaml", check=False)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert (user.home / "made.yaml").read_text() == text
