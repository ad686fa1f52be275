"""Faults that take minutes each, and a soak under random faults: `make nightly`."""

from __future__ import annotations

import contextlib
import os
import random
import time

import psutil
import pytest

from gnnhpc.records.result_file import Result
from gnnhpc.records.schema import read_lines
from jobs.slurm.paired_blocks import read_blocks
from tests.cluster.runs import TINY_GAT, TINY_VIG, Run, User, planted
from tests.cluster.sweeps import LONG

pytestmark = [pytest.mark.cluster, pytest.mark.nightly, pytest.mark.timeout(2400)]

SOAK_S = 60.0 * float(os.environ.get("GNNHPC_SOAK_MIN", "5"))
BETWEEN_S = (2.0, 8.0)
"""Seconds between two random faults."""


def test_a_block_that_is_requeued_continues_where_it_was(user: User) -> None:
    grid = LONG | {"layouts": ["seq", "pp2", "dp2-pp2"], "seq_microbatches": [1]}
    grid |= {"train_steps": 160}
    run = user.submit([grid], "--paired", name="block", site=planted("slow", 0, 100))
    (block,) = read_blocks(run.paths, run.cells)["gat-paired"]
    first, second, third = block.cells
    run.result(first)
    run.wait_for_step(second, 120)
    job = f"{run.job('gat-paired')}_0"
    run.cluster.run("scontrol", "requeue", job)
    run.wait_for_requeue(job)
    shown = run.status()
    done = run.result(first)
    assert done.valid, f"the block runs it again: {done.failure} {done.audit}"
    states = [shown[c.id]["state"] for c in (first, second, third)]
    assert states == ["done", "pending", "pending"], run.explain()
    run.start_requeued(job)
    run.wait_until_idle()
    again = run.result(second, 2)
    assert again.resumed_from is not None
    assert [len(run.paths.cell(c.id).attempts()) for c in (first, second, third)] == [1, 2, 1]
    assert set(run.states().values()) == {"done"}


def test_random_faults_change_no_result(user: User) -> None:
    """The same sweep runs undisturbed, and under random kills, requeues and drains."""
    shared = {"layouts": ["seq", "pp2"], "microbatches": [2], "seq_microbatches": [2]}
    shared |= {"train_steps": 120, "test_steps": 1, "save_every": 20}
    grids = [TINY_VIG | shared, TINY_GAT | shared]
    calm = user.submit(grids, name="calm")
    calm.wait_until_idle()
    run = user.submit([grid | {"repeats": 3} for grid in grids], name="faulty")
    chance, end = random.Random(3), time.monotonic() + SOAK_S
    while time.monotonic() < end and set(run.states().values()) != {"done"}:
        _disturb(run, chance)
        time.sleep(chance.uniform(*BETWEEN_S))
        if not run.jobs():
            user.jobs("rerun", run.paths.root, "--missing", check=False)
    for node in ("n1", "n2", "n3", "n4"):
        run.cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
    for _ in range(3):
        run.wait_until_idle()
        user.jobs("rerun", run.paths.root, "--missing", check=False)
    run.wait_until_idle()
    assert set(run.states().values()) == {"done"}, run.explain()
    expected = {cell.array: _final(calm, cell.array) for cell in calm.cells}
    for cell in run.cells:
        if cell.experiment.repeat == 0:
            assert _final(run, cell.array) == expected[cell.array], cell.id


def _final(run: Run, array: str) -> dict[str, object]:
    """What the newest result of an array's first cell says about its training."""
    attempts = run.paths.cell(run.cell(array).id).attempts()
    results = [Result.read(one.result) for one in attempts if one.result.exists()]
    return dict([result for result in results if result.status == "done"][-1].final)


def _disturb(run: Run, chance: random.Random) -> None:
    """Kill a rank, requeue a job, or drain a node and bring another back."""
    fault = chance.choice(["kill", "kill", "requeue", "drain"])
    tasks = [line.split()[1] for line in run.jobs() if line.endswith("RUNNING")]
    if fault == "requeue" and tasks:
        run.cluster.run("scontrol", "requeue", chance.choice(tasks), check=False)
    elif fault == "drain":
        node, other = chance.sample(["n1", "n2", "n3", "n4"], 2)
        drain = ("State=DRAIN", "Reason=soak")
        run.cluster.run("scontrol", "update", f"NodeName={node}", *drain, check=False)
        run.cluster.run("scontrol", "update", f"NodeName={other}", "State=RESUME", check=False)
    elif fault == "kill":
        records = sorted(run.paths.cells.glob("*/attempt-*/rank-*.jsonl"))
        alive = [file for file in records if not (file.parent / "result.json").exists()]
        with contextlib.suppress(IndexError, KeyError, psutil.NoSuchProcess):
            process = psutil.Process(read_lines(chance.choice(alive))[0]["pid"])
            if process in run.cluster.processes():
                process.kill()
