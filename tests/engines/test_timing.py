"""Spans and sums of a step, on a clock that the test moves; and what is read from the system."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from gnnhpc.engines import system_counters
from gnnhpc.engines.clock import Clock
from gnnhpc.engines.compute_threads import ComputeThreads
from gnnhpc.engines.system_counters import delay_in, peak_rss_mib, read_schedstat, steal_s
from gnnhpc.engines.timing import Span, StepTimer
from tests.tools.computing import compute


class HandMoved(Clock):
    """A clock that stands still until it is told what time it is."""

    def __init__(self) -> None:
        self.at = 0.0
        super().__init__(torch.device("cpu"))

    def restart(self) -> None:
        self._base_s = self.at

    def mark(self) -> float:
        return self.at

    def now_s(self) -> float:
        return self.at - self._base_s


@pytest.fixture
def clock() -> HandMoved:
    return HandMoved()


@pytest.fixture
def timer(clock: HandMoved) -> StepTimer:
    clock.at = 100.0
    timer = StepTimer(clock)
    timer.prepare()
    timer.start()
    return timer


def test_spans_count_from_the_first_barrier(clock: HandMoved, timer: StepTimer) -> None:
    with timer.span("forward", 0):
        clock.at = 102.0
    with timer.span("wait", 1):
        clock.at = 103.0
    with timer.span("optimizer"):
        clock.at = 103.5
    clock.at = 104.0
    times = timer.stop()
    assert times.wall_s == 4.0
    assert times.spans == [
        Span("forward", 0, 0.0, 2.0),
        Span("wait", 1, 2.0, 3.0),
        Span("optimizer", None, 3.0, 3.5),
    ]


def test_turns_leave_no_time_between_them(timer: StepTimer, clock: HandMoved) -> None:
    """However long a busy machine takes from one to the other: layers' marks go on through it."""

    def tick() -> float:
        clock.at += 1.0
        return clock.at

    clock.mark = tick  # type: ignore[method-assign]
    opened = timer.begin("backward", 1)
    opened = timer.turn(opened, 0)
    timer.end(opened)
    first, second = timer.stop().spans
    assert (first.microbatch, second.microbatch) == (1, 0)
    assert first.start_s < first.end_s == second.start_s < second.end_s


def test_busy_is_all_but_waiting(clock: HandMoved, timer: StepTimer) -> None:
    for microbatch in range(2):
        with timer.span("forward", microbatch):
            clock.at += 2.0
        with timer.span("wait", microbatch):
            clock.at += 5.0
    with timer.span("backward", 0):
        clock.at += 1.0
    times = timer.stop()
    assert times.total("forward") == 4.0
    assert times.total("wait") == 10.0
    assert times.busy_s == 5.0


def test_a_step_starts_empty(clock: HandMoved, timer: StepTimer) -> None:
    with timer.span("forward", 0):
        timer.layer_forward("a", clock.mark(), clock.mark())
        clock.at += 1.0
    timer.stop()
    timer.prepare()
    timer.start()
    clock.at += 3.0
    times = timer.stop()
    assert (times.wall_s, times.spans, times.layers) == (3.0, [], {})


def test_a_span_that_an_error_cut_is_left_out(timer: StepTimer) -> None:
    with pytest.raises(RuntimeError), timer.span("forward", 0):
        raise RuntimeError
    assert timer.stop().spans == []


def test_all_reduce_inside_the_last_backward_is_taken_out(
    clock: HandMoved, timer: StepTimer
) -> None:
    with timer.span("backward", 0):
        timer.layer_backward("a", clock.mark())
        clock.at = 102.0
        timer.arrive()
        clock.at = 103.0
        timer.layer_backward(None, clock.mark())
    times = timer.stop()
    assert times.spans == [Span("backward", 0, 0.0, 2.0), Span("allreduce", None, 2.0, 3.0)]
    assert (times.arrival_s, times.layers) == (2.0, {"a": [0.0, 2.0]})
    assert (times.busy_s, times.compute_s) == (3.0, 2.0)


