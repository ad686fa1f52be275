"""Checks that flag a cell, as rows of `RunData.checks`, and counts of flags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import NamedTuple

DAMAGED, EQUIVALENT, NOT_COMPARABLE = "damaged", "equivalent-cells", "not-comparable"
"""Names of the checks that loading adds to those of the results."""


class Raised(NamedTuple):
    cell: str
    name: str
    verdict: str
    detail: str


def count_flags(flags: Iterable[str], but: Collection[str] = ()) -> list[str]:
    """Of each flag how many cells have it, such as `drift 2 of 5`, from the cells' flags."""
    cells = [set(str(words).split(";")) - {"", *but} for words in flags]
    counts = Counter(flag for mine in cells for flag in mine)
    return [f"{flag} {count} of {len(cells)}" for flag, count in sorted(counts.items())]
