"""An all-reduce is held against when its sum over replicas was waited for and was there."""

from __future__ import annotations

import pytest

from gnnhpc.check.watches.faults import Faults
from gnnhpc.check.watches.part_faults import PartFaults
from gnnhpc.check.watches.second_clock import SeenStep
from gnnhpc.check.watches.sum_moments import SeenSums, SumMoments
from gnnhpc.check.watches.work_moments import Moment
from gnnhpc.engines.timing import Span, StepTimes
from tests.tools.step_records import step_record

EARLY = "s lie before their sums over replicas began"
LATE = "s lie after these had ended"
BESIDE = "s lie beside them"


def told(
    sums: SeenSums | None,
    last_s: float = 1.0,
    delays: tuple[float, float] = (0.0, 0.0),
    steps: int = 3,
    switches: int = 0,
    on_device: bool = False,
) -> str:
    """What is said of steps of 2 s with an all-reduce from 1 to 1.1 s whose last replica came at
    `last_s`, and whose gradients were divided for a millisecond before; `delays` are the thread's
    waits for a processor until the span's beginning and end."""
    faults = PartFaults(Faults())
    for step in range(steps):
        span = Span("allreduce", None, 0.999, 1.1, 0.0, delays[0], delay_after_s=delays[1])
        spans = span.split(1.0, "allreduce", "allreduce", 0.0)
        waiting = None if on_device else 0.0
        times = StepTimes(2.0, 0.0, spans, {}, switches, None, waiting, arrival_s=1.0)
        times.wait_for_replicas(last_s)
        start_s, allreduce_s = 2.0 * step, times.total("allreduce")
        record = step_record(2.0, step=step, start_s=start_s, allreduce_s=allreduce_s)
        seen = SeenStep(2.0, 2.0, 2.0 * step, 2.0 * step + 1e-4, sums=sums)
        faults._sums.compare(record, times, seen, f"train step {step}")
    return "; ".join([*faults.faults.told(), *filter(None, [faults.loose()])])


def seen(waits_s: float, ended_s: float, delay_s: float | None = 0.0, nbytes: int = 0) -> SeenSums:
    return SeenSums(Moment(waits_s, 0.0), Moment(ended_s, delay_s), nbytes)


@pytest.mark.parametrize(
    ("sums", "words"),
    [
        (None, ""),
        (seen(1.0001, 1.0999), ""),
        # The first barrier was left up to a tenth of a millisecond before the second clock's.
        (seen(0.99995, 1.0999), ""),
        (seen(0.9, 1.0999), "an all-reduce that begins after its sum over replicas in 3 steps"),
        (seen(1.0001, 1.2), "an all-reduce that ends before its sum over replicas in 3 steps"),
        (SeenSums(None, None, 0), "an all-reduce in which no sum over replicas was seen in 3"),
        (seen(1.06, 1.0999), EARLY),
        (seen(1.0001, 1.04), LATE),
    ],
)
def test_an_all_reduce_is_its_sum(sums: SeenSums | None, words: str) -> None:
    found = told(sums)
    assert words in found
    assert bool(words) == bool(found)


def test_what_one_or_two_steps_hold_is_no_fault() -> None:
    assert told(seen(1.0001, 1.04), steps=2) == ""


def test_a_device_s_sums_are_not_held_against_the_host_s() -> None:
    assert told(seen(0.9, 1.0999), on_device=True) == ""


def test_a_wait_for_a_processor_is_none_after_the_sum() -> None:
    assert LATE in told(seen(1.0001, 1.04))
    assert told(seen(1.0001, 1.04), delays=(0.0, 0.06)) == ""
    # Another thread has seen its end: all that the engine's had waited is left out.
    assert LATE in told(seen(1.0001, 1.04, delay_s=None))
    assert told(seen(1.0001, 1.04, delay_s=None), delays=(0.0, 0.06)) == ""


def test_caches_that_fill_again_are_none_either() -> None:
    assert LATE in told(seen(1.0001, 1.04), switches=100)
    assert told(seen(1.0001, 1.04), switches=700) == ""


def test_what_is_counted_as_waiting_is_no_part_of_it() -> None:
    """The last replica came when the sum had ended, by its own reading."""
    assert told(seen(1.0001, 1.04), last_s=1.099) == ""


def test_sums_of_the_step_alone_are_seen() -> None:
    moments = SumMoments()
    moments.told("waits", 8)
    moments.begin_step(0.0)
    assert moments.seen() == SeenSums(None, None, 0)
    for what in ("begins", "begins", "waits", "ends", "waits", "ends"):
        moments.told(what, 4 if what == "begins" else 0)  # type: ignore[arg-type]
    moments.end_step()
    moments.told("waits", 8)
    found = moments.seen()
    assert found.nbytes == 8
    assert found.waits is not None
    assert found.ended is not None
    assert found.waits.at_s < found.ended.at_s
