"""Who used the processors: this process or others, by Linux's own counts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gnnhpc.check.watches.processor_use import CHILDREN, ProcessorUseWatch, unused_s, used_s
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
    before = used_s()
    watch.look()
    assert watch.seen() is None, "one look is no time"
    # The shell ends at once: whose child it was is nobody's. Its output ends with it.
    shell = ["sh", "-c", '"$0" -c "$1" &', sys.executable, SPINNING]
    subprocess.run(shell, check=True, stdout=subprocess.PIPE)
    watch.look()
    use = watch.seen()
    assert use is not None
    assert use.by_process_s <= used_s() - before
    assert use.by_anybody_s - use.by_process_s >= 1.0 - 2 * use.resolution_s


@pytest.mark.skipif(not CHILDREN.exists(), reason="asks Linux")
def test_what_loads_its_data_is_its_own() -> None:
    """While that runs, and once it has ended."""
    watch = ProcessorUseWatch()
    watch.look()
    loading = f"{SPINNING}\nprint(flush=True)\ninput()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", loading], **pipes) as loader:
        assert loader.stdin is not None
        assert loader.stdout is not None
        loader.stdout.readline()
        watch.look()
        running = watch.seen()
        loader.stdin.write(b"\n")
    watch.look()
    ended = watch.seen()
    assert running is not None
    assert ended is not None
    assert 1.0 <= running.by_process_s <= ended.by_process_s


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
