"""What is told of processors: time on them, waiting for them, leaving them."""

from __future__ import annotations

import dataclasses
import functools
import resource
import threading
import time
from typing import Any

from gnnhpc.engines import compute_threads, timing
from gnnhpc.engines.compute_threads import ComputeThreads
from gnnhpc.engines.native import NativeEngine
from gnnhpc.engines.timing import StepTimes
from gnnhpc.records.schema import StepRecord
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import around, replace
from tests.defects.plants.timing import change_times
from tests.tools.computing import compute

KIND = "processors"
defect = functools.partial(planted, kind=KIND)


@defect("half of the computing threads' processor time", setting=settings.VIG)
def half_the_processor_time() -> None:
    """The other half is told as of threads that transfer."""
    around(ComputeThreads, "cpu_s", lambda true, threads: true(threads) / 2)


@defect("the process's clock read for the computing thread's", setting=settings.VIG)
def clock_of_the_process() -> None:
    """While another thread works, as one that loads does."""

    def step(true: Any, engine: NativeEngine, *args: Any) -> Any:
        worker = threading.Thread(target=compute, args=(0.01,))
        worker.start()
        try:
            return true(engine, *args)
        finally:
            worker.join()

    around(NativeEngine, "train_step", step)
    around(compute_threads._Thread, "read_cpu", lambda true, thread: time.process_time())


@defect("processor time twice, that of other threads less than none", setting=settings.GAT)
def processor_time_twice() -> None:
    change_times(
        lambda t: dataclasses.replace(
            t, cpu_s=2 * t.cpu_s, other_cpu_s=(t.other_cpu_s or 0.0) - t.cpu_s
        )
    )


@defect("processor time of waiting told as computing's", setting=settings.VIG)
def waiting_as_computing() -> None:
    change_times(
        lambda t: dataclasses.replace(t, cpu_s=t.cpu_s + (t.waiting_cpu_s or 0.0), waiting_cpu_s=0)
    )


@defect("time on a processor told as waiting for one", setting=settings.VIG)
def first_number() -> None:
    """The first number of schedstat, not the second."""

    def delay(_: Any, thread: Any) -> float:
        thread.schedstat.seek(0)
        return int(thread.schedstat.read().split()[0]) / 1e9

    around(compute_threads._Thread, "read_delay", delay)


@defect("waiting for a processor not told", setting=settings.VIG)
def delay_not_told() -> None:
    change_times(lambda t: dataclasses.replace(t, run_delay_s=None))


@defect("a second of waiting for a processor in each span", setting=settings.VIG)
def second_in_each_span() -> None:
    change_times(
        lambda t: dataclasses.replace(
            t,
            spans=[
                dataclasses.replace(s, delay_after_s=(s.delay_after_s or 0.0) + 1.0)
                for s in t.spans
            ],
        )
    )


@defect("time on a processor told as a span's waiting for one", setting=settings.VIG)
def first_number_of_spans() -> None:
    replace(timing, "delay_in", lambda schedstat: int((schedstat or b"0").split()[0]) / 1e9)


@defect("all switches told as involuntary", setting=settings.VIG)
def all_switches() -> None:
    """Waiting for another rank is a voluntary one."""
    at_start: list[int] = []

    def start(true: Any, timer: timing.StepTimer) -> None:
        at_start[:] = [_switches()]
        true(timer)

    def stop(true: Any, timer: timing.StepTimer) -> StepTimes:
        times: StepTimes = true(timer)
        return dataclasses.replace(times, involuntary_switches=_switches() - at_start[0])

    around(timing.StepTimer, "start", start)
    around(timing.StepTimer, "stop", stop)


def _switches() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_nvcsw + used.ru_nivcsw


@defect("a tenth of each step told as taken by the host", setting=settings.VIG)
def stolen() -> None:
    change_times(lambda t: dataclasses.replace(t, steal_s=0.1 * t.wall_s + 0.01))


@defect("half of the processor time in the record", setting=settings.VIG)
def halved_in_the_record() -> None:
    def recorded(true: Any, *args: Any, **values: Any) -> None:
        true(*args, **values | {"cpu_s": values["cpu_s"] / 2})

    around(StepRecord, "__init__", recorded)
