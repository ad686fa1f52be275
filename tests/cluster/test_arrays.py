"""Sweeps larger than a job array of this cluster, whose highest task id is 1000 as on most."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import pytest
from jobs.folder.submission_records import read_submissions

from gnnhpc.records.run_paths import RunPaths
from tests.cluster.runs import TINY_GAT, Run, User, wait_for
from tests.cluster.shims import shims

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

GRID = TINY_GAT | {"layouts": ["seq"], "train_steps": 2}
LATER = ("--slurm", "begin=now+1hour")
"""Queued, and begun only by who asks for it."""


def queued(run: Run) -> list[str]:
    """Names of all tasks in the queue, one each: `vig-pp2.1000@run 17_3`."""
    shown = run.cluster.run("squeue", "-h", "-r", "-a", "-o", "%j %F_%K").stdout
    return sorted(line for line in shown.splitlines() if f"@{run.paths.root.name} " in line)


def begin_now(run: Run, task: str) -> None:
    run.cluster.run("scontrol", "update", f"JobId={task}", "StartTime=now")


def test_twelve_hundred_cells_of_one_array_are_all_taken_and_found_again(user: User) -> None:
    run = user.submit([GRID | {"repeats": 1200}], *LATER, name="many")
    parts = {record.offset: record for record in read_submissions(run.paths)}
    assert {offset: record.indices for offset, record in parts.items()} == {
        0: "0-999",
        1000: "1000-1199",
    }
    assert len(queued(run)) == 1200
    assert Counter(cell["state"] for cell in run.status().values()) == {"pending": 1200}

    upper = run.cell("gat-seq", 1003)
    begin_now(run, f"{parts[1000].job_id}_3")
    assert run.result(upper).valid
    assert run.result(upper).provenance["slurm"]["SLURM_ARRAY_TASK_ID"] == "3"
    wait_for(lambda: run.status()[upper.id]["state"] == "done", "the cell to be done")
    assert list(run.paths.logs.glob("gat-seq-1003-*.log"))
    assert not run.paths.cell(run.cell("gat-seq", 3).id).root.exists()

    by_hand = ("sbatch", "--parsable", "--begin=now", "--array=199", "--wait")
    run.cluster.run(*by_hand, run.paths.script("gat-seq.1000"))
    last = run.cell("gat-seq", 1199)
    assert run.result(last).valid
    assert list(run.paths.logs.glob("gat-seq-1199-*.log"))

    job = run.cluster.run(
        "sbatch", "--parsable", "--array=7", run.paths.script("gat-seq.1000")
    ).stdout.strip()
    run.user.jobs("cancel", run.paths.root)
    wait_for(lambda: not queued(run), f"the cancelled jobs to end, {job} by hand among them")
    after = run.status()
    assert after[last.id]["state"] == "done"
    assert Counter(cell["state"] for cell in after.values()) == {"done": 2, "cancelled": 1198}


def test_a_rerun_takes_the_part_that_its_cells_are_in(user: User) -> None:
    run = user.submit([GRID | {"repeats": 6}], *LATER, name="rerun", site={"max_array_size": 5})
    run.user.jobs("cancel", run.paths.root)
    wait_for(lambda: not queued(run), "the cancelled jobs to end")
    flags = ("--array", "gat-seq", "--index", "1,5", "--slurm", "begin=now")
    run.user.jobs("rerun", run.paths.root, *flags)
    newest = read_submissions(run.paths)[-2:]
    assert [(record.indices, record.offset) for record in newest] == [("1", 0), ("5", 4)]
    for index in (1, 5):
        assert run.result(run.cell("gat-seq", index)).valid
    assert not run.paths.cell(run.cell("gat-seq", 0).id).root.exists()


def test_ten_thousand_cells_are_submitted_shown_and_cancelled(user: User) -> None:
    run = user.submit([GRID | {"repeats": 10_000}], *LATER, name="huge")
    assert len(queued(run)) == 10_000
    shown = json.loads(run.user.jobs("status", run.paths.root, "--json", check=False).stdout)
    assert shown["counts"] == {"pending": 10_000}
    run.user.jobs("cancel", run.paths.root)
    wait_for(lambda: not queued(run), "the cancelled jobs to end")


def test_more_cells_than_the_cluster_holds_jobs_are_refused_at_once(user: User) -> None:
    config = user.cluster.run("scontrol", "show", "config").stdout
    most = int(next(line.split()[-1] for line in config.splitlines() if "MaxJobCount" in line))
    spec = user.home / "over.yaml"
    spec.write_text(
        "name: over\ngrids:\n"
        "  - {models: gat, layouts: seq, data: {name: synthetic-citation, nodes: 40, edges: 160}, "
        f"repeats: {most + 1}}}\n"
    )
    done = user.jobs("submit", spec, "--runs", user.runs, *user.site({}), check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"found {most + 1} cells; allowed: at most {most} jobs" in done.stderr
    assert not (user.runs / "over").exists()


def test_a_part_refused_for_the_users_limit_leaves_the_others_to_a_rerun(user: User) -> None:
    spec = user.home / "some.yaml"
    spec.write_text(
        "name: some\ngrids:\n  - {models: gat, layouts: seq, repeats: 6, train_steps: 2,"
        " data: {name: synthetic-citation, nodes: 40, edges: 160}}\n"
    )
    words = (
        "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, "
        "user's size and/or time limits)"
    )
    refuse = f'echo "sbatch: error: {words}" >&2; exit 1'
    after_one = f'echo >>"$0.calls"; if [ "$(wc -l <"$0.calls")" -gt 1 ]; then {refuse}; fi'
    after_one = f'if [ "$1" != --help ]; then {after_one}; fi'
    site = user.site({"max_array_size": 5})
    limited = shims(user.home / "limited", sbatch=after_one)
    told = (*site, *LATER)
    done = user.jobs("submit", spec, "--runs", user.runs, *told, check=False, env=limited)
    run = Run(user, RunPaths(user.runs / "some"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "sbatch gat-seq.4: found Batch job submission failed: Job violates" in done.stderr
    submitted = f"submitted before that: gat-seq as {run.job('gat-seq')}; the others: "
    assert submitted in done.stderr
    assert "rerun" in done.stderr.partition(submitted)[2]
    assert Counter(cell["state"] for cell in run.status().values()) == {"pending": 4, "missing": 2}
    user.jobs("rerun", run.paths.root, "--missing")
    assert len(queued(run)) == 6


def test_a_limit_of_cells_at_once_is_the_whole_submissions(user: User) -> None:
    """Two arrays of two cells each: no moment has cells of both."""
    grid = TINY_GAT | {"layouts": ["seq", "pp2"], "microbatches": [2], "repeats": 2}
    run = user.submit([grid], name="few", site={"max_parallel": 1})
    cluster = run.cluster
    most: list[int] = []

    def ended() -> bool:
        shown = cluster.run("squeue", "-h", "-r", "-o", "%T").stdout.split()
        most.append(sum(state in ("RUNNING", "COMPLETING") for state in shown))
        return not shown

    wait_for(ended, f"the queue to be empty\n{run.logs()}")
    assert {result.status for result in run.results().values()} == {"done"}
    assert max(most) == 1
    spans = sorted((each.started_at, each.ended_at) for each in run.results().values())
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


def test_cells_that_are_added_wait_for_those_that_the_limit_counts(user: User) -> None:
    spec = user.home / "some.yaml"
    spec.write_text(
        "name: some\ngrids:\n  - {models: gat, layouts: seq, repeats: 2, train_steps: 2,"
        " data: {name: synthetic-citation, nodes: 40, edges: 160}}\n"
    )
    told = (*user.site({"max_parallel": 1}), *LATER)
    user.jobs("submit", spec, "--runs", user.runs, *told)
    run = Run(user, RunPaths(user.runs / "some"))
    first = run.job("gat-seq")
    user.jobs("submit", spec, "--runs", user.runs, "--extend", "--set", "repeats=4")
    second = run.job("gat-seq")
    assert second != first
    shown = run.cluster.run("scontrol", "show", "job", second).stdout
    assert f"Dependency=afterany:{first}_*" in shown
    assert len(queued(run)) == 4
