"""Holds each step's recorded times against the second clock's, and says what is wrong with them."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gnnhpc.check.watches.count_faults import CountFaults
from gnnhpc.check.watches.faults import Faults, in_most
from gnnhpc.check.watches.part_faults import TOLERANCE_S, PartFaults
from gnnhpc.check.watches.second_clock import RATE, SUM_S, SeenStep
from gnnhpc.engines.timing import SpanName, StepTimes
from gnnhpc.records.schema import Phase, StepRecord

SAME: Final = 0.05
"""Relative difference up to which what is missing is taken for a certain part of the step."""
LONGER: Final = 0.02
"""Of a step between its barriers, by which most steps may be recorded as longer."""
MEASURED = ("forward_s", "backward_s", "allreduce_s", "optimizer_s", "wait_s", "data_s", "cpu_s")


@dataclass(frozen=True)
class _Short:
    """A step recorded as shorter than its barriers lay apart."""

    wall_s: float
    seen_s: float
    last_work_s: float
    parts: dict[SpanName, float]

    @property
    def share(self) -> float:
        return self.wall_s / self.seen_s


@dataclass
class TimeFaults:
    """Of one rank, step after step."""

    faults: Faults = field(default_factory=Faults)
    parts: PartFaults = field(init=False)
    counts: CountFaults = field(init=False)
    _short: list[_Short] = field(default_factory=list)
    _span_shares: list[float] = field(default_factory=list)
    """Of what hooks saw of forward and backward, how much the spans hold, where that is less."""
    _first: tuple[float, SeenStep] | None = None
    _stamps_differ: bool = False
    _steps: Counter[Phase] = field(default_factory=Counter)
    _longer: dict[Phase, list[tuple[float, float]]] = field(default_factory=dict)
    """Seconds recorded and seen, of steps recorded as longer than their barriers lay apart."""

    def __post_init__(self) -> None:
        self.parts = PartFaults(self.faults)
        self.counts = CountFaults(self.faults)

    def compare(self, record: StepRecord, times: StepTimes, seen: SeenStep) -> None:
        self._steps[record.phase] += 1
        where = f"{record.phase} step {record.step}"
        if seen.outside:
            done = ", ".join(f"{count} {what}" for what, count in seen.outside.items())
            self.faults.add("work between the steps", f"{done} before {where}")
        if not self._possible(record, where):
            return
        self._compare_stamps(record, seen, where)
        short = self._compare_length(record, times, seen, where)
        if not short and record.wait_s < -TOLERANCE_S:
            self.faults.add("longer work than a step lasted", f"{where}: wait_s {record.wait_s} s")
        self._compare_spans(times, seen, where)
        self._compare_sums(record, times, where)
        self.parts.compare(record, times, seen, where)
        if seen.counted is not None:
            self.counts.compare(record, times, seen.counted, where)
        self._compare_barriers(seen, where)

    def _possible(self, record: StepRecord, where: str) -> bool:
        if not 0 < record.wall_s < math.inf:
            self.faults.add("a length that no step has", f"{where}: {record.wall_s} s")
            return False
        for name in MEASURED:
            value = getattr(record, name)
            # Not `<`: what is no number is no time either.
            if name != "wait_s" and not -TOLERANCE_S <= value < math.inf:
                self.faults.add(f"an impossible {name}", f"{where}: {value} s")
        return True

    def _compare_stamps(self, record: StepRecord, seen: SeenStep, where: str) -> None:
        """Stamps advance by what lies between the latest and the earliest they can have been.

        Readings around them nest, so what the machine does between two of them accuses nobody.
        """
        if self._first is None:
            self._first = record.start_s, seen
            return
        start_s, first = self._first
        advanced = record.start_s - start_s
        least, most = seen.not_before_s - first.began_s, seen.began_s - first.not_before_s
        if not least * (1 - RATE) - SUM_S <= advanced <= most * (1 + RATE) + SUM_S:
            self._stamps_differ = True
            self.faults.add(
                "start stamps at another rate than a second clock",
                f"{where}: {advanced:.6f} s after the first, {least:.6f} to {most:.6f} s seen",
            )

    def _compare_length(
        self, record: StepRecord, times: StepTimes, seen: SeenStep, where: str
    ) -> bool:
        """Whether it was recorded as shorter than it was."""
        if record.wall_s > seen.at_most_s * (1 + RATE) + SUM_S:
            self.faults.add(
                "steps recorded as longer than they were",
                f"{where}: {record.wall_s:.6f} s, at most {seen.at_most_s:.6f} s seen",
            )
        if record.wall_s > seen.at_least_s * (1 + LONGER) + TOLERANCE_S:
            lengths = record.wall_s, seen.at_least_s
            self._longer.setdefault(record.phase, []).append(lengths)
        if record.wall_s >= seen.at_least_s * (1 - RATE) - SUM_S:
            return False
        parts: dict[SpanName, float] = {
            name: times.total(name) for name in ("forward", "backward", "weights", "optimizer")
        }
        ends = [span.end_s for span in times.spans]
        self._short.append(_Short(record.wall_s, seen.at_least_s, max(ends, default=0.0), parts))
        return True

    def _compare_barriers(self, seen: SeenStep, where: str) -> None:
        """A step begins where all ranks have met, and ends where they meet again."""
        for met, moment in zip(seen.barriers or (1, 1), ("beginning", "end"), strict=True):
            if not met:
                self.faults.add(f"no barrier at the {moment}", where)

    def _compare_spans(self, times: StepTimes, seen: SeenStep, where: str) -> None:
        """What hooks saw is in the spans; a device's spans are at other times than the host's."""
        work: tuple[tuple[SpanName, int, float], ...] = (
            ("forward", seen.forwards, seen.forward_s),
            ("backward", seen.backwards, seen.backward_s),
            ("weights", sum(a.kind == "weights" for a in seen.order), seen.weights_s),
        )
        for name, count, seconds in work:
            held = {(s.part, s.microbatch) for s in times.spans if s.name == name}
            if len(held) < (min(count, 1) if self.parts.stage.several_devices else count):
                self.faults.add(
                    f"{name} of micro-batches in no {name} span", f"{where}: {count - len(held)}"
                )
            elif times.waiting_cpu_s is not None and seconds > 0:
                total = times.total(name)
                if total < seconds * (1 - RATE) - SUM_S * count:
                    self._span_shares.append(total / seconds)
        ordered = sorted(times.spans, key=lambda span: (span.start_s, span.end_s))
        end = 0.0
        for span in ordered:
            if span.start_s < -TOLERANCE_S:
                self.faults.add(
                    "work before the clock was started", f"{where}: {span.name}, {span.start_s} s"
                )
            elif span.start_s < end - TOLERANCE_S:
                self.faults.add("time counted twice", f"{where}: {span.name} at {span.start_s} s")
            end = max(end, span.end_s)

    def _compare_sums(self, record: StepRecord, times: StepTimes, where: str) -> None:
        """The record's parts are the sums of the spans, and with the rest they are the step."""
        sums = dict.fromkeys(("forward_s", "backward_s", "allreduce_s", "optimizer_s"), 0.0)
        by_part: dict[int, list[float]] = {}
        for span in times.spans:
            # A record's backward is both halves of it.
            counted = "backward" if span.name == "weights" else span.name
            if counted in ("forward", "backward"):
                of_part = by_part.setdefault(span.part, [0.0, 0.0, 0.0])
                of_part[counted == "backward"] += span.seconds
                of_part[2] += span.seconds if span.name == "weights" else 0.0
            if counted != "wait":
                sums[f"{counted}_s"] += span.seconds
        sums["wait_s"] = record.wall_s - sum(sums.values())
        for name, expected in sums.items():
            found = getattr(record, name)
            if not abs(found - expected) <= SUM_S:
                self.faults.add(
                    f"{name} that is not the sum of its spans",
                    f"{where}: {found:.6f} s, {expected:.6f} s in spans",
                )
        apart = times.total("weights")
        if not abs((record.weights_s or 0.0) - apart) <= SUM_S:
            self.faults.add(
                "weights_s that is not the sum of its spans",
                f"{where}: {record.weights_s} s, {apart:.6f} s in spans",
            )
        for part, told in enumerate(record.part_s or ()):
            held = by_part.get(part, [0.0, 0.0, 0.0])[: 2 if record.weights_s is None else 3]
            if len(told) != len(held) or not np.allclose(told, held, rtol=0.0, atol=SUM_S):
                self.faults.add(
                    "a part's seconds that are not the sum of its spans",
                    f"{where}: part {part} {told}, {held} in spans",
                )

    def told(self) -> list[str]:
        """What is wrong, each with its cause as far as the times tell it."""
        slow_clock = self._slow_clock()
        if slow_clock:
            return [slow_clock]
        found = self.faults.told()
        for phase, longer in self._longer.items():
            if in_most(len(longer), self._steps[phase]):
                recorded, seen = (sum(each) for each in zip(*longer, strict=True))
                found.append(
                    f"{len(longer)} steps were recorded as {recorded:.6f} s, {seen:.6f} s lay "
                    "between their barriers: the clock ran before the first or after the last"
                )
        found += [*self.parts.told(), *self.counts.told()]
        if self._short:
            found.insert(0, self._shortened())
        elif self._span_shares:
            share = statistics.median(self._span_shares)
            found.append(
                f"spans of forward and backward hold {share:.2f} of what hooks saw of them in "
                f"{len(self._span_shares)} cases"
            )
        return found

    def _slow_clock(self) -> str | None:
        """Lengths and spans, or stamps too, that lack the same share in every step."""
        shares = [short.share for short in self._short]
        if not shares or not (self._span_shares or self._stamps_differ):
            return None
        rate = statistics.median(shares)
        alike = sum(abs(share / rate - 1) < SAME for share in shares)
        if rate <= 0 or alike < 0.8 * len(shares):
            return None
        return f"its clock ran at {rate:.2f} of a second clock's rate, in {len(shares)} steps"

    def _shortened(self) -> str:
        steps = self._short
        recorded = sum(short.wall_s for short in steps)
        missing = sum(short.seen_s for short in steps) - recorded
        share = recorded / (recorded + missing)
        told = f"{len(steps)} steps were recorded as {share:.3f} of the time between their barriers"
        part = self._missing_part(missing)
        if part:
            return f"{told}: it leaves the {part} out"
        last = sum(short.last_work_s for short in steps)
        if abs(last - recorded) < SAME * missing:
            return f"{told}: it ends with this rank's last work, not with the last rank's"
        return told

    def _missing_part(self, missing: float) -> str | None:
        choices: Sequence[tuple[SpanName, ...]] = (
            ("backward",),
            ("forward",),
            ("optimizer",),
            ("forward", "backward"),
            ("weights",),
        )
        for names in choices:
            total = sum(short.parts[name] for short in self._short for name in names)
            if total > 0 and abs(total / missing - 1) < SAME:
                return " and ".join(names)
        return None
