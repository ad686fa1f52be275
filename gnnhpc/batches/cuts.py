"""A range of numbers cut into parts, as for replicas and micro-batches."""

from __future__ import annotations

import itertools


def cut_evenly(whole: range, parts: int) -> list[range]:
    """As equal as can be."""
    ends = [whole.start + len(whole) * part // parts for part in range(parts + 1)]
    return [range(first, stop) for first, stop in itertools.pairwise(ends)]
