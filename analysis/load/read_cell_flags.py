"""Checks that flag a cell, as rows of `RunData.checks`, and counts of flags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import pandas as pd

from analysis.load.run_folders import StoredCell
from gnnhpc.records.schema import FLAGGED

DAMAGED, EQUIVALENT, NOT_COMPARABLE = "damaged", "equivalent-cells", "not-comparable"
"""Names of the checks that loading adds to those of the results."""


class Raised(NamedTuple):
    """A check that flags a cell."""

    cell: str
    name: str
    verdict: str
    detail: str


def raised_by_results(stored: Iterable[StoredCell]) -> Iterator[Raised]:
    """The checks of each result that flag the cell; of a damaged cell the damage alone."""
    for cell in stored:
        if cell.used and cell.used.damage:
            yield Raised(cell.name, DAMAGED, "invalid", cell.used.damage)
        elif cell.used and cell.used.result:
            for check in cell.used.result.audit:
                if check.verdict in FLAGGED:
                    yield Raised(cell.name, check.name, check.verdict, check.detail)


def flags_of_cells(checks: pd.DataFrame, cells: Iterable[str]) -> list[str]:
    """The names of the checks that flag each cell, joined by semicolons."""
    # As gnnhpc.records.schema.Check.flag: a check without a verdict is no finding of its kind.
    named = checks["name"].where(checks["verdict"] != "inconclusive", "inconclusive")
    flags = named.groupby(checks["cell"]).agg(lambda mine: ";".join(dict.fromkeys(mine)))
    return [str(flags.get(cell, "")) for cell in cells]


def count_flags(flags: Iterable[str], but: Collection[str] = ()) -> list[str]:
    """Of each flag how many cells have it, such as `drift 2 of 5`, from the cells' flags."""
    cells = [set(str(words).split(";")) - {"", *but} for words in flags]
    counts = Counter(flag for mine in cells for flag in mine)
    return [f"{flag} {count} of {len(cells)}" for flag, count in sorted(counts.items())]
