"""Times one rank's step: spans on one clock, of the CPU or the device, summed after the step."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from gnnhpc.engines.clock import Clock, Mark

STAT = Path("/proc/stat")
STATUS = Path("/proc/self/status")
SpanName = Literal["forward", "backward", "allreduce", "optimizer", "wait"]


@dataclass(frozen=True)
class Span:
    """Seconds since the step's first barrier; `microbatch` is None for work of the whole step."""

    name: SpanName
    microbatch: int | None
    start_s: float
    end_s: float


@dataclass
class _OpenSpan:
    name: SpanName
    microbatch: int | None
    start: Mark
    end: Mark | None = None
    reduced_from: Mark | None = None
    """Where DDP's all-reduce began, inside a step's last backward."""

    @property
    def doing(self) -> str:
        """In words, as the watchdog says it."""
        of = "" if self.microbatch is None else f" of micro-batch {self.microbatch}"
        return self.name + of


@dataclass
class StepTimes:
    """What one rank measured of one step."""

    wall_s: float
    cpu_s: float
    spans: list[Span]
    layers: dict[str, list[float]]
    """Forward and backward seconds of each layer, summed over micro-batches."""
    involuntary_switches: int
    steal_s: float | None

    def total(self, name: SpanName) -> float:
        return sum(span.end_s - span.start_s for span in self.spans if span.name == name)

    @property
    def busy_s(self) -> float:
        return sum(s.end_s - s.start_s for s in self.spans if s.name != "wait")


@dataclass
class StepTimer:
    """Collects the spans of one step at a time; one a rank."""

    clock: Clock
    work: int = 0
    """How many spans have begun or ended since the start; the watchdog checks that it grows."""
    doing: str = "starting"
    in_step: bool = False
    """Between a step's barriers."""
    spins: ClassVar[bool] = False
    """Processor seconds show work; `gnnhpc.engines.device_activity` is for where they do not."""
    _open: list[_OpenSpan] = field(default_factory=list)
    _forward: list[tuple[str, object, object]] = field(default_factory=list)
    _backward: list[tuple[str | None, object]] = field(default_factory=list)
    _cpu: float = 0.0
    _switches: int = 0
    _steal: float | None = None

    def prepare(self) -> None:
        """Before a step's first barrier: what takes time here would be the other ranks' wait."""
        self._open.clear()
        self._forward.clear()
        self._backward.clear()
        self._steal = steal_s()

    def start(self) -> None:
        """At a step's first barrier."""
        self._switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        self._cpu = time.process_time()
        self.clock.restart()
        self.in_step = True

    @contextlib.contextmanager
    def span(self, name: SpanName, microbatch: int | None = None) -> Iterator[_OpenSpan]:
        opened = _OpenSpan(name, microbatch, self.clock.mark())
        self._open.append(opened)
        self.work += 1
        self.doing = opened.doing
        yield opened
        opened.end = self.clock.mark()
        self.work += 1
        self.doing = "waiting for the other ranks"

    @contextlib.contextmanager
    def storage(self, doing: str) -> Iterator[None]:
        """Around file access, so that slow storage is not taken for a hang.

        `doing` must begin with reading or writing.
        """
        before, self.doing = self.doing, doing
        self.work += 1
        try:
            yield
        finally:
            self.doing = before
            self.work += 1

    def split_last_backward(self, at: Mark | None) -> None:
        """End the last backward at `at`; the time after it was DDP's all-reduce."""
        if at is not None and self._open and self._open[-1].name == "backward":
            self._open[-1].reduced_from = at

    def layer_forward(self, name: str, start: object, end: object) -> None:
        self._forward.append((name, start, end))

    def layer_backward(self, name: str | None, at: object) -> None:
        """Layer `name`'s backward begins at `at`; None ends a micro-batch's backward."""
        self._backward.append((name, at))

    def doing_on_device(self) -> str | None:
        """The first piece of work that the device has not ended; None where it has ended all."""
        reached = self.clock.has_reached
        for each in list(self._open):
            if each.end is None or not reached(each.end):
                reduces = each.reduced_from is not None and reached(each.reduced_from)
                return "allreduce" if reduces else each.doing
        return None

    def stop(self) -> StepTimes:
        """End the step at its last barrier."""
        self.clock.synchronize()
        self.in_step = False
        wall = self.clock.now_s()
        cpu = time.process_time() - self._cpu
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - self._switches
        steal = steal_s()
        spans = list(self._closed_spans())
        stolen = None if steal is None or self._steal is None else max(0.0, steal - self._steal)
        return StepTimes(wall, cpu, spans, self._layers(), switches, stolen)

    def _closed_spans(self) -> Iterator[Span]:
        """Spans that have ended, in seconds: a device's marks have no time before it is done."""
        seconds = self.clock.seconds
        for each in self._open:
            if each.end is None:
                continue
            start, end = seconds(each.start), seconds(each.end)
            reduced = end if each.reduced_from is None else min(seconds(each.reduced_from), end)
            yield Span(each.name, each.microbatch, start, reduced)
            if reduced < end:
                yield Span("allreduce", None, reduced, end)

    def _layers(self) -> dict[str, list[float]]:
        layers: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for name, start, end in self._forward:
            layers[name][0] += self.clock.seconds(end) - self.clock.seconds(start)  # type: ignore[arg-type]
        for (layer, at), (_, until) in itertools.pairwise(self._backward):
            if layer is not None:
                layers[layer][1] += self.clock.seconds(until) - self.clock.seconds(at)  # type: ignore[arg-type]
        return dict(layers)


def steal_s() -> float | None:
    """Seconds the host has taken, since boot, from a CPU this process may use, on average over
    those; None if the system does not say.

    Field 8 of each CPU's line, in clock ticks (proc(5)).
    """
    allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    try:
        with STAT.open(encoding="ascii") as stream:
            cpus = itertools.takewhile(lambda line: line.startswith("cpu"), stream)
            ticks = [int(fields[8]) for fields in map(str.split, cpus) if fields[0] in allowed]
        return statistics.fmean(ticks) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None


def peak_rss_mib() -> float:
    """The most memory this program has held, in MiB.

    VmHWM of proc(5), in KiB. Without it ru_maxrss, which is too large in a process that a larger
    one has started, because it is kept across exec.
    """
    try:
        with STATUS.open(encoding="utf-8") as stream:
            for line in stream:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) / 1024.0
    except (OSError, IndexError, ValueError):
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
