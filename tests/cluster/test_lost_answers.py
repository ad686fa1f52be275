"""Slurm that fails, hides or answers too late: nothing is lost, and nothing runs twice."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnnhpc.records.run_paths import RunPaths
from tests.cluster import shims
from tests.cluster.runs import TINY_GAT, Run, User, wait_for
from tests.cluster.shims import FAILS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SEQ = TINY_GAT | {"layouts": ["seq"], "microbatches": [1]}


@contextlib.contextmanager
def held(user: User) -> Iterator[None]:
    """Nothing starts within the block."""
    user.cluster.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    try:
        yield
    finally:
        user.cluster.run("scontrol", "update", "PartitionName=main", "State=UP")


def queued(user: User) -> list[str]:
    """Job ids in the queue, one an array."""
    return sorted(set(user.cluster.run("squeue", "-h", "--all", "-o", "%F").stdout.split()))


def states(user: User, run: Run, env: dict[str, str]) -> tuple[set[str], int, str]:
    """Which states `status` shows, its exit status, and what it says of Slurm."""
    done = user.jobs("status", run.paths.root, "--json", check=False, env=env)
    told = json.loads(done.stdout)
    return set(told["counts"]), done.returncode, told["slurm"]


def spec(user: User, name: str, repeats: int = 2) -> tuple[str | Path, ...]:
    """A sweep of one array, as `submit` takes it."""
    file = user.home / f"{name}.yaml"
    file.write_text(json.dumps({"name": name, "grids": [SEQ | {"repeats": repeats}]}))
    return (file, "--runs", user.runs, *user.site({}))


def ran_once(run: Run) -> None:
    """Every cell is done, in one attempt."""
    run.results()
    run.wait_until_idle()
    assert {cell["state"] for cell in run.status().values()} == {"done"}, run.logs()
    assert [len(run.paths.cell(cell.id).attempts()) for cell in run.cells] == [1] * len(run.cells)
    assert run.user.jobs("status", run.paths.root).returncode == 0


def test_cells_of_a_silent_queue_are_unknown_and_not_run_again(user: User) -> None:
    silent = shims.shims(user.home / "silent", squeue=FAILS, sacct=FAILS)
    with held(user):
        run = user.submit([SEQ | {"repeats": 4}], name="silent")
        jobs = queued(user)
        shown, status, slurm = states(user, run, silent)
        assert (shown, status) == ({"unknown"}, 3)
        assert shims.NO_CONTROLLER in slurm
        told = user.jobs("status", run.paths.root, check=False, env=silent).stdout
        assert "unknown: 4 cells may run or wait; Slurm does not say: slurm_load_jobs" in told
        for selection in (["--missing"], ["--failed"], ["--array", "gat-seq"]):
            rerun = ["rerun", run.paths.root, *selection]
            done = user.jobs(*rerun, check=False, env=silent)
            assert done.returncode == 2, done.stdout
            assert len(done.stderr.splitlines()) == 1
            assert "--force" in done.stderr
        assert queued(user) == jobs
        one = ("--array", "gat-seq", "--index", "3", "--force")
        user.jobs("rerun", run.paths.root, *one, env=silent)
        assert len(queued(user)) == 2
        user.cluster.run("scancel", run.job("gat-seq"))
    ran_once(run)


def test_the_accounting_speaks_for_a_silent_queue(user: User) -> None:
    silent = shims.shims(user.home / "silent", squeue=FAILS)
    with held(user):
        run = user.submit([SEQ | {"repeats": 2}], name="accounted")

        def seen() -> bool:
            return states(user, run, silent)[:2] == ({"pending"}, 3)

        wait_for(seen, "the accounting to have the array", 30)
        done = user.jobs("rerun", run.paths.root, "--missing", check=False, env=silent)
        assert "no cell to run again (2 pending)" in done.stderr
    ran_once(run)


def test_a_hidden_partition_hides_no_cell(user: User) -> None:
    nobody = shims.shims(user.home / "nobody", squeue=shims.ASKS_AS_NOBODY, sacct=FAILS)
    hidden = ("scontrol", "update", "PartitionName=main")
    user.cluster.run(*hidden, "Hidden=YES")
    try:
        with held(user):
            run = user.submit([SEQ], name="hidden")
            plain = user.cluster.run(Path(user.home / "nobody/squeue"), "-h")
            assert plain.stdout == "", "the partition is not hidden from nobody"
            assert states(user, run, nobody)[:2] == ({"pending"}, 3)
            # A user's own defaults of squeue hide no cell either.
            assert states(user, run, {"SQUEUE_STATES": "RUNNING"})[:2] == ({"pending"}, 3)
        ran_once(run)
    finally:
        user.cluster.run(*hidden, "Hidden=NO")


def test_what_the_queue_hides_and_the_accounting_has_is_unknown(user: User) -> None:
    hides = shims.shims(user.home / "hides", squeue="exit 0")
    with held(user):
        run = user.submit([SEQ], name="hides")

        def seen() -> bool:
            return states(user, run, hides)[:2] == ({"unknown"}, 3)

        wait_for(seen, "the accounting to have the array", 30)
        (cell,) = run.status().values()
        assert cell["state"] == "pending"
        done = user.jobs("rerun", run.paths.root, "--missing", check=False, env=hides)
        assert f"squeue does not list {run.job('gat-seq')}_0, sacct: PENDING" in done.stderr
        assert len(queued(user)) == 1
    ran_once(run)


def test_an_array_whose_submission_timed_out_is_found_and_kept(user: User) -> None:
    lost = shims.shims(user.home / "lost", sbatch=shims.LOSES_ITS_ANSWER)
    with held(user):
        done = user.jobs("submit", *spec(user, "lost"), env=lost)
        (job,) = queued(user)
        assert f"gat-seq 0-1: Slurm job {job}\n" in done.stdout
        run = Run(user, RunPaths(user.runs / "lost"))
        assert run.job("gat-seq") == job
    ran_once(run)


def test_a_run_folder_stays_where_nobody_knows_whether_it_was_submitted(user: User) -> None:
    lost = shims.shims(user.home / "lost", sbatch=shims.LOSES_ITS_ANSWER, squeue=FAILS)
    with held(user):
        done = user.jobs("submit", *spec(user, "kept"), check=False, env=lost)
        assert done.returncode == 1
        run = Run(user, RunPaths(user.runs / "kept"))
        assert len(done.stderr.splitlines()) == 1
        assert shims.TIMED_OUT in done.stderr
        assert f"`python -m jobs status {run.paths.root}` shows" in done.stderr
        assert states(user, run, lost)[:2] == ({"unknown"}, 3)
        assert states(user, run, {})[:2] == ({"pending"}, 3)
        again = user.jobs("rerun", run.paths.root, "--missing", check=False)
        assert again.returncode == 2
        assert len(queued(user)) == 1
    ran_once(run)


@pytest.mark.parametrize(
    ("name", "failure"), [("unreached", shims.NOT_REACHED), ("unheard", shims.TIMES_OUT)]
)
def test_what_was_not_submitted_is_tried_again(user: User, name: str, failure: str) -> None:
    unlucky = shims.shims(user.home / "unlucky", sbatch=shims.first(2, failure))
    done = user.jobs("submit", *spec(user, name), env=unlucky)
    run = Run(user, RunPaths(user.runs / name))
    assert f"gat-seq 0-1: Slurm job {run.job('gat-seq')}\n" in done.stdout
    ran_once(run)


def test_a_submission_that_comes_late_is_not_doubled(user: User) -> None:
    """The first call's job appears after the queue was looked at, as the second call is made."""
    late = (
        f'if [ ! -e "$0.first" ]; then echo "$1" >"$0.first"; {shims.TIMES_OUT}; fi; '
        '"$real" "$(cat "$0.first")" >/dev/null'
    )
    with held(user):
        tardy = shims.shims(user.home / "tardy", sbatch=late)
        done = user.jobs("submit", *spec(user, "late"), env=tardy)
        run = Run(user, RunPaths(user.runs / "late"))
        assert queued(user) == [run.job("gat-seq")]
        assert run.job("gat-seq") in done.stdout
    ran_once(run)


