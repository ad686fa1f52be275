"""The sweeps of a session: all are submitted first, some are disturbed, and tests read the rest."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from gnnhpc.records.schema import read_lines
from tests.cluster.processes import Process
from tests.cluster.runs import TINY_GAT, TINY_VIG, Run, User, planted, wait_for

STEPS = 300
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
    job = run.task(run.cells[0])
    run.wait_for_requeue(job)
    # In its own partition it would wait for all other sweeps.
    run.cluster.run("scontrol", "update", f"JobId={job}", "Partition=main")
    run.start_requeued(job)


def shorten(run: Run) -> None:
    """The time limit comes closer, so that Slurm sends the signal."""
    run.wait_for_step(run.cells[0], EARLY)
    job = run.task(run.cells[0])
    run.cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=2")
    run.wait_for_requeue(job)
    run.cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=10")
    run.start_requeued(job)


def send(number: signal.Signals) -> Callable[[Run], None]:
    """Send a signal to rank 1 of the first cell."""

    def disturb(run: Run) -> None:
        attempt = run.wait_for_step(run.cells[0], 5)
        run.wait_for_step(run.cells[0], 5, rank=1)
        process = Process.of(read_lines(attempt.records(1))[0]["pid"])
        assert process is not None
        process.send(number)

    return disturb


SLOW = planted("slow", 0, 20)
"""Steps are slow until the requeue, so that it comes in time on any machine."""
SWEEPS = {
    "preempted": Sweep(
        [LONG], site=SLOW | {"partition": "preemptible", "exclusive": True}, disturb=preempt
    ),
    "requeued": Sweep([LONG], site=SLOW, disturb=requeue),
    "limited": Sweep([LONG], site=SLOW | {"signal": 120}, disturb=shorten),
    "undisturbed": Sweep([LONG]),
    "killed": Sweep([ENDLESS, PIPELINE], site={"max_parallel": 1}, disturb=send(signal.SIGKILL)),
    "frozen": Sweep(
        [ENDLESS], site={"setup": ["export GNNHPC_HANG_S=4"]}, disturb=send(signal.SIGSTOP)
    ),
    "raises": Sweep([ENDLESS], site=planted("raise", 1, 4)),
    "hog": Sweep([ENDLESS], site=planted("hog", 1, 2) | {"mem": "1500M"}),
    "unresolved": Sweep([PIPELINE], site={"partition": "unresolved"}),
    "set-up": Sweep([TINY_GAT | {"layouts": ["seq"]}], site={"modules": ["gcc/99"]}),
    QUOTED: Sweep(
        [
            TINY_VIG | {"layouts": ["seq", "pp4"], "microbatches": [2], "seq_microbatches": [2]},
            TINY_GAT | {"layouts": ["seq", "pp2", "dp2-pp2"], "microbatches": [2]},
        ],
        flags=("--report",),
    ),
    "paired": Sweep(
        [
            TINY_GAT
            | {"layouts": ["seq", "pp2", "dp2-pp2"], "microbatches": [2]}
            | {"seq_microbatches": [1], "train_steps": 12, "repeats": 2}
        ],
        flags=("--paired",),
    ),
    "failing": Sweep(
        [PIPELINE | {"layouts": ["seq", "pp2"], "seq_microbatches": [2]}],
        flags=("--paired",),
        site={"setup": ['test "$array" != gat-seq']},
    ),
    "torchgpipe": Sweep(
        [
            TINY_GAT
            | {"engine": "torchgpipe", "activation_checkpointing": "always"}
            | {"layouts": ["pp4", "dp2-pp2"], "microbatches": [2]}
        ]
    ),
    "few": Sweep(
        [PIPELINE | {"layouts": ["seq", "pp2"], "seq_microbatches": [2]}],
        site={"max_parallel": 1},
    ),
}


_POOL = ThreadPoolExecutor(max_workers=8)
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
