"""Watches what a rank measured: whether its times can be, and what they add up to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gnnhpc.check.watches.processor_use import ProcessorUseWatch
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
    longest_s: float = 0.0
    """Of all steps, likewise."""
    step_s: list[float] = field(default_factory=list)
    """Of each training step, barrier to barrier."""
    step_compute_s: list[float] = field(default_factory=list)
    """This rank's own computing in each of them."""
    step_cpu_s: list[float] = field(default_factory=list)
    """The computing threads' processor time in it."""
    backward_s: float = 0.0
    drawn_s: float = 0.0
    """How long its training mini-batches took to be drawn, warm-up included; 0 if nobody knows."""
    drawing_s: float = 0.0
    """How long all training steps were, what they waited for mini-batches included."""
    switches: int = 0
    processors: ProcessorUseWatch = field(default_factory=ProcessorUseWatch)
    _step_end_s: float = -math.inf
    _cpu_s: float | None = 0.0
    _compute_s: float = 0.0
    _wall_s: float = 0.0
    _steal_s: float | None = 0.0
    _run_delay_s: float | None = 0.0

    def observe(self, record: StepRecord, times: StepTimes) -> None:
        """Checks each step's times, and adds up those of steps that are no warm-up."""
        self.processors.look()
        # Not `>`: a time that is no number is wrong too.
        self.overfull_steps += not times.busy_s <= record.wall_s + TIME_TOLERANCE_S
        self.overlapping_steps += not record.start_s >= self._step_end_s - TIME_TOLERANCE_S
        self._step_end_s = record.start_s + record.wall_s
        self.all_steps_s += record.wall_s
        self.longest_s = max(self.longest_s, record.wall_s)
        if record.phase == "train":
            self.drawing_s += record.wall_s + record.data_s
            if record.sample_s is not None:
                self.drawn_s += record.sample_s + (record.gather_s or 0.0)
        if record.warmup:
            return
        self.switches += times.involuntary_switches
        self._cpu_s = _add(self._cpu_s, None if times.waiting_cpu_s is None else times.cpu_s)
        self._compute_s += times.compute_s
        self._wall_s += times.wall_s
        self._steal_s = _add(self._steal_s, times.steal_s)
        self._run_delay_s = _add(self._run_delay_s, times.run_delay_s)
        if record.phase == "train":
            self.step_s.append(times.wall_s)
            self.step_compute_s.append(times.compute_s)
            self.step_cpu_s.append(times.cpu_s)
            self.backward_s += times.total_backward()

    @property
    def cpu_share(self) -> float | None:
        """Processor time of computing time; none without a step, or where a device computes."""
        return _share(self._cpu_s, self._compute_s)

    @property
    def compute_share(self) -> float | None:
        """Of the time of all steps, this rank's own computing; none without one."""
        return _share(self._compute_s, self._wall_s)

    @property
    def steal_share(self) -> float | None:
        """Of the time of all steps; none without one, or where the system does not say."""
        return _share(self._steal_s, self._wall_s)

    @property
    def run_delay_share(self) -> float | None:
        """Of the time of all steps, without a processor though ready to run; none as above."""
        return _share(self._run_delay_s, self._wall_s)


def _add(total: float | None, seconds: float | None) -> float | None:
    return None if total is None or seconds is None else total + seconds


def _share(part: float | None, whole: float) -> float | None:
    return None if part is None or not whole else part / whole
