"""The text of `submit --precision`: how many repeats each configuration needs."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.printing.status_table import console, new_table
from jobs.state.needed_repeats import Needed, Spread


def print_precision(needed: Sequence[Needed], precision: float) -> None:
    """A row a configuration, and what to do."""
    known = [row for row in needed if row.step is not None or row.speedup is not None]
    if not known:
        print(
            "no configuration has two valid runs, and one run says nothing about how runs differ: "
            "--extend --set repeats=3, and ask again when they have ended"
        )
        return
    table = new_table("array", "m", "runs", "differ by", "repeats", "speedups differ by", "repeats")
    for row in needed:
        runs = str(row.step.runs) if row.step else "1 or none"
        cells = (*_texts(row.step), *_texts(row.speedup))
        table.add_row(row.array, str(row.microbatches), runs, *cells)
    console().print(table)
    most = [row.repeats for row in known]
    if None in most:
        print(f"a precision of {precision:.2%}: no number of repeats that is worth trying")
        return
    repeats = max(count for count in most if count is not None)
    print(
        f"a precision of {precision:.2%} needs {repeats} repeats, as far as these runs tell: "
        f"--extend --set repeats={repeats}, and ask again when they have ended"
    )


def _texts(spread: Spread | None) -> tuple[str, str]:
    if spread is None:
        return "", ""
    return f"{spread.share:.2%}", "" if spread.repeats is None else str(spread.repeats)
