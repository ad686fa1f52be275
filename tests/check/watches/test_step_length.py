"""A step's length and stamp lie between readings of another clock, to some microseconds."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from gnnhpc.check.watches.second_clock import SecondClock
from gnnhpc.check.watches.time_faults import TimeFaults
from gnnhpc.engines.clock import Clock
from gnnhpc.engines.timing import StepTimer, StepTimes
from gnnhpc.records.schema import StepRecord
from tests.tools.step_records import step_record

STEPS = 40


def record_of(times: StepTimes, step: int, start_s: float) -> StepRecord:
    return step_record(times.wall_s, step=step, start_s=start_s, wait_s=times.wall_s)


def told(
    change: Callable[[StepTimes], StepTimes] = lambda times: times,
    stamp: Callable[[float], float] = lambda start_s: start_s,
) -> list[str]:
    """What is said of steps of a real timer, of which each is changed."""
    timer, clock, faults = StepTimer(Clock(torch.device("cpu"))), SecondClock(), TimeFaults()
    timer.on_length = clock.length_read
    drawn = random.Random(3)
    for step in range(STEPS):
        clock.before_step(0.0)
        timer.prepare()
        clock.barrier_left()
        timer.start()
        started = time.perf_counter()
        clock.step_began()
        until = time.perf_counter() + drawn.uniform(0.0, 3e-3)
        while time.perf_counter() < until:
            pass
        clock.step_ended()
        times = change(timer.stop())
        clock.step_stopped()
        # Processor time is another check's.
        seen = replace(clock.seen(), counted=None)
        faults.compare(record_of(times, step, stamp(started)), times, seen)
    return faults.told()


@pytest.mark.usefixtures("one_busy_processor")
def test_a_busy_processor_accuses_nobody() -> None:
    assert told() == []


def test_a_device_that_is_asked_whether_it_is_idle_accuses_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is already: that it takes a while to say so is no part of the step."""
    monkeypatch.setattr(Clock, "synchronize", lambda _: time.sleep(1e-3))
    assert told() == []


def test_a_step_told_shorter_by_less_than_a_tenth_of_a_millisecond_is_found() -> None:
    found = told(lambda times: replace(times, wall_s=times.wall_s - 8e-5 * (times.wall_s > 1e-3)))
    assert "of the time between their barriers" in found[0]


def test_a_step_told_longer_by_less_than_a_tenth_of_a_millisecond_is_found() -> None:
    found = told(lambda times: replace(times, wall_s=times.wall_s + 8e-5))
    assert found[0].startswith("steps recorded as longer than they were in ")


def test_stamps_that_are_rounded_are_found() -> None:
    found = told(stamp=lambda start_s: round(start_s, 3))
    assert found[0].startswith("start stamps at another rate than a second clock in ")
