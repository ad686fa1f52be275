"""What is told of processors is held against readings around the timer's own."""

from __future__ import annotations

import dataclasses
import io
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnhpc.check.watches import system_counts
from gnnhpc.check.watches.count_faults import CountFaults
from gnnhpc.check.watches.faults import Faults
from gnnhpc.check.watches.system_counts import CountedStep, Counts, SystemCounts, stolen_s
from gnnhpc.engines import system_counters
from gnnhpc.engines.clock import Clock
from gnnhpc.engines.timing import Span, StepTimer, StepTimes
from gnnhpc.records.schema import StepRecord
from tests.tools.computing import compute

STEPS = 20


def record_of(times: StepTimes, **changes: Any) -> StepRecord:
    fields: dict[str, Any] = {
        **dict.fromkeys(("step", "epoch", "samples"), 0),
        **dict.fromkeys(("start_s", "wait_s", "data_s", "allreduce_s", "optimizer_s"), 0.0),
        "phase": "train",
        "warmup": False,
        "forward_s": 0.0,
        "backward_s": 0.0,
        **{
            name: getattr(times, name)
            for name in (
                *("wall_s", "cpu_s", "involuntary_switches", "steal_s", "waiting_cpu_s"),
                *("other_cpu_s", "run_delay_s", "threads_used"),
            )
        },
    }
    return StepRecord(**fields | changes)


def work(timer: StepTimer, drawn: random.Random) -> None:
    """Spans that compute, sleep and wait, beside a thread that computes too."""
    beside = threading.Thread(target=compute, args=(drawn.uniform(0.0, 2e-3),))
    beside.start()
    for m in range(3):
        with timer.span("forward", m):
            compute(drawn.uniform(0.0, 2e-3))
        with timer.span("wait", m):
            time.sleep(drawn.uniform(0.0, 1e-3))
        with timer.span("backward", m):
            compute(drawn.uniform(0.0, 2e-3))
            time.sleep(drawn.uniform(0.0, 1e-3))
    beside.join()


def measured(steps: int = STEPS) -> list[tuple[StepTimes, CountedStep]]:
    """Steps of a real timer, each with what was read around it.

    In a thread of another name than this process's: its OpenMP workers, which other tests have
    left, are none of it.
    """

    def run() -> list[tuple[StepTimes, CountedStep]]:
        own = f"/proc/self/task/{threading.get_native_id()}/comm"
        Path(own).write_text("engine", encoding="ascii")
        return _measured(steps)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def _measured(steps: int) -> list[tuple[StepTimes, CountedStep]]:
    timer, counts, drawn = StepTimer(Clock(torch.device("cpu"))), SystemCounts(), random.Random(3)
    assert counts.seen() is None
    found = []
    for _ in range(steps):
        counts.before_step()
        timer.prepare()
        timer.start()
        counts.step_began()
        work(timer, drawn)
        counts.step_ended()
        times = timer.stop()
        counts.step_stopped()
        seen = counts.seen()
        assert seen is not None
        found.append((times, seen))
    return found


def faults_of(
    steps: list[tuple[StepTimes, CountedStep]],
    change: Callable[[StepTimes], StepTimes] = lambda times: times,
) -> list[str]:
    faults = CountFaults(Faults())
    for number, (times, seen) in enumerate(steps):
        wrong = change(times)
        faults.compare(record_of(wrong), wrong, seen, f"train step {number}")
    return [*faults.faults.told(), *faults.told()]


@pytest.mark.usefixtures("one_busy_processor")
def test_what_a_timer_counts_is_within_what_is_read_around_it() -> None:
    """Where the thread waits for its processor, is made to leave it, and others compute too."""
    steps = measured()
    delays = [seen.least.delay_s for _, seen in steps]
    assert any(delays), "the processor was never somebody else's"
    assert faults_of(steps) == []


