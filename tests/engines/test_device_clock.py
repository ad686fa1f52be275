"""Device marks: made once, summed only when reached, and what a watchdog learns from them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from gnnhpc.engines.clock import Clock
from gnnhpc.engines.device_activity import activity_of
from gnnhpc.engines.timing import Span, StepTimer
from tests.tools.device import Stream, fake_device


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Stream, StepTimer]]:
    with fake_device(monkeypatch) as (stream, clock):
        yield stream, begun(clock)


def begun(clock: Clock) -> StepTimer:
    timer = StepTimer(clock)
    timer.prepare()
    timer.start()
    return timer


def take_step(stream: Stream, timer: StepTimer) -> None:
    timer.prepare()
    timer.start()
    for microbatch in range(3):
        with timer.span("forward", microbatch):
            stream.give(2.0)
            timer.layer_forward("a", timer.clock.mark(), timer.clock.mark())
    timer.stop()


def test_a_steps_events_are_used_again_in_the_next(device: tuple[Stream, StepTimer]) -> None:
    stream, timer = device
    take_step(stream, timer)
    made = len(stream.events)
    for _ in range(5):
        take_step(stream, timer)
    assert len(stream.events) == made
    assert timer.clock.marked() >= 5 * (made - 2), "they were recorded again"


def test_ddps_all_reduce_is_taken_out_of_the_last_backward(
    device: tuple[Stream, StepTimer],
) -> None:
    stream, timer = device
    stream.give(1.0)
    with timer.span("backward", 0):
        stream.give(3.0)
        timer.arrive()
        stream.give(4.0)
    times = timer.stop()
    assert times.spans == [
        Span("backward", 0, pytest.approx(1e-3), pytest.approx(4e-3)),
        Span("allreduce", None, pytest.approx(4e-3), pytest.approx(8e-3)),
    ]


def test_marks_have_no_time_until_the_device_is_done(device: tuple[Stream, StepTimer]) -> None:
    stream, timer = device
    with timer.span("forward", 0):
        stream.give(5.0)
    with pytest.raises(RuntimeError, match="not ready"):
        timer.clock.seconds(timer.clock.mark())
    assert timer.stop().total("forward") == pytest.approx(5e-3)


def test_waiting_for_the_device_the_host_sleeps_at_an_event(
    device: tuple[Stream, StepTimer],
) -> None:
    stream, timer = device
    stream.give(9.0)
    timer.clock.synchronize()
    assert stream.done_ms == 9.0
    assert [event.at_ms for event in stream.events if not event.timed] == [9.0]


def test_a_watchdog_sees_what_the_device_does_while_the_host_waits(
    device: tuple[Stream, StepTimer],
) -> None:
    stream, timer = device
    activity = activity_of(timer)
    with timer.span("forward", 0):
        stream.give(2.0)
    with timer.span("wait", 1):
        stream.give(2.0)
    with timer.span("backward", 1):
        stream.give(2.0)
        timer.arrive()
        stream.give(2.0)
    assert activity.spins
    seen = []
    for _ in range(5):
        seen.append((activity.work, activity.doing))
        stream.work(2.0)
    assert [doing for _, doing in seen] == [
        "forward of micro-batch 0",
        "wait of micro-batch 1",
        "backward of micro-batch 1",
        "allreduce",
        "waiting for the other ranks",
    ]
    counts = [work for work, _ in seen]
    assert counts == sorted(set(counts)), "each thing the device reaches is work"
    assert activity.work == counts[-1], "a device that stands still does no work"
    timer.stop()
    assert not activity.spins, "between steps the host computes for itself"


def test_on_a_cpu_the_timer_itself_is_watched() -> None:
    timer = StepTimer(Clock(torch.device("cpu")))
    assert activity_of(timer) is timer
    assert not activity_of(timer).spins
