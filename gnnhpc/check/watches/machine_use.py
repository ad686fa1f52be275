"""Watches what a rank computes with in each step: threads, the CPUs they may use, kernels."""

from __future__ import annotations

import os
import resource
import sys
import tracemalloc
from collections import Counter
from dataclasses import dataclass, field

import torch

from gnnhpc.check.watches.faults import Faults
from gnnhpc.engines.system_counters import resident_mib
from gnnhpc.engines.timing import StepTimes
from gnnhpc.kernels.calls import counted
from gnnhpc.records.schema import Phase, StepRecord

Calls = Counter[tuple[str, str]]
MEMORY_SHARE, MEMORY_MIB = 0.1, 64.0
"""By how much readings of a process's memory may be behind it."""


@dataclass
class MachineUse:
    """Looks before each step's first barrier, after its last, and once its record is written."""

    threads: dict[int, str] = field(default_factory=dict)
    """Numbers of threads that torch was set to, each with the first step that had it."""
    threads_used: Counter[int] = field(default_factory=Counter)
    """How many training steps so many threads computed in, without warm-up."""
    cpus: list[int] = field(default_factory=lambda: sorted(os.sched_getaffinity(0)))
    """The fewest that all computing threads together could use in a step."""
    lost_cpus: Faults = field(default_factory=Faults)
    calls: dict[Phase, Calls] = field(default_factory=dict)
    """Of kernels in the first step of each phase, by code and function."""
    other_calls: Faults = field(default_factory=Faults)
    memory: Faults = field(default_factory=Faults)
    peak_is_of_run: bool = True
    """Whether peaks of memory are of the steps, and not of what a self-check needed before."""
    slowed_by: dict[str, None] = field(default_factory=dict)
    """Modes for finding mistakes that were on, in the order they were first seen in."""
    _held_mib: float | None = None
    """Since the last step was stopped, before its record; None where the system does not say."""
    _most_held_mib: float = 0.0
    _allowed: dict[int, frozenset[int]] = field(
        default_factory=lambda: {os.getpid(): frozenset(os.sched_getaffinity(0))}
    )
    """Which CPUs each thread could use when it was first looked at."""
    _threads_before: int = 0
    _calls_before: Calls = field(default_factory=Counter)
    _calls_after: Calls | None = None

    def before_step(self) -> None:
        self._threads_before = torch.get_num_threads()
        self._calls_before = counted()

    def step_stopped(self) -> None:
        """Before the record is made: while it is written other threads may take memory."""
        self._held_mib = resident_mib()

    def observe(self, record: StepRecord, times: StepTimes) -> None:
        where = f"{record.phase} step {record.step}"
        for number in (self._threads_before, torch.get_num_threads()):
            self.threads.setdefault(number, where)
        if times.threads_used is not None and record.phase == "train" and not record.warmup:
            self.threads_used[times.threads_used] += 1
        self.slowed_by |= dict.fromkeys(debugging_modes())
        self._compare_cpus(times.cpus, where)
        self._compare_calls(record.phase, where)
        if record.peak_rss_mib is not None:
            self._compare_memory(record.peak_rss_mib, where)

    def _compare_cpus(self, cpus: dict[int, frozenset[int]], where: str) -> None:
        for thread, now in cpus.items():
            lost = self._allowed.setdefault(thread, now) - now
            if lost:
                self.lost_cpus.add(
                    "a computing thread had fewer CPUs than before",
                    f"{where}: CPUs {sorted(now)} without {sorted(lost)}",
                )
        together = sorted(frozenset().union(*cpus.values()))
        if 0 < len(together) < len(self.cpus):
            self.cpus = together

    def _compare_memory(self, peak_mib: float, where: str) -> None:
        """A peak is no less than what was held just before it was read, and no more than this
        process ever held."""
        held = self._held_mib
        if held is None:
            return
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
        # Counters of pages are kept a thread, and late.
        least = max(held, self._most_held_mib) * (1 - MEMORY_SHARE) - MEMORY_MIB
        if not least <= peak_mib <= most * (1 + MEMORY_SHARE) + MEMORY_MIB:
            self.memory.add(
                "a peak of memory that cannot be",
                f"{where}: {peak_mib:.1f} MiB, {max(held, self._most_held_mib):.1f} MiB were held "
                f"and {most:.1f} MiB at most",
            )
        self._most_held_mib = max(held, self._most_held_mib)

    def _compare_calls(self, phase: Phase, where: str) -> None:
        before, after = self._calls_before, counted()
        if self._calls_after is not None and before != self._calls_after:
            self.other_calls.add(
                "kernels called between steps",
                f"before {where}: {_difference(before - self._calls_after, Counter())}",
            )
        self._calls_after = after
        called = after - before
        expected = self.calls.setdefault(phase, called)
        if called != expected:
            self.other_calls.add(
                f"kernels called otherwise than in the first {phase} step",
                f"{where}: {_difference(called, expected)}",
            )


def debugging_modes() -> list[str]:
    """What is on in this process that slows every step, to find mistakes or to profile."""
    modes = {
        "torch's anomaly detection": torch.is_anomaly_enabled(),
        "torch's profiler": torch.autograd._profiler_enabled(),
        "a mode that torch dispatches by": torch._C._len_torch_dispatch_stack() > 0,
        "a mode that torch's functions go through": torch._C._len_torch_function_stack() > 0,
        "a tracer": sys.gettrace() is not None,
        "a profiler": sys.getprofile() is not None,
        "a trace of memory": tracemalloc.is_tracing(),
        "Python's development mode": sys.flags.dev_mode,
    }
    return [name for name, on in modes.items() if on]


def _difference(found: Calls, expected: Calls) -> str:
    return ", ".join(
        f"{function} of {code} {found[code, function]} times where {expected[code, function]}"
        for code, function in sorted(found.keys() | expected.keys())
        if found[code, function] != expected[code, function]
    )