WRONG: dict[str, Callable[[StepTimes], StepTimes]] = {
    "less processor time of the computing threads than the engine's": lambda t: dataclasses.replace(
        t, cpu_s=t.cpu_s / 2, other_cpu_s=(t.other_cpu_s or 0.0) + t.cpu_s / 2
    ),
    "more processor time of the computing thread than it used": lambda t: dataclasses.replace(
        t, waiting_cpu_s=(t.waiting_cpu_s or 0.0) + 0.1, other_cpu_s=(t.other_cpu_s or 0.0) - 0.1
    ),
    "processor time of other threads that is less than none": lambda t: dataclasses.replace(
        t, other_cpu_s=-0.01
    ),
    "more processor time than the process used": lambda t: dataclasses.replace(
        t, other_cpu_s=(t.other_cpu_s or 0.0) + 1.0
    ),
    "less processor time than the process used": lambda t: dataclasses.replace(
        t, other_cpu_s=(t.other_cpu_s or 0.0) - 1.0
    ),
    "cpu_s that is not the sum of its spans": lambda t: dataclasses.replace(
        t, cpu_s=t.cpu_s + 0.01, waiting_cpu_s=(t.waiting_cpu_s or 0.0) - 0.01
    ),
    "a span's processor time that its thread cannot have used": lambda t: of_spans(
        t, lambda span: dataclasses.replace(span, cpu_s=span.seconds + 0.01)
    ),
    "no run_delay_s where the system says it": lambda t: dataclasses.replace(t, run_delay_s=None),
    "another run_delay_s than the computing thread had": lambda t: dataclasses.replace(
        t, run_delay_s=(t.run_delay_s or 0.0) + 1.0
    ),
    "a span's waiting for a processor that its thread had not": lambda t: of_spans(
        t, lambda span: dataclasses.replace(span, delay_after_s=(span.delay_before_s or 0.0) - 1.0)
    ),
    "other involuntary switches than the process had": lambda t: dataclasses.replace(
        t, involuntary_switches=t.involuntary_switches + 10_000
    ),
    "another steal_s than the host took": lambda t: dataclasses.replace(
        t, steal_s=(t.steal_s or 0.0) + 1.0
    ),
    "no steal_s where the system says it": lambda t: dataclasses.replace(t, steal_s=None),
}


def of_spans(times: StepTimes, change: Callable[[Span], Span]) -> StepTimes:
    return dataclasses.replace(times, spans=[change(span) for span in times.spans])


@pytest.fixture(scope="module")
def steps() -> list[tuple[StepTimes, CountedStep]]:
    return measured(3)


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_count_is_named(words: str, steps: list[tuple[StepTimes, CountedStep]]) -> None:
    assert faults_of(steps) == []
    told = faults_of(steps, WRONG[words])
    assert any(fault.startswith(words) for fault in told), told


def test_the_record_holds_what_was_measured(steps: list[tuple[StepTimes, CountedStep]]) -> None:
    (times, seen), *_ = steps
    faults = CountFaults(Faults())
    record = record_of(times, threads_used=2)
    faults.compare(record, times, seen, "train step 0")
    (told,) = faults.faults.told()
    assert told.startswith("threads_used recorded otherwise than measured in 1 steps")


def test_of_threads_that_come_and_go_only_sums_are_known() -> None:
    """The engine's thread waits for them: its own processor time and delays say little."""
    counted = Counts(0.5, 2.0, 0, 0.4)
    seen = CountedStep(counted, counted, (1.0, 1.4), None)
    span = Span("forward", 0, 0.0, 1.0, 2.0, 7.0, 0, 9.0)
    right = StepTimes(1.0, 2.0, [span], {}, 0, None, 0.0, 0.0, 3.0, 1, {1: frozenset({0})})
    right.come_and_go = True
    assert faults_of([(right, seen)]) == []
    wrong = dataclasses.replace(right, other_cpu_s=1.0, run_delay_s=-1.0)
    told = faults_of([(wrong, seen)])
    assert [fault.split(" in 1 steps")[0] for fault in told] == [
        "more processor time than the process used",
        "an impossible run_delay_s",
    ]


def test_of_several_threads_the_engine_s_is_one() -> None:
    """A process counts those that run as late as at a tick: others may seem to give time back."""
    counted = Counts(1.0, 4.0, 0, 0.2)
    seen = CountedStep(counted, counted, (1.0, 1.2), None)
    cpus = dict.fromkeys((1, 2, 3), frozenset({0, 1, 2}))
    right = StepTimes(1.5, 4.02, [], {}, 0, None, 0.0, -0.02, 0.4, 3, cpus)
    right.spans = [Span("forward", 0, 0.0, 1.5, 4.02)]
    assert faults_of([(right, seen)]) == []
    wrong = dataclasses.replace(right, cpu_s=4.04, other_cpu_s=-0.04)
    told = faults_of([(wrong, seen)])
    assert [fault.split(" in 1 steps")[0] for fault in told] == [
        "cpu_s that is not the sum of its spans",
        "processor time of other threads that is less than none",
    ]


