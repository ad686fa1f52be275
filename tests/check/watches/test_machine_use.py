"""A peak of memory is held against what the process holds, and ever held."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from gnnhpc.check.watches.machine_use import MEMORY_MIB, MachineUse
from gnnhpc.engines.system_counters import peak_rss_mib, resident_mib
from gnnhpc.engines.timing import StepTimes
from tests.tools.step_records import step_record

TIMES = StepTimes(0.1, 0.0, [], {}, 0, None)
RECORD = step_record(1.0, step=2)


def told(peak: Callable[[], float | None] = peak_rss_mib) -> list[str]:
    """Of a peak that is read so, while another thread takes memory."""
    held = np.ones(40_000_000)
    use = MachineUse()
    use.before_step()
    use.step_stopped()
    read = peak()
    assert read is not None
    taken = np.ones(80_000_000)
    assert min(held.nbytes, taken.nbytes) > 2 * MEMORY_MIB * 2**20
    use.observe(dataclasses.replace(RECORD, peak_rss_mib=read), TIMES)
    return use.memory.told()


def test_memory_that_is_taken_while_a_record_is_written_accuses_nobody() -> None:
    assert told() == []


def test_a_peak_below_what_is_held_or_above_what_ever_was_is_told() -> None:
    for peak in (lambda: (resident_mib() or 0.0) / 2, lambda: 4 * (peak_rss_mib() or 0.0)):
        (fault,) = told(peak)
        assert fault.startswith("a peak of memory that cannot be in 1 steps")