def test_a_layer_without_parameters_does_not_last_as_long_as_the_all_reduce(
    clock: HandMoved, timer: StepTimer
) -> None:
    """It is the first: the gradients are ready before its backward begins."""
    with timer.span("backward", 0):
        timer.layer_backward("a", clock.mark())
        clock.at = 102.0
        timer.arrive()
        timer.layer_backward("dropout", clock.mark())
        clock.at = 105.0
        timer.layer_backward(None, clock.mark())
    assert timer.stop().layers == {"a": [0.0, 2.0], "dropout": [0.0, 0.0]}


def test_waiting_for_the_last_replica_is_no_all_reduce(clock: HandMoved, timer: StepTimer) -> None:
    with timer.span("allreduce"):
        clock.at = 101.0
        timer.arrive()
        clock.at = 106.0
    clock.at = 107.0
    times = timer.stop()
    times.wait_for_replicas(4.0)
    assert times.spans == [
        Span("allreduce", None, 0.0, 1.0),
        Span("wait", None, 1.0, 4.0),
        Span("allreduce", None, 4.0, 6.0),
    ]
    assert (times.busy_s, times.compute_s) == (3.0, 0.0)


@pytest.mark.parametrize(
    ("last", "spans"),
    [(0.0, [Span("allreduce", None, 0.0, 2.0)]), (9.0, [Span("wait", None, 0.0, 2.0)])],
)
def test_the_last_replica_itself_does_not_wait(
    clock: HandMoved, timer: StepTimer, last: float, spans: list[Span]
) -> None:
    """And none waits longer than until its own end."""
    with timer.span("allreduce"):
        timer.arrive()
        clock.at = 102.0
    times = timer.stop()
    times.wait_for_replicas(last)
    assert times.spans == spans


def test_a_backward_without_all_reduce_stays_whole(clock: HandMoved, timer: StepTimer) -> None:
    with timer.span("backward", 0):
        clock.at = 103.0
    timer.arrive()
    times = timer.stop()
    assert times.spans == [Span("backward", 0, 0.0, 3.0)]
    assert times.arrival_s is None


def test_seconds_of_a_layer_are_summed_over_micro_batches(
    clock: HandMoved, timer: StepTimer
) -> None:
    """Backward marks come last layer first: each layer's ends where the next one's begins."""
    for start in (100.0, 110.0):
        timer.layer_forward("a", start, start + 1.0)
        timer.layer_forward("b", start + 1.0, start + 3.0)
        for name, at in (("b", 4.0), ("a", 8.0), (None, 9.0)):
            timer.layer_backward(name, start + at)
    assert timer.stop().layers == {"a": [2.0, 2.0], "b": [4.0, 8.0]}


def test_what_a_watchdog_sees(timer: StepTimer) -> None:
    before = timer.work
    with timer.span("backward", 3):
        assert (timer.doing, timer.work) == ("backward of micro-batch 3", before + 1)
    assert (timer.doing, timer.work) == ("waiting for the other ranks", before + 2)
    with timer.span("optimizer"):
        assert timer.doing == "optimizer"
        with timer.storage("reading data"):
            assert timer.doing == "reading data"
        assert timer.doing == "optimizer"


def test_on_a_real_clock_spans_lie_inside_the_step_one_after_another() -> None:
    timer = StepTimer(Clock(torch.device("cpu")))
    timer.prepare()
    timer.start()
    values = torch.rand(300, 300)
    for microbatch in range(5):
        with timer.span("forward", microbatch):
            values = values @ values.T / 300
    times = timer.stop()
    ends = [edge for span in times.spans for edge in (span.start_s, span.end_s)]
    assert ends == sorted(ends)
    assert ends[0] >= 0
    assert ends[-1] <= times.wall_s
    assert times.cpu_s > 0
    assert times.cpu_s + (times.waiting_cpu_s or 0.0) <= times.wall_s * (
        torch.get_num_threads() + 1
    )
    assert times.involuntary_switches >= 0


class _BusyReadings(ComputeThreads):
    """Processor time of which one reading, `busy` of them later, is interrupted by work before and
    after it."""

    busy = -1

    def cpu_s(self) -> float:
        self.busy -= 1
        if self.busy == 0:
            compute(4e-3)
        read = super().cpu_s()
        if self.busy == 0:
            compute(4e-3)
        return read


