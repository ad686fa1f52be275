"""Freed memory is there at once for the next step, so that no page is cleared again."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

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

    def cleared(how: str) -> int:
        command = [sys.executable, "-c", AGAIN, how, str(mib), str(blocks)]
        return int(subprocess.check_output(command, text=True, env=os.environ | other))

    assert cleared(setting) < 100 < cleared("default")
