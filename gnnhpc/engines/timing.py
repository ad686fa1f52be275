"""Times one rank's step: spans on one clock, of the CPU or the device, summed after the step."""

from __future__ import annotations

import contextlib
import itertools
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from gnnhpc.engines.clock import Clock, Mark
from gnnhpc.engines.compute_threads import ComputeThreads
from gnnhpc.engines.system_counters import delay_in, read_schedstat, steal_s

SpanName = Literal["forward", "backward", "weights", "allreduce", "optimizer", "wait"]
COMPUTING: tuple[SpanName, ...] = ("forward", "backward", "weights", "optimizer")


@dataclass(frozen=True)
class Span:
    """Seconds since the step's first barrier; `microbatch` is None for work of the whole step."""

    name: SpanName
    microbatch: int | None
    start_s: float
    end_s: float
    cpu_s: float = field(default=0.0, compare=False)
    """Processor time of the computing threads in it."""
    delay_before_s: float | None = field(default=None, compare=False)
    """How long the engine's thread had waited for a processor, since it began, when this began."""
    part: int = 0
    """Which of the stage's parts a forward or backward is of."""
    delay_after_s: float | None = field(default=None, compare=False)
    """As `delay_before_s`, when this had ended."""

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s

    def split(
        self,
        at: float,
        before: SpanName,
        after: SpanName,
        cpu_before: float,
        delay_s: float | None = None,
    ) -> list[Span]:
        """Two spans, of which the first ends and the second begins at `at`, when the engine's
        thread had waited `delay_s` for a processor."""
        return [
            Span(
                *(before, self.microbatch, self.start_s, at),
                cpu_before,
                self.delay_before_s,
                self.part,
                delay_s,
            ),
            Span(
                *(after, None, at, self.end_s, self.cpu_s - cpu_before),
                delay_after_s=self.delay_after_s,
            ),
        ]


@dataclass(slots=True)
class OpenSpan:
    name: SpanName
    microbatch: int | None
    start: Mark
    cpu_before_s: float
    schedstat_before: bytes = b""
    """Of the engine's thread, for `delay_in`: read here, and understood after the step."""
    part: int = 0
    end: Mark | None = None
    cpu_s: float = 0.0
    schedstat_after: bytes = b""
    reduced_from: Mark | None = None
    """Where the all-reduce began: DDP's is inside a step's last backward."""
    cpu_until_reduced_s: float = 0.0
    schedstat_reduced: bytes = b""

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
    """Processor time of the computing threads in forward, backward and optimizer."""
    spans: list[Span]
    layers: dict[str, list[float]]
    """Forward and backward seconds of each layer, summed over micro-batches."""
    involuntary_switches: int
    steal_s: float | None
    waiting_cpu_s: float | None = None
    """Processor time of the computing threads in the rest of the step, as of spinning workers;
    None where a device computes, and `cpu_s` is that of the whole step."""
    other_cpu_s: float | None = None
    """Processor time of this process's other threads, which transfer and load."""
    run_delay_s: float | None = None
    """How long the computing threads could have run and had no processor."""
    threads_used: int | None = None
    """How many threads computed."""
    cpus: dict[int, frozenset[int]] = field(default_factory=dict)
    """Which CPUs each computing thread may use, by thread."""
    come_and_go: bool = False
    """Whether the threads that compute begin and end within the step."""
    recompute_s: float | None = 0.0
    """Of backward, how long forwards were computed again; None where parts are not timed."""
    arrival_s: float | None = None
    """When this stage's gradients were ready for the all-reduce; None without replicas."""

    def total(self, name: SpanName, part: int | None = None) -> float:
        """Seconds of all such spans, or of those of one part of the stage."""
        return sum(
            span.seconds
            for span in self.spans
            if span.name == name and (part is None or span.part == part)
        )

    def total_backward(self, part: int | None = None) -> float:
        """Of both halves, where gradients of weights are computed apart."""
        return self.total("backward", part) + self.total("weights", part)

    @property
    def compute_s(self) -> float:
        return sum(span.seconds for span in self.spans if span.name in COMPUTING)

    @property
    def busy_s(self) -> float:
        return sum(span.seconds for span in self.spans if span.name != "wait")

    def wait_for_replicas(self, last_arrival_s: float) -> None:
        """Count the all-reduce until the last replica had come as waiting, not as all-reduce.

        `last_arrival_s` is the largest `arrival_s` of the stage's replicas: each counts from the
        barrier that they left together, so the ranks need no common clock and no message more.
        """
        if self.arrival_s is None:
            return
        for number, span in enumerate(self.spans):
            if span.name == "allreduce" and span.start_s == self.arrival_s:
                at = min(max(last_arrival_s, span.start_s), span.end_s)
                self.spans[number : number + 1] = [
                    part for part in span.split(at, "wait", "allreduce", 0.0) if part.seconds > 0
                ]
                return