@pytest.mark.parametrize("busy", range(1, 12))
def test_a_span_uses_no_more_processor_time_than_it_is_long(busy: int) -> None:
    """Whichever reading of the step is interrupted."""
    threads = _BusyReadings()
    timer = StepTimer(Clock(torch.device("cpu")), threads=threads)
    timer.prepare()
    threads.busy = busy
    timer.start()
    timer.end(timer.turn(timer.begin("forward", 0), 1))
    with timer.span("backward", 0):
        timer.arrive()
    with timer.span("optimizer"):
        compute(1e-3)
    spans = timer.stop().spans
    names = ["forward", "forward", "backward", "allreduce", "optimizer"]
    assert [span.name for span in spans] == names
    for span in spans:
        # What was read before an all-reduce's mark counts to it, and is no computing.
        if span.name != "allreduce":
            # The kernel's two clocks need not tick alike.
            assert 0 <= span.cpu_s <= 1.01 * span.seconds + 1e-3, span
    assert threads.busy <= 0


def test_steal_is_that_of_the_cpus_this_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = tmp_path / "stat"
    stat.write_text(
        "cpu  1 1 1 1 1 1 1 999 0 0\n"
        "cpu0 1 1 1 1 1 1 1 100 0 0\n"
        "cpu1 1 1 1 1 1 1 1 300 0 0\n"
        "cpu2 1 1 1 1 1 1 1 599 0 0\n"
        "intr 5 5 5\n"
    )
    monkeypatch.setattr(system_counters, "STAT", stat)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert steal_s() == pytest.approx(200 / os.sysconf("SC_CLK_TCK"))
    for silent in ("cpu0 1 1\n", "", "cpu0 a b c d e f g h\n"):
        stat.write_text(silent)
        assert steal_s() is None
    stat.unlink()
    assert steal_s() is None


BUSY = "import os; os.sched_setaffinity(0, {{{}}})\nwhile True: pass"


@pytest.mark.parametrize(
    ("schedstat", "expected"),
    [(b"500 2000000 7\n", 0.002), (b"", None), (b"500", None), (b"500 x 7", None)],
)
def test_what_the_system_says_of_waiting(schedstat: bytes, expected: float | None) -> None:
    assert delay_in(schedstat) == expected


def run_delay_s() -> float | None:
    return delay_in(read_schedstat())


@pytest.mark.skipif(run_delay_s() is None, reason="this system does not say")
def test_waits_for_a_processor_are_known_at_both_ends_of_a_backward(
    clock: HandMoved, timer: StepTimer
) -> None:
    """Also of one that the all-reduce ends."""
    with timer.span("backward", 0):
        pass
    with timer.span("backward", 1):
        clock.at = 101.0
        timer.arrive()
        clock.at = 102.0
    whole, cut, _ = timer.stop().spans
    for span in (whole, cut):
        assert None not in (span.delay_before_s, span.delay_after_s)


@pytest.mark.skipif(run_delay_s() is None, reason="this system does not say")
def test_a_wait_for_a_processor_is_counted() -> None:
    """Two that compute on one processor wait for each other."""
    cpu = min(os.sched_getaffinity(0))
    waited: list[float] = []

    def compute() -> None:
        os.sched_setaffinity(0, {cpu})
        before, deadline = run_delay_s() or 0.0, time.monotonic() + 30.0
        while (run_delay_s() or 0.0) - before < 0.01 and time.monotonic() < deadline:
            pass
        waited.append((run_delay_s() or 0.0) - before)

    busy = subprocess.Popen([sys.executable, "-c", BUSY.format(cpu)])
    try:
        # A thread of its own: where it may run is its own, too.
        thread = threading.Thread(target=compute)
        thread.start()
        thread.join()
    finally:
        busy.kill()
        busy.wait()
    assert waited[0] >= 0.01


PEAK = "from gnnhpc.engines.system_counters import peak_rss_mib; print(peak_rss_mib())"


def test_peak_memory_is_this_programs_alone() -> None:
    """A rank started by a large process has not held what that one holds."""
    held = torch.ones(2**29, dtype=torch.uint8)
    assert peak_rss_mib() > 512
    started = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, check=True)
    del held
    assert 20 < float(started.stdout) < 500


def test_peak_memory_where_proc_does_not_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_counters, "STATUS", tmp_path / "none")
    assert peak_rss_mib() > 20
