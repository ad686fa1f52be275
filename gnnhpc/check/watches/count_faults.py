"""Holds what a step's record says of processors against what was read beside the timer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gnnhpc.check.watches.faults import Faults
from gnnhpc.check.watches.part_faults import TOLERANCE_S
from gnnhpc.check.watches.system_counts import CountedStep
from gnnhpc.engines.timing import COMPUTING, StepTimes
from gnnhpc.records.schema import StepRecord

SHARE: Final = 0.05
"""Of processor time: other clocks tell it than a step's length."""
TICK_S: Final = 0.01
"""How late a process may count the time of each of its threads that runs, at a clock tick."""
STEAL_SHARE: Final = 0.3
"""Of what the host took, what may fall between the timer's readings and those around them: it is
counted at the clock tick after."""
STEAL_S: Final = 0.05
"""And so many seconds of a run, five clock ticks."""
COUNTED: Final = (
    "cpu_s",
    "waiting_cpu_s",
    "other_cpu_s",
    "run_delay_s",
    "threads_used",
    "involuntary_switches",
    "steal_s",
)


@dataclass
class CountFaults:
    """Of one rank, step after step; `faults` are told with those of whole steps."""

    faults: Faults
    _told_steal_s: float = 0.0
    _seen_steal_s: float = 0.0

    def compare(self, record: StepRecord, times: StepTimes, seen: CountedStep, where: str) -> None:
        for fault, detail in self._found(record, times, seen):
            self.faults.add(fault, f"{where}: {detail}")

    def _found(
        self, record: StepRecord, times: StepTimes, seen: CountedStep
    ) -> Iterator[tuple[str, str]]:
        for name in COUNTED:
            told, measured = getattr(record, name), getattr(times, name)
            if told != measured:
                yield f"{name} recorded otherwise than measured", f"{told}, {measured} measured"
        yield from self._processor_time(record, times, seen)
        yield from self._delay(record, times, seen)
        yield from self._delays_of_spans(times, seen)
        least, most = seen.least.switches, seen.most.switches
        if not least <= (record.involuntary_switches or 0) <= most:
            yield (
                "other involuntary switches than the process had",
                f"{record.involuntary_switches}, {least} to {most} seen",
            )
        yield from self._steal(record, seen)

    def _processor_time(
        self, record: StepRecord, times: StepTimes, seen: CountedStep
    ) -> Iterator[tuple[str, str]]:
        """What threads of this process used is within what all of them together used, and the
        engine's own thread is one of them."""
        least, most = seen.least, seen.most
        others = record.other_cpu_s or 0.0
        computing = record.cpu_s + (record.waiting_cpu_s or 0.0)
        together = computing + others
        if not together <= most.process_cpu_s + TOLERANCE_S:
            yield (
                "more processor time than the process used",
                f"{together:.6f} s, {most.process_cpu_s:.6f} s seen",
            )
        elif not together >= least.process_cpu_s - TOLERANCE_S:
            yield (
                "less processor time than the process used",
                f"{together:.6f} s, {least.process_cpu_s:.6f} s seen",
            )
        # A device's spans say nothing of when the host's threads computed.
        if times.waiting_cpu_s is not None:
            yield from self._in_spans(record, times)
        # Of threads that come and go, as torchgpipe's, the engine's does little.
        if times.come_and_go:
            return
        if not others >= -TOLERANCE_S - TICK_S * max(0, len(times.cpus) - 1):
            yield "processor time of other threads that is less than none", f"{others:.6f} s"
        if not computing >= least.thread_cpu_s - TOLERANCE_S:
            yield (
                "less processor time of the computing threads than the engine's used",
                f"{computing:.6f} s, {least.thread_cpu_s:.6f} s seen",
            )
        if len(times.cpus) != 1:
            return
        if not computing <= most.thread_cpu_s + TOLERANCE_S:
            yield (
                "more processor time of the computing thread than it used",
                f"{computing:.6f} s, {most.thread_cpu_s:.6f} s seen",
            )

    def _in_spans(self, record: StepRecord, times: StepTimes) -> Iterator[tuple[str, str]]:
        """Processor time of computing is that of its spans, and one thread's is no longer."""
        spans = [span for span in times.spans if span.name in COMPUTING]
        held = sum(span.cpu_s for span in spans)
        if not abs(record.cpu_s - held) <= TOLERANCE_S:
            yield (
                "cpu_s that is not the sum of its spans",
                f"{record.cpu_s:.6f} s, {held:.6f} s in spans",
            )
        if times.come_and_go or len(times.cpus) != 1:
            return
        for span in spans:
            if not -TOLERANCE_S <= span.cpu_s <= span.seconds * (1 + SHARE) + TOLERANCE_S:
                yield (
                    "a span's processor time that its thread cannot have used",
                    f"{span.name}: {span.cpu_s:.6f} s in {span.seconds:.6f} s",
                )
                return

    def _delay(
        self, record: StepRecord, times: StepTimes, seen: CountedStep
    ) -> Iterator[tuple[str, str]]:
        """Waiting for a processor, of the one thread that computes; of several it is the mean."""
        told, least, most = record.run_delay_s, seen.least.delay_s, seen.most.delay_s
        if least is None or most is None:
            return
        if told is None:
            yield "no run_delay_s where the system says it", f"{least:.6f} s seen"
        elif times.come_and_go or len(times.cpus) != 1:
            if not told >= 0:
                yield "an impossible run_delay_s", f"{told} s"
        elif not least - TOLERANCE_S <= told <= most + TOLERANCE_S:
            yield (
                "another run_delay_s than the computing thread had",
                f"{told:.6f} s, {least:.6f} to {most:.6f} s seen",
            )

    def _delays_of_spans(self, times: StepTimes, seen: CountedStep) -> Iterator[tuple[str, str]]:
        """Readings at spans' ends lie between those around the step, one span's in their order, and
        no span's first before that of the span that began before it."""
        if seen.delays is None or times.come_and_go:
            return
        began, until = seen.delays
        for span in times.spans:
            before, after = span.delay_before_s, span.delay_after_s
            began_before = began
            began = began if before is None else before
            if not began_before <= began <= (until if after is None else after) <= until:
                yield (
                    "a span's waiting for a processor that its thread had not",
                    f"{span.name}, {before} to {after} s, {began_before} to {until} s seen",
                )
                return

    def _steal(self, record: StepRecord, seen: CountedStep) -> Iterator[tuple[str, str]]:
        if seen.steal_s is None:
            return
        if record.steal_s is None:
            yield "no steal_s where the system says it", f"{seen.steal_s:.6f} s seen"
            return
        self._told_steal_s += record.steal_s
        self._seen_steal_s += seen.steal_s * (1 - seen.reading_share)
        if not 0 <= record.steal_s <= seen.steal_s + TOLERANCE_S:
            yield (
                "another steal_s than the host took",
                f"{record.steal_s:.6f} s, {seen.steal_s:.6f} s seen",
            )

    def told(self) -> list[str]:
        """What is wrong of all steps together: a clock tick may fall beside one."""
        told, seen = self._told_steal_s, self._seen_steal_s
        if told < (1 - STEAL_SHARE) * seen - STEAL_S:
            return [f"steal_s holds {told:.3f} s of the {seen:.3f} s that the host took"]
        return []
