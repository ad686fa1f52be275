"""What the first screen of a report answers: the speedups, as a figure and as one table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis.figures.catalog import Figures
from analysis.render.document import Beside, Block, TableBlock, Text, frame_table
from analysis.render.interval_text import join_intervals
from analysis.report.settings_columns import ROW_KEYS, with_study
from analysis.statistics.intervals import ONE_RUN, Interval
from analysis.statistics.student_t import CONFIDENCE

_COLUMNS = {
    **ROW_KEYS,
    "mean_s": "step time (s)",
    "speedup": "speedup",
    "bound": "bound",
    "remarks": "remarks",
}
"""Seven at most, which fit beside a figure."""


def headline(summary: pd.DataFrame, figures: Figures) -> Iterator[Block]:
    """What was decided in a sentence, then the speedup figures beside the table of training."""
    train = summary[summary["phase"] == "train"] if len(summary) else summary
    if train.empty:
        return
    compared = train[train["effect"].notna()]
    if len(compared):
        yield Text(
            f"{len(compared)} configurations are compared with their baseline "
            f"({', '.join(dict.fromkeys(map(str, compared['baseline'])))}). "
            + _decided(compared["effect"])
        )
    else:
        yield Text("No configuration has a valid baseline to be compared with.")
    yield Beside(tuple(figures.pictures_of("speedup", "epoch-speedup")), headline_table(train))


def headline_table(train: pd.DataFrame) -> TableBlock:
    """A row a configuration: step time, speedup, bound, and whether it may be believed."""
    rows = join_intervals(with_study(train)).assign(
        remarks=[_remarks(row) for row in train.to_dict("records")],
    )
    for name in ("mean_s", "speedup", "bound"):
        rows[name] = rows[name].map(_without_interval).astype(object)
    return frame_table(
        rows,
        "Training: seconds a mini-batch, and speedup of samples a second, with "
        f"{CONFIDENCE:.0%} intervals over runs where there are several",
        _COLUMNS,
        keys=len(ROW_KEYS),
    )


def _without_interval(value: Any) -> Interval | None:
    """A number that has no interval, so that it is shown with few digits."""
    if isinstance(value, Interval):
        return value
    return None if pd.isna(value) else Interval(float(value), None, None)


def _remarks(row: dict[Any, Any]) -> str:
    if not row["n"]:
        return "nothing that counts"
    flags = str(row["flags"] or "").replace(";", ", ")
    words = [] if row["valid"] else ["not valid"]
    words += [flags] if flags else []
    if row["cells_used"] == 1:
        words.append("one run")
    elif row["speedup_from"] == ONE_RUN:
        words.append("baseline of one run")
    return "; ".join(words)


def _decided(effects: pd.Series[str]) -> str:
    """How many configurations differ from their baseline, and how, in a sentence."""
    kinds = {
        "faster": effects.str.startswith("faster"),
        "slower": effects.str.startswith("slower"),
        "without a difference shown (the interval contains 1)": effects.str.startswith("no diff"),
        "without an interval, so nothing is said of a difference": effects.str.contains(
            "no interval"
        ),
    }
    counts = [f"{int(found.sum())} {words}" for words, found in kinds.items() if found.any()]
    return f"Found: {', '.join(counts)}."
