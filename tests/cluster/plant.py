"""Python with a fault in it: stands in a site file where the interpreter does.

$GNNHPC_PLANT says which: KIND:RANK:STEP, RANK * for all of them, KIND one of
  deaf    the rank ignores signals from that step on, and takes half a second longer for each
  raise   the rank raises ValueError after that training step
  hog     the rank takes 2 GiB at that step, for three seconds
  slow    every step from that one on takes half a second longer, until a requeue
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time

from gnnhpc.distributed.signals import HANDLED

MIB = 2**20


def fail(kind: str, late: int) -> None:
    """What happens at the `late`-th step after the one asked for."""
    if kind == "deaf" and late == 0:
        for number in HANDLED:
            signal.signal(number, signal.SIG_IGN)
    if kind == "deaf" or (kind == "slow" and "SLURM_RESTART_COUNT" not in os.environ):
        time.sleep(0.5)
    if kind == "raise" and late == 0:
        raise ValueError("planted in a test")
    if kind == "hog" and late == 0:
        hoard = bytearray(2048 * MIB)
        hoard[::4096] = b"x" * (len(hoard) // 4096)
        time.sleep(3)


def plant(kind: str, step: int) -> None:
    """Let the training loop run into the fault after it has recorded the step."""
    from gnnhpc.training.listeners import RecordsSteps, StepTaken

    true = RecordsSteps.step_taken

    def step_taken(self: RecordsSteps, taken: StepTaken) -> None:
        true(self, taken)
        if taken.phase == "train" and taken.step >= step:
            fail(kind, taken.step - step)

    RecordsSteps.step_taken = step_taken  # type: ignore[method-assign]


def main() -> None:
    kind, rank, step = os.environ["GNNHPC_PLANT"].split(":")
    if rank in ("*", os.environ["SLURM_PROCID"]):
        plant(kind, int(step))
    place = sys.argv.index("-m")
    module = sys.argv[place + 1]
    sys.argv = sys.argv[place + 1 :]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
