"""Settings of the C library's allocator: whether freed memory goes back to the system, or stays.

glibc maps blocks above a threshold separately and unmaps them when they are freed (mallopt(3),
M_MMAP_THRESHOLD, 32 MiB at most). Activations of graphs are larger: mapped anew in each step, the
system clears every page of them, which took up to half of a step. Kept in the heap, they are there
at once, for up to a third more memory. Activations of images are smaller, and gain nothing in the
heap: theirs are mapped separately, from a lower threshold on, and a peak says what was held at
once. Those of a micro-batch may be smaller still, and lie in the heap: of its free end as much is
kept as a step's micro-batches take (M_TRIM_THRESHOLD, 128 KiB by default).
"""

from __future__ import annotations

import contextlib
import ctypes

LARGE = 8 << 20
"""Bytes. Smaller blocks are allocated too often to be worth a mapping each time."""
_HEAP_END = 32 << 20
_M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_TRIM_THRESHOLD = -3, -4, -1
_NEVER = 2**31 - 1


def give_back_freed_memory() -> None:
    """Return to the system what the heap holds of freed blocks (malloc_trim(3)), where it can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def map_large_blocks_separately() -> bool:
    """Map blocks of `LARGE` and more separately, from now on; false if the C library cannot."""
    return _set((_M_MMAP_THRESHOLD, LARGE), (_M_TRIM_THRESHOLD, _HEAP_END))


def keep_freed_memory() -> bool:
    """Keep freed blocks of any size for the next ones, from now on; false if it cannot be set."""
    return _set((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _NEVER))


def _set(*options: tuple[int, int]) -> bool:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all(mallopt(name, value) for name, value in options)
