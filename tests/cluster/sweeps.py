"""The sweeps of a session: all are submitted first, some are disturbed, and tests read the rest."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import psutil

from gnnhpc.records.schema import read_lines
from tests.cluster.runs import TINY_GAT, TINY_VIG, Run, User, planted, wait_for

STEPS = 400
EARLY = 60
"""A step after the first checkpoint and long before the last step."""
PIPELINE = TINY_GAT | {"layouts": ["pp2"], "microbatches": [2]}
LONG = PIPELINE | {"train_steps": STEPS, "save_every": 50}
ENDLESS = PIPELINE | {"train_steps": 100_000}
QUOTED = 'Läufe \'n "Zeug" $HOME; 100'
"""A name that every shell and every option of sbatch must quote."""


@dataclass(frozen=True)
class Sweep:
    """A sweep and what happens to it."""

    grids: list[dict[str, Any]]
    flags: tuple[str, ...] = ()
    site: Mapping[str, Any] = field(default_factory=dict)
    disturb: Callable[[Run], None] | None = None
    """Is called after all sweeps are submitted."""


def requeue(run: Run) -> None:
    """`scontrol requeue` while the cell trains."""
    run.wait_for_step(run.cells[0], EARLY)
    job = run.task(run.cells[0])
    run.cluster.run("scontrol", "requeue", job)
    run.start_requeued(job)


def preempt(run: Run) -> None:
    """A job of a partition with priority takes the nodes."""
    attempt = run.wait_for_step(run.cells[0], EARLY)
    hosts = ",".join(read_lines(attempt.records(rank))[0]["host"] for rank in (0, 1))
    urgent = ("--partition=urgent", "--nodes=2", f"--nodelist={hosts}", "--exclusive")
    run.cluster.run("sbatch", *urgent, "--output=/dev/null", "--wrap", "true")
    run.start_requeued(run.task(run.cells[0]))


def shorten(run: Run) -> None:
    """The time limit comes closer, so that Slurm sends the signal."""
    run.wait_for_step(run.cells[0], EARLY)
    job = run.task(run.cells[0])
    run.cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=2")
    run.wait_for_requeue(job)
    run.cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=10")
    run.start_requeued(job)


def lose_a_node(run: Run) -> None:
    """A node loses its power, which closes no connection, until the cell runs elsewhere."""
    attempt = run.wait_for_step(run.cells[0], EARLY)
    lost = read_lines(attempt.records(1))[0]["host"]
    silent = run.cluster.processes(lost)
    for process in silent:
        process.suspend()
    try:
        run.cluster.run("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=test")
        run.start_requeued(run.task(run.cells[0]))
        run.result(run.cells[0], 2)
    finally:
        for process in silent:
            process.kill()
        psutil.wait_procs(silent, timeout=15)
        run.cluster.start_node(lost)
        resume = ("scontrol", "update", f"NodeName={lost}", "State=RESUME")
        wait_for(lambda: run.cluster.run(*resume, check=False).returncode == 0, f"{lost} to resume")


def run_out_of_time(run: Run) -> None:
    """Its ranks hear no signal, so Slurm kills them at the time limit; a rerun goes on."""
    run.wait_for_step(run.cells[0], EARLY)
    run.cluster.run("scontrol", "update", f"JobId={run.task(run.cells[0])}", "TimeLimit=1")
    run.wait_until_idle()
    assert set(run.states().values()) == {"timed out"}, run.explain()
    run.user.jobs("rerun", run.paths.root, "--failed", *run.user.site({}))


def cancel_while_it_saves(run: Run) -> None:
    """Slurm queues a job again that ends for its requeue, whether or not it was cancelled."""
    for cell in run.cells:
        run.wait_for_step(cell, 1)
    run.cluster.run("scancel", "--signal=USR2", run.job("gat-pp2"))
    wait_for(run.attempt(run.cells[0]).result.exists, "a cell that has saved")
    run.user.jobs("cancel", run.paths.root)


def requeue_when_done(run: Run) -> None:
    run.result(run.cells[0])
    run.cluster.run("scontrol", "requeue", run.task(run.cells[0]))
    run.start_requeued(run.task(run.cells[0]))


def send(number: signal.Signals) -> Callable[[Run], None]:
    """Send a signal to rank 1 of the first cell."""

    def disturb(run: Run) -> None:
        attempt = run.wait_for_step(run.cells[0], 5)
        run.wait_for_step(run.cells[0], 5, rank=1)
        psutil.Process(read_lines(attempt.records(1))[0]["pid"]).send_signal(number)

    return disturb


SLOW = planted("slow", 0, 20)
"""Steps are slow until the requeue, so that it comes in time on any machine."""
SWEEPS = {
    "preempted": Sweep(
        [LONG], site=SLOW | {"partition": "preemptible", "exclusive": True}, disturb=preempt
    ),
    "requeued": Sweep([LONG], site=SLOW, disturb=requeue),
    "limited": Sweep([LONG], site=SLOW | {"signal": 120}, disturb=shorten),
    "lost-node": Sweep([LONG], site=SLOW | {"exclusive": True}, disturb=lose_a_node),
    "out-of-time": Sweep([LONG], site=planted("deaf", "*", EARLY), disturb=run_out_of_time),
    "undisturbed": Sweep([LONG]),
    "cancelled": Sweep(
        [LONG | {"repeats": 2}], site=planted("slow", 0, 0), disturb=cancel_while_it_saves
    ),
    "finished": Sweep([PIPELINE], disturb=requeue_when_done),
    "killed": Sweep([ENDLESS, PIPELINE], site={"max_parallel": 1}, disturb=send(signal.SIGKILL)),
    "frozen": Sweep(
        [ENDLESS], site={"setup": ["export GNNHPC_HANG_S=4"]}, disturb=send(signal.SIGSTOP)
    ),
    "set-up": Sweep([PIPELINE], site={"setup": ["export A=1", "echo no disk; false"]}),
    "hog": Sweep([PIPELINE], site=planted("hog", 1, 1) | {"mem": "1500M"}),
    QUOTED: Sweep(
        [
            TINY_VIG | {"layouts": ["seq", "pp4"], "microbatches": [2], "seq_microbatches": [2]},
            TINY_GAT | {"layouts": ["seq", "pp2", "dp2-pp2"], "microbatches": [2]},
        ],
    ),
    "paired": Sweep(
        [
            PIPELINE
            | {"layouts": ["seq", "pp2"], "seq_microbatches": [1], "train_steps": 12}
            | {"repeats": 3}
        ],
        flags=("--paired",),
    ),
    "failing": Sweep(
        [PIPELINE | {"layouts": ["seq", "pp2"], "seq_microbatches": [1, 2]}],
        flags=("--paired",),
        site=planted("raise", 1, 1),
    ),
    "torchgpipe": Sweep(
        [
            TINY_GAT
            | {"engine": "torchgpipe", "activation_checkpointing": "always"}
            | {"layouts": ["pp4", "dp2-pp2"], "microbatches": [2]}
        ]
    ),
}


_POOL = ThreadPoolExecutor(max_workers=12)
"""Disturbs the sweeps at the same time, each when its cell trains."""


class Sweeps:
    """The submitted sweeps by name."""

    def __init__(self, user: User) -> None:
        self._runs = {
            name: user.submit(sweep.grids, *sweep.flags, name=name, site=dict(sweep.site))
            for name, sweep in SWEEPS.items()
        }
        self._disturbed = {
            name: _POOL.submit(sweep.disturb, self._runs[name])
            for name, sweep in SWEEPS.items()
            if sweep.disturb is not None
        }
        self._ended: set[str] = set()

    def ended(self, name: str) -> Run:
        """The run once Slurm has none of its jobs any more; raises what went wrong before."""
        if name in self._disturbed:
            self._disturbed[name].result()
        run = self._runs[name]
        if name not in self._ended:
            wait_for(lambda: not run.jobs(), lambda: f"the end of {name}\n{run.explain()}", 480)
            self._ended.add(name)
        return run
