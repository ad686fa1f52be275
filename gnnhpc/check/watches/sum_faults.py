"""Holds a step's all-reduce against when its sums over replicas were waited for and were there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gnnhpc.check.watches.faults import Faults, in_most
from gnnhpc.check.watches.loose_spans import ENDING_S, most_beside, waited_between, waited_in
from gnnhpc.check.watches.second_clock import RATE, SUM_S, SeenStep
from gnnhpc.check.watches.shared_step import SharedStep, shared_step
from gnnhpc.check.watches.work_moments import Moment
from gnnhpc.engines.timing import StepTimes
from gnnhpc.records.schema import StepRecord

DIVIDED: Final = 1e9
"""Bytes of gradients that are divided by the number of replicas in a second, or more."""
_EARLY: Final = "before their sums over replicas began"
_LATE: Final = "after these had ended"
_BESIDE: Final = "beside them"


class _Sum(NamedTuple):
    """Of a step that waited for a sum."""

    waits: Moment
    ended: Moment
    nbytes: int


@dataclass
class SumFaults:
    """Of one rank, step after step; a device's sums the host's clock cannot tell."""

    faults: Faults
    _steps: int = 0
    """With sums."""
    _loose: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """By where, of steps with such: seconds told as all-reduce, and those that are none."""

    def compare(self, record: StepRecord, times: StepTimes, seen: SeenStep, where: str) -> None:
        shared = shared_step(record, times, seen.ready_s)
        if shared is None or seen.sums is None or times.waiting_cpu_s is None:
            return
        if seen.sums.waits is None or seen.sums.ended is None:
            self.faults.add("an all-reduce in which no sum over replicas was seen", where)
            return
        summed = _Sum(seen.sums.waits, seen.sums.ended, seen.sums.nbytes)
        self._steps += 1
        if not self._nests(shared, seen, summed, where):
            return
        switches = times.involuntary_switches
        least_s = most_beside(record.allreduce_s, record.wall_s, ENDING_S, switches)
        for place, found_s, more_s in (
            (_EARLY, _early(shared, times, summed), 0.0),
            (_LATE, _late(shared, times, seen, summed), 0.0),
            (_BESIDE, _beside(shared, times, summed), summed.nbytes / DIVIDED),
        ):
            if found_s > least_s + more_s:
                self._loose.setdefault(place, []).append((record.allreduce_s, found_s))

    def _nests(self, shared: SharedStep, seen: SeenStep, summed: _Sum, where: str) -> bool:
        """Whether the engine came before it waited for a sum, and ended once it had the last: the
        step's first barrier lies between two readings, so this holds however busy the machine is.
        """
        first_s = seen.began_s - seen.not_before_s
        if not shared.arrival_s * (1 - RATE) - first_s <= summed.waits.at_s + SUM_S:
            self.faults.add(
                "an all-reduce that begins after its sum over replicas",
                f"{where}: at {shared.arrival_s:.6f} s, {summed.waits.at_s:.6f} s seen",
            )
            return False
        if not shared.until_s * (1 + RATE) + SUM_S >= summed.ended.at_s:
            self.faults.add(
                "an all-reduce that ends before its sum over replicas",
                f"{where}: at {shared.until_s:.6f} s, {summed.ended.at_s:.6f} s seen",
            )
            return False
        return True

    def loose(self) -> str | None:
        """All-reduces that hold more than their sums in most steps."""
        for place, steps in self._loose.items():
            if in_most(len(steps), self._steps):
                told_s, found_s = (sum(each) for each in zip(*steps, strict=True))
                return (
                    f"all-reduces of {len(steps)} steps hold {told_s:.3f} s; {found_s:.3f} s lie "
                    f"{place}"
                )
        return None


def _early(shared: SharedStep, times: StepTimes, summed: _Sum) -> float:
    """Seconds from coming to the all-reduce to waiting for it, less those without a processor."""
    waited_s = waited_between(_delay_until(shared.arrival_s, times), summed.waits.delay_s)
    return summed.waits.at_s - shared.arrival_s - waited_s


def _late(shared: SharedStep, times: StepTimes, seen: SeenStep, summed: _Sum) -> float:
    """Seconds that are told as all-reduce after the last sum, and after all that went backward
    beside it, less those that the thread waited for a processor."""
    last = next((s for s in times.spans if s.end_s == shared.until_s), None)
    if last is None or last.name != "allreduce":
        return 0.0
    backwards = [at for (kind, _), at in seen.ends.items() if kind == "backward"]
    ended = max([summed.ended, *backwards], key=lambda moment: moment.at_s)
    # Of another thread nobody knows how long the engine's had waited by then: all of its waits.
    before_s = ended.delay_s
    if before_s is None:
        before_s = _delay_until(shared.arrival_s, times)
    waited_s = waited_between(before_s, last.delay_after_s)
    return shared.until_s - max(ended.at_s, last.start_s) - waited_s


def _beside(shared: SharedStep, times: StepTimes, summed: _Sum) -> float:
    """Seconds told as all-reduce before coming to it, less those without a processor."""
    found_s = shared.beside_s
    for span in times.spans:
        if span.name == "allreduce" and span.end_s < shared.arrival_s:
            found_s -= waited_in(span)
        elif span.name == "allreduce" and span.end_s == shared.arrival_s:
            found_s -= waited_between(span.delay_before_s, summed.waits.delay_s)
    return found_s


def _delay_until(at_s: float, times: StepTimes) -> float | None:
    """How long the thread had waited for a processor when the span began that ends or begins at
    `at_s`: of the moment itself nothing was read."""
    around = [s for s in times.spans if at_s in (s.start_s, s.end_s)]
    known = (s.delay_before_s for s in around if s.delay_before_s is not None)
    return next(known, None)
