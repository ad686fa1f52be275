"""Freed memory goes back, so that a peak says what was held at once."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from gnnhpc.distributed import allocator

# Ten large blocks, each with a smaller one behind it that stays; then the large ones are freed.
# In a heap they leave gaps that remain this process's.
GAPS = """
import ctypes, sys
from gnnhpc.distributed.allocator import LARGE, map_large_blocks_separately
if sys.argv[1] == "set":
    assert map_large_blocks_separately()
c = ctypes.CDLL(None)
c.malloc.restype, c.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def block(size):
    address = c.malloc(ctypes.c_size_t(size))
    ctypes.memset(address, 1, size)
    return address
c.free(block(30 << 20))
large = []
for _ in range(10):
    large.append(block(LARGE))
    block(200_000)
for address in large:
    c.free(address)
for line in open("/proc/self/status"):
    if line.startswith("VmRSS:"):
        print(int(line.split()[1]) // 1024)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_what_was_freed_is_not_held() -> None:
    held = {
        how: int(subprocess.check_output([sys.executable, "-c", GAPS, how], text=True))
        for how in ("set", "default")
    }
    assert held["default"] - held["set"] > 70


# Pages that are cleared for blocks of some MiB that are allocated, written and freed ten times.
AGAIN = """
import ctypes, resource, sys
from gnnhpc.distributed import allocator
setting, mib, blocks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if setting != "default":
    assert getattr(allocator, setting)()
c = ctypes.CDLL(None)
c.malloc.restype, c.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def block():
    addresses = [c.malloc(ctypes.c_size_t(mib << 20)) for _ in range(blocks)]
    for address in addresses:
        ctypes.memset(address, 1, mib << 20)
    for address in addresses:
        c.free(address)
block()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    block()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
@pytest.mark.parametrize(
    ("setting", "mib", "blocks"),
    [("keep_freed_memory", 100, 1), ("map_large_blocks_separately", 1, 20)],
)
def test_what_was_freed_is_there_at_once(setting: str, mib: int, blocks: int) -> None:
    """The graph of a step, and the micro-batches of a step of images."""
    # glibc would adapt its thresholds by itself, were one of them not set for images.
    other = {"MALLOC_MMAP_THRESHOLD_": str(8 << 20)} if blocks > 1 else {}
    cleared = {
        how: int(
            subprocess.check_output(
                [sys.executable, "-c", AGAIN, how, str(mib), str(blocks)],
                text=True,
                env=os.environ | other,
            )
        )
        for how in (setting, "default")
    }
    assert cleared[setting] < 100 < cleared["default"]


def test_without_the_setting_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: object())
    assert not allocator.map_large_blocks_separately()
    assert not allocator.keep_freed_memory()