def test_time_that_the_host_took_is_told_in_the_long_run() -> None:
    """A step may miss a clock tick that fell beside its readings, a run not what the host took."""
    nothing = Counts(0.0, 0.0, 0, None)
    one_tick = CountedStep(nothing, nothing, None, 0.01)
    times = StepTimes(0.1, 0.0, [], {}, 0, 0.0, 0.0, 0.0, None, 1)
    assert faults_of([(times, one_tick)]) == []
    assert faults_of([(times, one_tick)] * 10) == [
        "steal_s holds 0.000 s of the 0.100 s that the host took"
    ]
    told = dataclasses.replace(times, steal_s=0.01)
    assert faults_of([(told, one_tick)] * 10) == []
    # On a machine whose host is busy, as one was seen to.
    assert faults_of([*[(times, one_tick)] * 3, (told, one_tick)]) == []


def test_what_is_computed_between_two_readings_accuses_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where the machine gives this thread's processor time to an interrupt."""
    process_time = time.process_time

    def read() -> float:
        found = process_time()
        compute(drawn.uniform(0.0, 1e-3))
        return found

    drawn = random.Random(5)
    monkeypatch.setattr(time, "process_time", read)
    # No other thread computes.
    monkeypatch.setattr(sys.modules[__name__], "work", lambda *_: time.sleep(1e-3))
    assert faults_of(measured()) == []


class SlowStat:
    """/proc/stat of many CPUs, of which the host takes 15 %."""

    def open(self, **_: Any) -> io.StringIO:
        time.sleep(2e-3)
        stolen = int(0.15 * time.monotonic() * os.sysconf("SC_CLK_TCK"))
        lines = [f"cpu{cpu} 1 2 3 4 5 6 7 {stolen} 9 10" for cpu in os.sched_getaffinity(0)]
        return io.StringIO("\n".join(lines))

    def read_bytes(self) -> bytes:
        return self.open().read().encode()


@pytest.mark.slow
def test_what_the_host_takes_while_that_is_read_accuses_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of short steps it may be half of what is seen around them."""
    for module in (system_counts, system_counters):
        monkeypatch.setattr(module, "STAT", SlowStat())
    monkeypatch.setattr(sys.modules[__name__], "work", lambda *_: time.sleep(2e-3))
    steps = measured(400)
    assert sum(seen.steal_s or 0.0 for _, seen in steps) > 0.3
    assert faults_of(steps) == []
    (told,) = faults_of(steps, lambda times: dataclasses.replace(times, steal_s=0.0))
    assert told.startswith("steal_s holds 0.000 s of the ")


def test_what_the_system_does_not_say_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_counts, "TASKS", tmp_path)
    monkeypatch.setattr(system_counts, "STAT", tmp_path / "stat")
    ((times, seen),) = measured(1)
    assert seen.least.delay_s is None
    assert seen.delays is None
    assert seen.steal_s is None
    assert faults_of([(times, seen)]) == []


def test_stolen_time_is_of_the_processors_that_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = tmp_path / "stat"
    monkeypatch.setattr(system_counts, "STAT", stat)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 11})
    lines = ["cpu  1 2 3 4 5 6 7 999 9 10", "cpu0 1 2 3 4 5 6 7 30 9 10"]
    stat.write_text("\n".join([*lines, "cpu1 1 2 3 4 5 6 7 500 9 10", "intr 5 6"]))
    assert stolen_s() is None, "one of them is not listed"
    stat.write_text("\n".join([*lines, "cpu11 1 2 3 4 5 6 7 50 9 10", "intr 5 6"]))
    assert stolen_s() == pytest.approx(40 / os.sysconf("SC_CLK_TCK"))
    stat.write_text("cpu0 1 2 3\ncpu11 1 2 3\n")
    assert stolen_s() is None