def test_a_submitter_that_dies_after_sbatch_loses_and_doubles_nothing(user: User) -> None:
    deadly = shims.shims(user.home / "deadly", sbatch=shims.KILLS_ITS_CALLER)
    with held(user):
        done = user.jobs("submit", *spec(user, "dies"), check=False, env=deadly)
        assert done.returncode == -9
        run = Run(user, RunPaths(user.runs / "dies"))
        assert not run.paths.submissions.exists()

        def told() -> set[tuple[str, str]]:
            return {(cell["state"], cell["detail"]) for cell in run.status().values()}

        wait_for(lambda: told() == {("pending", "PartitionDown")}, lambda: f"reasons: {told()}")
        again = user.jobs("rerun", run.paths.root, "--missing", check=False)
        assert "no cell to run again (2 pending)" in again.stderr
        assert len(queued(user)) == 1
    ran_once(run)


def test_cancel_leaves_ids_alone_of_which_slurm_does_not_speak(user: User) -> None:
    silent = shims.shims(user.home / "silent", squeue=FAILS, sacct=FAILS)
    with held(user):
        run = user.submit([SEQ], name="cancels")
        # Somebody else's job, under the id of one that has ended.
        foreign = user.cluster.run("sbatch", "--parsable", "-o", "/dev/null", "--wrap", "true")
        line = json.loads(run.paths.submissions.read_text())
        with run.paths.submissions.open("a") as stream:
            stream.write(json.dumps(line | {"job_id": foreign.stdout.strip()}) + "\n")
        before = queued(user)
        done = user.jobs("cancel", run.paths.root, check=False, env=silent)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert "--force" in done.stderr
        assert queued(user) == before

        # With an answer, of squeue or of sacct, the other's job is told from ours by its name.
        accounted = shims.shims(user.home / "accounted", squeue=FAILS)
        done = user.jobs("cancel", run.paths.root, check=False, env=accounted)
        assert queued(user) == before
        assert foreign.stdout.strip() in done.stderr
        user.jobs("cancel", run.paths.root)
        assert queued(user) == [foreign.stdout.strip()]
        user.jobs("cancel", run.paths.root, "--force", env=silent)
        assert queued(user) == []
