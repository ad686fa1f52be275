"""Watches what a rank measured: whether its times can be, and what they add up to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gnnhpc.engines.timing import StepTimes
from gnnhpc.records.schema import StepRecord

TIME_TOLERANCE_S = 1e-4
"""Between two readings of a clock, as at a step's begin for its stamp and for its length."""


@dataclass
class StepTimesWatch:
    """Sums are of steps that are no warm-up unless said otherwise."""

    overfull_steps: int = 0
    overlapping_steps: int = 0
    all_steps_s: float = 0.0
    """Of all steps, warm-up and evaluation included."""
    step_s: list[float] = field(default_factory=list)
    """Of each training step."""
    backward_s: float = 0.0
    switches: int = 0
    _step_end_s: float = -math.inf
    _cpu_s: float = 0.0
    _busy_s: float = 0.0
    _wall_s: float = 0.0
    _steal_s: float | None = 0.0

    def observe(self, record: StepRecord, times: StepTimes) -> None:
        """Checks each step's times, and adds up those of steps that are no warm-up."""
        # Not `>`: a time that is no number is wrong too.
        self.overfull_steps += not times.busy_s <= record.wall_s + TIME_TOLERANCE_S
        self.overlapping_steps += not record.start_s >= self._step_end_s - TIME_TOLERANCE_S
        self._step_end_s = record.start_s + record.wall_s
        self.all_steps_s += record.wall_s
        if record.warmup:
            return
        self.switches += times.involuntary_switches
        self._cpu_s += times.cpu_s
        self._busy_s += times.busy_s
        self._wall_s += times.wall_s
        if self._steal_s is not None:
            self._steal_s = None if times.steal_s is None else self._steal_s + times.steal_s
        if record.phase == "train":
            self.step_s.append(times.wall_s)
            self.backward_s += times.total("backward")

    @property
    def cpu_share(self) -> float | None:
        """Processor time of busy time; none without a step."""
        return self._cpu_s / self._busy_s if self._busy_s else None

    @property
    def steal_share(self) -> float | None:
        """Of the time of all steps; none without one, or where the system does not say."""
        if self._steal_s is None or not self._wall_s:
            return None
        return self._steal_s / self._wall_s
