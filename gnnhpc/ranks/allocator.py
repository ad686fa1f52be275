"""How the C library gives out large blocks: a run's memory is what it holds, not what it once held.

By default glibc raises the size from which a block gets pages of its own to the largest block ever
freed, so that a mini-batch's activations come to lie in the heap, in whose gaps the next step's
do not fit (mallopt(3), M_MMAP_THRESHOLD): a third more memory, and another amount in every run.
"""

from __future__ import annotations

import ctypes

LARGE = 8 << 20
"""Bytes. Smaller blocks come and go too often to be worth new pages each time."""
_M_MMAP_THRESHOLD = -3


def give_large_blocks_their_own_pages() -> bool:
    """For this process from now on; false where the C library has no such setting."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGE))