class _Around(AbstractContextManager[None]):
    """A span of a timer: a class, as a generator's context takes four times as long to make, of
    which a micro-batch has three."""

    def __init__(self, timer: StepTimer, name: SpanName, microbatch: int | None, part: int) -> None:
        self._timer, self._of = timer, (name, microbatch, part)

    def __enter__(self) -> None:
        self._opened = self._timer.begin(*self._of)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._timer.end(self._opened)


@dataclass
class StepTimer:
    """Collects the spans of one step at a time; one a rank."""

    clock: Clock
    work: int = 0
    """How many spans have begun or ended since the start; the watchdog checks that it grows."""
    _doing: str | OpenSpan = "starting"
    in_step: bool = False
    """Between a step's barriers."""
    spins: ClassVar[bool] = False
    """Processor seconds show work; `gnnhpc.engines.device_activity` is for where they do not."""
    storage_cpu_s: float = 0.0
    """Processor time around file access since the start."""
    threads: ComputeThreads = field(default_factory=ComputeThreads)
    on_length: Callable[[], None] = lambda: None
    """Called just after a step's length is read."""
    _open: list[OpenSpan] = field(default_factory=list)
    _forward: list[tuple[str, Mark, Mark]] = field(default_factory=list)
    _backward: list[tuple[str | None, Mark]] = field(default_factory=list)
    tells_recomputed: bool = True
    """Whether forwards that are computed again are told to it."""
    _recomputed: list[tuple[Mark, Mark]] = field(default_factory=list)
    _cpu: float = 0.0
    _process_cpu: float = 0.0
    _switches: int = 0
    _steal: float | None = None

    @property
    def doing(self) -> str:
        """In words, as the watchdog says it."""
        now = self._doing
        return now if isinstance(now, str) else now.doing

    @doing.setter
    def doing(self, now: str) -> None:
        self._doing = now

    def prepare(self) -> None:
        """Before a step's first barrier: what takes time here would be the other ranks' wait."""
        self._open.clear()
        self._forward.clear()
        self._backward.clear()
        self._recomputed.clear()
        self._steal = steal_s()
        self.threads.look()

    def start(self) -> None:
        """At a step's first barrier."""
        self._switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        self._process_cpu, self._cpu = time.process_time(), self.threads.cpu_s()
        self.clock.restart()
        self.in_step = True

    def span(
        self, name: SpanName, microbatch: int | None = None, part: int = 0
    ) -> AbstractContextManager[None]:
        """Around what takes the time; one that ends by an exception stays open."""
        return _Around(self, name, microbatch, part)

    def begin(self, name: SpanName, microbatch: int | None = None, part: int = 0) -> OpenSpan:
        """A span's processor time is read within its marks, so that it is never longer."""
        # A wait may wait: its thread's for a processor is no other.
        schedstat = b"" if name == "wait" else read_schedstat()
        start = self.clock.mark()
        opened = OpenSpan(name, microbatch, start, self.threads.cpu_s(), schedstat, part)
        self._open.append(opened)
        self.work += 1
        self._doing = opened
        return opened

    def end(self, opened: OpenSpan) -> None:
        opened.cpu_s = self.threads.cpu_s() - opened.cpu_before_s
        opened.end = self.clock.mark()
        if opened.name != "wait":
            opened.schedstat_after = read_schedstat()
        self.work += 1
        self._doing = "waiting for the other ranks"

    def turn(self, opened: OpenSpan, microbatch: int) -> OpenSpan:
        """End a span, and begin another of its kind for the next micro-batch at that moment."""
        self.end(opened)
        following = self.begin(opened.name, microbatch)
        assert opened.end is not None
        following.start = opened.end
        return following

    @contextlib.contextmanager
    def storage(self, doing: str) -> Iterator[None]:
        """Around file access, so that slow storage is not taken for a hang, and drawing batches.

        `doing` begins with reading or writing where files may take long.
        """
        before, self.doing = self.doing, doing
        cpu_before_s = time.thread_time()
        self.work += 1
        try:
            yield
        finally:
            self.storage_cpu_s += time.thread_time() - cpu_before_s
            self.doing = before
            self.work += 1

    def arrive(self) -> None:
        """This stage's gradients are ready; what follows in the open span is their all-reduce."""
        if self._open and self._open[-1].end is None:
            opened = self._open[-1]
            opened.cpu_until_reduced_s = self.threads.cpu_s() - opened.cpu_before_s
            opened.reduced_from = self.clock.mark()
            opened.schedstat_reduced = read_schedstat()

    def layer_forward(self, name: str, start: Mark, end: Mark) -> None:
        self._forward.append((name, start, end))

    def layer_backward(self, name: str | None, at: Mark) -> None:
        """Layer `name`'s backward begins at `at`; None ends a micro-batch's backward."""
        self._backward.append((name, at))

    def layers_forward(self, names: Sequence[str], marks: Sequence[Mark]) -> None:
        """Each begins at its mark, and ends at the next one's."""
        self._forward.extend(zip(names, marks, marks[1:], strict=False))

    def layers_backward(self, names: Sequence[str], marks: Sequence[Mark]) -> None:
        """Each layer's backward begins at its mark."""
        self._backward.extend(zip(names, marks, strict=False))

    @property
    def layer_going_back(self) -> str | None:
        """The layer whose backward began last; None outside a micro-batch's backward."""
        return self._backward[-1][0] if self._backward else None

    def recomputed(self, start: Mark, end: Mark) -> None:
        """A forward was computed again; its layers' marks have been given as backward's."""
        self._recomputed.append((start, end))

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
        # Before the device is asked again, which takes its driver some time.
        wall = self.clock.now_s()
        self.on_length()
        self.in_step = False
        self.clock.synchronize()
        # Between the readings of the process: what lies between two would be less than no other's.
        cpu = self.threads.cpu_s() - self._cpu
        process_cpu = time.process_time() - self._process_cpu
        switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - self._switches
        use = self.threads.since_look()
        steal = steal_s()
        stolen = None if steal is None or self._steal is None else max(0.0, steal - self._steal)
        spans = list(self._closed_spans())
        reduced = [each.reduced_from for each in self._open if each.reduced_from is not None]
        arrival = self.clock.seconds(reduced[-1]) if reduced else None
        # Spans of a device's clock say nothing of when the host's threads computed.
        computing = sum(span.cpu_s for span in spans if span.name in COMPUTING)
        waiting = None if self.clock.on_device else cpu - computing
        return StepTimes(
            wall_s=wall,
            cpu_s=cpu if waiting is None else computing,
            spans=spans,
            layers=self._layers(arrival),
            involuntary_switches=switches,
            steal_s=stolen,
            waiting_cpu_s=waiting,
            other_cpu_s=process_cpu - cpu,
            run_delay_s=use.run_delay_s,
            threads_used=use.used,
            cpus=use.cpus,
            come_and_go=self.threads.come_and_go,
            recompute_s=self._recompute_s(),
            arrival_s=arrival,
        )

    def _recompute_s(self) -> float | None:
        if not self.tells_recomputed:
            return None
        return sum((self._between(*marks) for marks in self._recomputed), 0.0)

    def _between(self, start: Mark, end: Mark) -> float:
        return self.clock.seconds(end) - self.clock.seconds(start)

    def _closed_spans(self) -> Iterator[Span]:
        """Spans that have ended, in seconds: a device's marks have no time before it is done."""
        seconds = self.clock.seconds
        for each in self._open:
            if each.end is None:
                continue
            span = Span(
                each.name,
                each.microbatch,
                seconds(each.start),
                seconds(each.end),
                each.cpu_s,
                delay_in(each.schedstat_before),
                each.part,
                delay_in(each.schedstat_after),
            )
            at = None if each.reduced_from is None else seconds(each.reduced_from)
            if at is None or not span.start_s < at < span.end_s:
                yield span
            else:
                delay_s = delay_in(each.schedstat_reduced)
                yield from span.split(at, span.name, "allreduce", each.cpu_until_reduced_s, delay_s)

    def _layers(self, arrival: float | None) -> dict[str, list[float]]:
        """A backward ends where the stage's gradients are ready: the rest is their all-reduce.

        Layers without parameters may come after that.
        """
        layers: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for name, start, end in self._forward:
            layers[name][0] += self._between(start, end)
        marks = [(layer, self.clock.seconds(at)) for layer, at in self._backward]
        for (layer, at), (_, until) in itertools.pairwise(marks):
            if layer is not None:
                end = until if arrival is None else min(until, max(at, arrival))
                layers[layer][1] += end - at
        return dict(layers)
