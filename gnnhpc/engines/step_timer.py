"""Times one rank's steps: the wall time between barriers, and spans of work within it.

On a CPU every span is two readings of a clock. On a GPU only profiled steps have spans, as events
of its stream: an event in an ordinary step would take time, and a CUDA graph forbids it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch

SpanName = Literal["forward", "backward", "weights", "allreduce", "optimizer", "wait"]
Timestamp = float | torch.cuda.Event
"""A reading of the host's clock in seconds, or an event in a device's stream."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of work in seconds since the step's first barrier; `microbatch` is None for work of
    the whole step."""

    name: SpanName
    microbatch: int | None
    start_s: float
    end_s: float
    virtual_stage: int = 0
    """The number of the virtual stage among those of this rank."""

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(slots=True)
class _OpenSpan:
    name: SpanName
    microbatch: int | None
    virtual_stage: int
    start: Timestamp
    end: Timestamp | None = None


@dataclass
class StepTimes:
    """What one rank measured of one step; `spans` is None where the step has none, on a GPU."""

    wall_s: float
    spans: list[Span] | None
    recompute_s: float = 0.0
    """Seconds of the backwards in which forwards were recomputed."""
    gradients_ready_s: float | None = None
    """When this stage's gradients were ready for the all-reduce; None without one."""

    def total(self, name: SpanName, virtual_stage: int | None = None) -> float | None:
        """Seconds of all such spans, or of those of one virtual stage; None without spans."""
        if self.spans is None:
            return None
        mine = [s for s in self.spans if virtual_stage in (None, s.virtual_stage)]
        return sum((span.seconds for span in mine if span.name == name), 0.0)

    def total_backward(self, virtual_stage: int | None = None) -> float | None:
        """Seconds of backward, with the gradients of weights under split backward."""
        backward, weights = (self.total(name, virtual_stage) for name in ("backward", "weights"))
        return None if backward is None or weights is None else backward + weights

    @property
    def rest_s(self) -> float | None:
        """Seconds of the step that no span of work covers, which is waiting and what lies between
        spans; None without spans."""
        if self.spans is None:
            return None
        return self.wall_s - sum(span.seconds for span in self.spans if span.name != "wait")

    def count_late_replicas_as_waiting(self, last_ready_s: float) -> None:
        """Split the all-reduce where the last replica's gradients were ready: this rank has waited
        until then. Each rank counts from the barrier that all left together, so ranks need no
        common clock."""
        if self.spans is None or self.gradients_ready_s is None:
            return
        for number, span in enumerate(self.spans):
            if span.name == "allreduce" and span.start_s == self.gradients_ready_s:
                at = min(max(last_ready_s, span.start_s), span.end_s)
                both = replace(span, name="wait", end_s=at), replace(span, start_s=at)
                self.spans[number : number + 1] = [each for each in both if each.seconds > 0]
                return


class StepTimer:
    """Collects the spans of one step at a time; spans follow one another and do not nest."""

    def __init__(self, *devices: torch.device) -> None:
        """`devices` are those of this process's stages; events are of the first."""
        self._devices = devices
        self.on_device = devices[0].type == "cuda"
        self.has_spans = not self.on_device
        """Whether the present step has spans."""
        self._doing = "starting"
        self._beats = 0
        self._spans: list[_OpenSpan] = []
        self._recompute_s = 0.0
        self._ready: Timestamp | None = None
        self._base: Timestamp | None = None
        self._base_s = time.perf_counter()

    def start(self, *, profiled: bool = False) -> float:
        """Set time zero, at a step's first barrier, when the device is idle.

        Returns that moment in seconds of the host's monotonic clock.
        """
        self._beats += 1 + len(self._spans)
        self._spans = []
        self._recompute_s = 0.0
        self._ready = None
        self._doing = "a step"
        if self.on_device:
            self.has_spans = profiled
            self._base = self.now() if profiled else None
        self._base_s = time.perf_counter()
        return self._base_s

    def begin(self, name: SpanName, microbatch: int | None = None, virtual_stage: int = 0) -> None:
        if self.has_spans:
            self._spans.append(_OpenSpan(name, microbatch, virtual_stage, self.now()))

    def end(self) -> None:
        """End the span that began last."""
        if self.has_spans:
            self._spans[-1].end = self.now()

    @contextlib.contextmanager
    def span(
        self, name: SpanName, microbatch: int | None = None, virtual_stage: int = 0
    ) -> Iterator[None]:
        """A span around what takes the time; it stays open where that raises."""
        self.begin(name, microbatch, virtual_stage)
        yield
        self.end()

    def begin_allreduce(self) -> None:
        """Begin the span of the all-reduce, as this stage's gradients are ready."""
        self.begin("allreduce")
        self._ready = self._spans[-1].start if self.has_spans else None

    def add_recomputation(self, seconds: float) -> None:
        """Count seconds in which a forward was recomputed within a backward."""
        self._recompute_s += seconds

    @contextlib.contextmanager
    def outside(self, doing: str) -> Iterator[None]:
        """Around work outside of steps, such as reading a file, that the watchdog names."""
        before, self._doing = self._doing, doing
        self._beats += 1
        try:
            yield
        finally:
            self._doing = before
            self._beats += 1

    def activity(self) -> tuple[int, str]:
        """A count that grows while this rank works, and what it does now, for the watchdog."""
        work, last = self._beats + len(self._spans), self._spans[-1] if self._spans else None
        if last is None or last.end is not None:
            return work, self._doing
        of = "" if last.microbatch is None else f" of micro-batch {last.microbatch}"
        return work, last.name + of

    def synchronize(self) -> None:
        """Wait until the devices have done the work of the step.

        All of it is on their current streams, or these wait for it: engines wait for what they
        send and reduce, and replays and torchgpipe's copies join. A stream that samples the next
        mini-batch goes on meanwhile.
        """
        if self.on_device:
            for device in self._devices:
                torch.cuda.current_stream(device).synchronize()

    def stop(self) -> StepTimes:
        """End the step, after its last barrier."""
        wall_s = time.perf_counter() - self._base_s
        self._beats += 1
        self._doing = "between steps"
        if not self.has_spans:
            return StepTimes(wall_s, None)
        self.synchronize()
        seconds = self.seconds
        spans = [
            Span(s.name, s.microbatch, seconds(s.start), seconds(s.end), s.virtual_stage)
            for s in self._spans
            if s.end is not None
        ]
        ready_s = None if self._ready is None else seconds(self._ready)
        return StepTimes(wall_s, spans, self._recompute_s, ready_s)

    def now(self) -> Timestamp:
        if not self.on_device:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, timestamp: Timestamp) -> float:
        """Seconds from the step's start; the device must have reached the timestamp."""
        if isinstance(timestamp, float):
            return timestamp - self._base_s
        assert isinstance(self._base, torch.cuda.Event)
        return float(self._base.elapsed_time(timestamp)) / 1e3
