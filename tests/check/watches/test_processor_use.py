"""Who used the processors: this process or others, by Linux's own counts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gnnhpc.check.watches.processor_use import ProcessorUseWatch, unused_s
from gnnhpc.engines import system_counters

SPINNING = "import time; end = time.process_time() + 1.0\nwhile time.process_time() < end: pass"


def test_what_is_not_used_is_that_of_the_allowed_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = tmp_path / "stat"
    stat.write_text(
        "cpu  9 9 9 9 9 9 9 9 9 9\n"
        "cpu0 1000 1 1 100 20 3 4 50 7 8\n"
        "cpu1 1000 1 1 200 0 0 0 0 7 8\n"
        "cpu2 1000 1 1 400 0 0 0 0 7 8\n"
        "intr 5\n"
    )
    monkeypatch.setattr(system_counters, "STAT", stat)
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert unused_s({0, 2}) == pytest.approx((177 + 400) * tick)
    # A processor that the system does not list, or a file of another form.
    assert unused_s({0, 3}) is None
    stat.write_text("cpu0 a b c d e f g h i\n")
    assert unused_s({0}) is None
    stat.unlink()
    assert unused_s({0}) is None
    watch = ProcessorUseWatch()
    watch.look()
    watch.look()
    assert watch.seen() is None


def test_another_process_is_seen_and_this_one_is_told_apart() -> None:
    """However busy the machine is: others use what the child does, at least."""
    watch = ProcessorUseWatch()
    before = time.process_time()
    watch.look()
    assert watch.seen() is None, "one look is no time"
    subprocess.run([sys.executable, "-c", SPINNING], check=True)
    watch.look()
    use = watch.seen()
    assert use is not None
    assert use.by_process_s <= time.process_time() - before
    assert use.by_anybody_s - use.by_process_s >= 1.0 - 2 * use.resolution_s


def test_what_this_process_uses_is_its_own() -> None:
    watch = ProcessorUseWatch()
    watch.look()
    end = time.process_time() + 1.0
    while time.process_time() < end:
        pass
    watch.look()
    use = watch.seen()
    assert use is not None
    assert use.by_process_s >= 1.0
    assert use.by_anybody_s >= 1.0 - 2 * use.resolution_s
