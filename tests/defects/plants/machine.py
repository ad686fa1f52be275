"""Threads, code and hosts of the ranks, and steps that are timed wrongly."""

from __future__ import annotations

import functools
import itertools
import time
from typing import Any

import torch

from gnnhpc.core import provenance
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.native import NativeEngine
from gnnhpc.engines.step_timer import StepTimer, StepTimes
from gnnhpc.kernels import compile as compiling
from gnnhpc.training.loop import TrainingLoop
from tests.defects import cells
from tests.defects.defect import around, planted, rank, replace

of_machine = functools.partial(
    planted, kind="threads, code, hosts", cell=cells.VIG, mechanism="record-audit"
)


@of_machine(words="had 8 threads")
def a_rank_that_takes_all_cores() -> None:
    around(torch, "set_num_threads", lambda original, count: original(8 if rank() else count))


@of_machine(words="has implementation")
def one_rank_without_a_compiler() -> None:
    if rank() == 1:
        replace(compiling, "load_kernel", lambda name: None)


@of_machine(mechanism="failure", words="runs other code")
def a_rank_that_runs_other_code() -> None:
    around(provenance, "code_digest", lambda original: original() if rank() == 0 else "0" * 16)


@of_machine(words="has cpu_model Another CPU", at=(provenance, "cpu_model"))
def a_rank_on_a_host_of_another_cpu_model(original: Any) -> str:
    return "Another CPU" if rank() else str(original())


of_timing = functools.partial(planted, kind="timing", mechanism="record-audit")
LEFT_OUT_S = 0.5
"""Seconds that are left out of a step of milliseconds: a busy machine hides what is short."""


@of_timing(cell=cells.VIG, words="those of most ranks")
def a_step_timed_without_the_other_ranks() -> None:
    """The first stage has more to do at the end of a step than the second one."""

    def step(original: Any, loop: TrainingLoop, *args: Any) -> Any:
        barriers, mesh = itertools.count(), loop.mesh

        def first_alone() -> None:
            if next(barriers) == 0:
                Mesh.barrier(mesh)

        object.__setattr__(mesh, "barrier", first_alone)
        try:
            return original(loop, *args)
        finally:
            object.__delattr__(mesh, "barrier")

    def train(original: Any, engine: NativeEngine, batch: Any) -> Any:
        output = original(engine, batch)
        time.sleep(0.0 if rank() else LEFT_OUT_S)
        return output

    around(TrainingLoop, "_take_step", step)
    around(NativeEngine, "train_step", train)


@of_timing(cell=cells.VIG_SEQ, words="s between two steps of", at=(StepTimer, "stop"))
def a_step_timed_without_the_device(original: Any, timer: StepTimer) -> StepTimes:
    """Imitated: most of a step's work is done after the clock has stopped."""
    times: StepTimes = original(timer)
    time.sleep(LEFT_OUT_S)
    return times


@of_timing(cell=cells.VIG_SEQ, words="s between two steps of", at=(StepTimer, "start"))
def a_clock_that_starts_late(original: Any, timer: StepTimer, **options: Any) -> float:
    time.sleep(LEFT_OUT_S)
    started: float = original(timer, **options)
    return started
