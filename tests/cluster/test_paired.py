"""Paired blocks on four nodes: all layouts of a repeat in one job, one after the other."""

from __future__ import annotations

import csv
import sys

import pytest
from gnnhpc.records.block_table import read_block_table
from jobs.folder.submission_records import read_submissions

from gnnhpc.experiment.manifest import Cell
from gnnhpc.records.schema import Result
from tests.cluster.runs import TINY_GAT, Run, User, planted, steps, wait_for
from tests.cluster.test_interruptions import expedite, wait_for_requeue

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

GRID = TINY_GAT | {
    "layouts": ["seq", "pp2", "dp2-pp2"],
    "microbatches": [2],
    "seq_microbatches": [1],
    "train_steps": 12,
}


def blocks(run: Run) -> dict[int, list[Cell]]:
    """The cells of each block, in order, as the table beside the scripts has them."""
    found: dict[int, list[Cell]] = {}
    for line in read_block_table(run.paths.block_table("gat-paired")):
        found.setdefault(line.block, []).append(run.cell(line.array, line.index))
    return found


def results(run: Run, cells: list[Cell]) -> list[Result]:
    return [run.result(cell) for cell in cells]


def details(run: Run, cells: list[Cell]) -> list[tuple[str, str | None]]:
    found = run.status()
    return [(found[cell.id]["state"], found[cell.id]["detail"]) for cell in cells]


def test_a_repeat_is_measured_by_one_job_on_the_same_nodes(user: User) -> None:
    run = user.submit([GRID | {"repeats": 3}], "--paired", name="paired")
    drawn = blocks(run)
    assert len({tuple(cell.array for cell in cells) for cells in drawn.values()}) > 1
    (record,) = read_submissions(run.paths)
    assert (record.array, record.indices) == ("gat-paired", "0-2")

    run.wait_for_step(drawn[0][0], 0)
    waiting = ("pending", "waits for its turn in block 0 of gat-paired")
    shown = details(run, drawn[0])
    assert (shown[0][0], shown[1:]) in [("running", [waiting] * 2), ("done", shown[1:])]
    later = details(run, drawn[2])
    assert all(state == "pending" for state, _ in later)
    assert all(str(detail).startswith("waits in block 2 of gat-paired: ") for _, detail in later)

    for number, cells in drawn.items():
        found = results(run, cells)
        assert [(each.status, each.flags) for each in found if not each.valid] == []
        hosts = {each.layout["name"]: set(each.provenance["hosts"]) for each in found}
        assert hosts["seq"] < hosts["pp2"] < hosts["dp2-pp2"]
        assert [len(hosts[name]) for name in ("seq", "pp2", "dp2-pp2")] == [1, 2, 4]
        jobs = {each.provenance["slurm"]["SLURM_ARRAY_TASK_ID"] for each in found}
        assert jobs == {str(number)}
        began = [each.started_at for each in found]
        assert began == sorted(began)
    run.wait_until_idle()
    assert {cell["state"] for cell in run.status().values()} == {"done"}
    assert speedups_from(run) == {"seq": "", "pp2": "3 pairs", "dp2-pp2": "3 pairs"}
    assert "submit --paired" in (run.paths.report / "report.html").read_text()

    one = drawn[1][1]
    script = run.paths.script(one.array)
    run.cluster.run("sbatch", "--wait", f"--array={one.index}", script)
    assert run.result(one, 2).valid
    assert [len(run.paths.cell(cell.id).attempts()) for cell in drawn[1]] == [1, 2, 1]


def speedups_from(run: Run) -> dict[str, str]:
    """What the report takes the interval of each layout's speedup from."""
    run.cluster.run(sys.executable, "-m", "analysis", "report", run.paths.root, timeout=600)
    with (run.paths.report / "summary.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    return {row["layout"]: row["speedup_from"] for row in rows if row["phase"] == "train"}


def test_a_block_that_is_requeued_goes_on_where_it_was(user: User) -> None:
    grid = GRID | {"train_steps": 200, "save_every": 20}
    run = user.submit([grid], "--paired", name="requeued")
    first, second, third = blocks(run)[0]
    assert run.result(first).valid
    run.wait_for_step(second, 50)
    job = f"{run.job('gat-paired')}_0"
    run.cluster.run("scontrol", "requeue", job)
    wait_for_requeue(run, job)
    shown = run.status()
    assert [shown[c.id]["state"] for c in (first, second, third)] == ["done", "pending", "pending"]
    expedite(run, job)
    result = run.result(second, 2)
    assert result.valid
    assert result.resumed_from is not None
    assert steps(run.attempt(second, 2), 0)[0]["step"] == result.resumed_from["step"] >= 20
    assert run.result(third).valid
    run.wait_until_idle()
    assert [len(run.paths.cell(c.id).attempts()) for c in (first, second, third)] == [1, 2, 1]
    assert {cell["state"] for cell in run.status().values()} == {"done"}


def test_a_cell_that_fails_does_not_stop_its_block(user: User) -> None:
    site = {"setup": ['test "$array" != gat-pp2']}
    run = user.submit([GRID], "--paired", name="failing", site=site)
    cells = blocks(run)[0]
    run.wait_until_idle()
    failed = next(cell for cell in cells if cell.array == "gat-pp2")
    states = {cell.array: run.status()[cell.id]["state"] for cell in cells}
    assert states == {"gat-seq": "done", "gat-pp2": "failed", "gat-dp2-pp2": "done"}
    cause = "set-up line 'test \"$array\" != gat-pp2' failed with status 1"
    assert cause in str(run.status()[failed.id]["detail"])
    command = ("sacct", "-X", "-n", "-P", "-j", run.job("gat-paired"), "-o", "State,ExitCode")
    wait_for(
        lambda: run.cluster.run(*command).stdout.split() == ["FAILED|1:0"], "the block's status", 30
    )

    again = ("--failed", "--paired", *user.site({}))
    user.jobs("rerun", run.paths.root, *again)
    assert [run.result(cell, 2).valid for cell in cells] == [True] * 3
    refused = user.jobs("cancel", run.paths.root, "--array", "gat-pp2", check=False)
    assert refused.returncode == 2
    assert "gat-pp2, whose cells are in blocks with others; allowed: gat-paired" in refused.stderr


def test_a_block_told_of_its_time_limit_begins_no_other_cell(user: User) -> None:
    # Slurm looks for time limits twice a minute, and the first cell takes longer than that.
    grid = GRID | {"train_steps": 400, "save_every": 20}
    site = planted("slow", 0, 20) | {"signal": 120}
    run = user.submit([grid], "--paired", name="limit", site=site)
    first, second, third = blocks(run)[0]
    run.wait_for_step(first, 30)
    job = f"{run.job('gat-paired')}_0"
    run.cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=2")
    wait_for_requeue(run, job)
    assert run.result(first).status == "interrupted"
    assert [run.paths.cell(cell.id).attempts() for cell in (second, third)] == [[], []]
    run.cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=30")
    expedite(run, job)
    assert run.result(first, 2).resumed_from is not None
    assert [run.result(cell).valid for cell in (second, third)] == [True, True]
    run.wait_until_idle()
    assert {cell["state"] for cell in run.status().values()} == {"done"}
