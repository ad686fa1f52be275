"""What a mark of a figure says when a reader points at it, on a page.

Figures are pictures; a page lays invisible marks over them, at the places that are kept here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from analysis.render.document import Mark
from analysis.render.interval_text import interval_text
from analysis.statistics.intervals import Interval

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Told = tuple[float, float, str]
"""Data coordinates of a mark, and what it says."""

_TOLD: WeakKeyDictionary[Axes, list[Told]] = WeakKeyDictionary()


def tell(axes: Axes, marks: Iterable[Told]) -> None:
    """Keep what marks of these axes say."""
    _TOLD.setdefault(axes, []).extend(marks)


def told_of_rows(
    across: Sequence[float],
    rows: pd.DataFrame,
    count: str,
    column: str,
    interval: tuple[str, str] | None,
    reference: str | None = None,
) -> Iterator[Told]:
    """Layout, count, value with its interval, and reference of the mark of each row."""
    for x, row in zip(across, rows.to_dict("records"), strict=True):
        value = float(row[column])
        shown = Interval(value, None, None)
        if interval is not None:
            low, high = (float(row[bound]) for bound in interval)
            if math.isfinite(low + high):
                shown = Interval(value, low, high)
        words = f"{row['layout']}, {int(row[count])}: {interval_text(shown)}"
        if reference is not None:
            words += f"; {reference} {interval_text(Interval(float(row[reference]), None, None))}"
        yield x, value, words


def marks_of(figure: Figure) -> tuple[Mark, ...]:
    """All that was told of a figure's axes; call when its layout is final."""
    found = []
    for axes in figure.axes:
        for x, y, text in _TOLD.get(axes, []):
            across, up = axes.transData.transform((x, y))
            place = across / figure.bbox.width, 1.0 - up / figure.bbox.height
            if all(0.0 <= share <= 1.0 for share in place):
                found.append(Mark(*place, text))
    return tuple(found)
