"""What a rank keeps of a step whose gradients its replicas shared, to hold them together."""

from __future__ import annotations

from dataclasses import dataclass

from gnnhpc.engines.timing import StepTimes
from gnnhpc.records.schema import StepRecord


@dataclass(frozen=True)
class SharedStep:
    """Of one training step; seconds since its first barrier."""

    step: int
    wall_s: float
    ready_s: float | None
    """When this rank's gradients were ready by the second clock; None where it saw none."""
    allreduce_s: float
    """Recorded as all-reduce."""
    arrival_s: float
    """When this rank came to the all-reduce."""
    until_s: float
    """When that had ended here; as `arrival_s` where no span begins there."""
    beside_s: float
    """In other spans of all-reduces, which wait for nobody."""

    def reduced_s(self, last_arrival_s: float) -> float:
        """All-reduce, where the last replica of the stage came to it at `last_arrival_s`."""
        began_s = min(max(last_arrival_s, self.arrival_s), self.until_s)
        return self.beside_s + self.until_s - began_s


def shared_step(record: StepRecord, times: StepTimes, ready_s: float | None) -> SharedStep | None:
    """None where no gradients were shared; `times` tell waiting from all-reduce by now."""
    arrival_s = times.arrival_s
    if arrival_s is None:
        return None
    # Waiting for the last replica, if it came later, and then the all-reduce, if any was left.
    waits = (s.end_s for s in times.spans if s.name == "wait" and s.start_s == arrival_s)
    began_s = next(waits, arrival_s)
    until_s, beside_s = began_s, 0.0
    for span in times.spans:
        if span.name == "allreduce" and span.start_s == began_s:
            until_s = span.end_s
        elif span.name == "allreduce":
            beside_s += span.seconds
    return SharedStep(
        *(record.step, record.wall_s, ready_s, record.allreduce_s, arrival_s, until_s, beside_s)
    )
