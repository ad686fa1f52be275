"""Daily life at the login node: what is refused, shown, throttled, extended and cancelled."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.cluster.runs import TINY_GAT, User, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SEQ = TINY_GAT | {"layouts": ["seq"], "microbatches": [1], "train_steps": 3}


def test_what_slurm_refuses_is_one_line_and_leaves_nothing(user: User) -> None:
    file = user.home / "spec.yaml"
    file.write_text(json.dumps({"name": "refused", "grids": [SEQ]}))
    done = user.jobs(
        "submit", file, "--runs", user.runs, *user.site({"partition": "nosuch"}), check=False
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "partition" in done.stderr
    assert not (user.runs / "refused").exists()
    assert user.cluster.run("squeue", "-h").stdout == ""


def test_site_check_tells_what_the_cluster_offers_and_what_does_not_fit(user: User) -> None:
    short = {"partition": "short", "time": "00:01:00", "signal": 30}
    fits = user.jobs("site", "check", *user.site(short))
    assert "partition short: 4 nodes, 2 CPUs" in fits.stdout
    assert fits.stdout.endswith("fits\n")
    wrong = user.jobs("site", "check", *user.site({"partition": "nosuch"}), check=False)
    assert wrong.returncode == 1
    assert "nosuch" in wrong.stdout


def test_waiting_cells_are_shown_with_slurms_reason_throttled_and_cancelled(user: User) -> None:
    user.cluster.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    try:
        run = user.submit([SEQ | {"repeats": 4}], name="waits", site={"max_parallel": 2})
        shown = user.cluster.run("squeue", "-h", "-o", "%i|%j|%k").stdout.strip().split("|")
        assert shown == [f"{run.job('gat-seq')}_[0-3%2]", "gat-seq@waits", str(run.paths.root)]
        states = run.status()
        assert {(cell["state"], cell["detail"]) for cell in states.values()} == {
            ("pending", "PartitionDown")
        }
        again = user.jobs(
            "rerun", run.paths.root, "--array", "gat-seq", "--index", "1", check=False
        )
        assert again.returncode == 2
        assert "pending" in again.stderr
        user.jobs("cancel", run.paths.root)
        assert user.cluster.run("squeue", "-h").stdout == ""
    finally:
        user.cluster.run("scontrol", "update", "PartitionName=main", "State=UP")
    wait_for(
        lambda: {cell["state"] for cell in run.status().values()} <= {"cancelled", "missing"},
        "cancelled cells",
        30,
    )


def test_more_cells_of_a_run_are_the_only_ones_run(user: User) -> None:
    run = user.submit([SEQ], name="grows")
    first = run.cells[0]
    assert run.result(first).status == "done"
    user.submit([SEQ | {"repeats": 2}], "--extend", name="grows")
    assert [cell.index for cell in run.cells] == [0, 1]
    assert run.cells[0].id == first.id
    assert run.result(run.cells[1]).status == "done"
    run.wait_until_idle()
    assert len(run.paths.cell(first.id).attempts()) == 1


def test_cells_at_equal_distances_are_known_in_the_queue(user: User) -> None:
    """Slurm writes them as 2_[0-22:2]."""
    held = ("--slurm", "hold")
    run = user.submit([TINY_GAT | {"layouts": ["seq"], "repeats": 24}], *held, name="distances")
    user.jobs("cancel", run.paths.root)
    wanted = ",".join(map(str, range(0, 24, 2)))
    user.jobs("rerun", run.paths.root, "--index", wanted, *held)
    assert "_[0-22:2]" in user.cluster.run("squeue", "-h", "-o", "%i").stdout
    waits = {cell["index"] for cell in run.status().values() if cell["state"] == "pending"}
    assert waits == set(range(0, 24, 2))
    told = user.jobs("status", run.paths.root, check=False).stdout
    assert "pending: 12 cells wait, Slurm says JobHeldUser" in told
    user.jobs("cancel", run.paths.root)
    assert not user.cluster.run("squeue", "-h").stdout


def test_a_copy_leaves_the_jobs_of_the_first_run_alone(user: User) -> None:
    grid = TINY_GAT | {"layouts": ["seq"], "repeats": 2}
    run = user.submit([grid], "--slurm", "hold", name="first")
    copy = user.runs / "copy"
    shutil.copytree(run.paths.root, copy)
    assert user.jobs("cancel", copy).stdout == "no job to cancel\n"
    assert {cell["state"] for cell in run.status().values()} == {"pending"}
    # Nor is anything else that the user has in the queue the run's.
    user.cluster.run("sbatch", "--hold", "--array=0-1", "--output=/dev/null", "--wrap", "true")
    user.jobs("cancel", ".", cwd=run.paths.root)
    assert user.cluster.run("squeue", "-h", "-o", "%j").stdout == "wrap\n"
