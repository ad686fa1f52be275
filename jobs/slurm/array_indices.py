"""Lists of array indices as Slurm writes them: `3,5-7`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gnnhpc.core.errors import InputError

_RANGE = re.compile(r"^(\d+)(?:-(\d+)(?::([1-9]\d*))?)?$")


def parse_indices(text: str, where: str = "--index") -> list[int]:
    """`3,5-7` as [3, 5, 6, 7], `0-6:2` as [0, 2, 4, 6]; raises InputError for anything else."""
    indices: set[int] = set()
    for part in text.split(","):
        match = _RANGE.match(part.strip())
        if match is None:
            raise InputError(where, None, repr(text), "indices and ranges, such as 3,5-7")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first > 10_000_000:
            raise InputError(where, None, repr(part), "a range from low to high")
        indices.update(range(first, last + 1, int(match[3] or 1)))
    return sorted(indices)


def format_indices(indices: Iterable[int]) -> str:
    """[3, 5, 6, 7] as `3,5-7`."""
    parts: list[str] = []
    ordered = sorted(set(indices))
    start = 0
    for position in range(len(ordered)):
        last = position + 1 == len(ordered) or ordered[position + 1] != ordered[position] + 1
        if last:
            first, final = ordered[start], ordered[position]
            parts.append(str(first) if first == final else f"{first}-{final}")
            start = position + 1
    return ",".join(parts)
