"""The flags of a row of the summary: of how many of the cells that it is made of."""

from __future__ import annotations

from collections import Counter

from analysis.summary.configurations import Configuration

PHASE_OF_FLAG = {"drift": "train"}
"""Flags that an audit draws from one phase alone; others are of the whole cell."""


def counted_flags(row: Configuration) -> list[str]:
    """Flags of the cells that count, as `drift 2 of 5`, without those of another phase.

    What is flagged in cells that were left out stands in the row's note.
    """
    raised = Counter(
        flag
        for flags in row.used["flags"]
        for flag in dict.fromkeys(flags.split(";"))
        if flag and PHASE_OF_FLAG.get(flag, row.phase) == row.phase
    )
    return [f"{flag} {cells} of {len(row.used)}" for flag, cells in sorted(raised.items())]
