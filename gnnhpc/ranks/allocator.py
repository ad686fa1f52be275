"""A setting of the C library's allocator, so that freed tensors no longer count as memory in use.

Blocks above a threshold are mapped separately and unmapped when they are freed. By default glibc
raises the threshold to the largest block ever freed (mallopt(3), M_MMAP_THRESHOLD). A mini-batch's
activations are then allocated in the heap, in whose gaps those of the next step do not fit: a
third more memory, and another amount in every run.
"""

from __future__ import annotations

import contextlib
import ctypes

LARGE = 8 << 20
"""Bytes. Smaller blocks are allocated too often to be worth a mapping each time."""
_M_MMAP_THRESHOLD = -3


def give_back_freed_memory() -> None:
    """Return to the system what the heap holds of freed blocks (malloc_trim(3)), where it can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def map_large_blocks_separately() -> bool:
    """Map blocks of `LARGE` and more separately, from now on; false if the C library cannot."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGE))
