"""The first section of a report: what the run is worth, what it found, and what to do next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis.figures.draw_figures import Figures
from analysis.load.flags import DAMAGED
from analysis.load.run_data import RunData
from analysis.render.document import (
    Beside,
    Block,
    Folded,
    Section,
    Table,
    Text,
    page_table,
    rows_table,
)
from analysis.render.number_text import join_intervals
from analysis.report.run_facts import equivalence, live_code, validation, what_was_run
from analysis.report.texts import advice_of
from analysis.statistics.intervals import ONE_RUN, Interval
from analysis.statistics.power import CONFIDENCE
from analysis.summary.settings_in_words import ROW_KEYS, with_study
from analysis.summary.summary_table import Summary

_WITHOUT_NUMBERS = ("invalid", "failed", "unfinished", "not started")
_FLAGS_OF_ROWS = ("above-bound-unexplained", "above-bound", "above-ideal", "only-warm-up")


def first_page_section(found: Summary, figures: Figures | None = None) -> Section:
    """The verdict, the speedups, what was checked, each flag with advice, and cells without
    numbers; where the numbers come from is folded.
    """
    run, summary = found.run, found.table
    checked = [*map(Text, run.notes), *validation(run), *equivalence(run), *live_code(run)]
    blocks: list[Block] = [
        *_verdict(run.cells),
        *(text for text in checked if text.kind == "bad"),
        *_headline(summary, figures or Figures()),
        *(text for text in checked if text.kind != "bad"),
        *_flags(run, summary),
        *_cells_without_numbers(run),
        *_not_comparable(run.cells),
        Folded("What was run, and what numbers depend on", tuple(what_was_run(run))),
    ]
    return Section("verdict", "Verdict", tuple(blocks))


def _verdict(cells: pd.DataFrame) -> Iterator[Text]:
    """How many cells ended how; every cell is counted once."""
    counts = Counter(_how_it_ended(cell) for cell in cells.to_dict("records"))
    valid = counts["clean"] + counts["flagged"]
    parts = [f"{valid} of {len(cells)} cells valid"]
    parts += [f"{counts['flagged']} of them flagged"] if counts["flagged"] else []
    parts += [f"{counts[kind]} {kind}" for kind in _WITHOUT_NUMBERS if counts[kind]]
    kind = "warning" if counts["flagged"] or valid < len(cells) else "good"
    yield Text(", ".join(parts) + ".", "bad" if counts["invalid"] or not valid else kind)
    waiting = [f"{counts[name]} {name}" for name in ("unfinished", "not started") if counts[name]]
    if waiting:
        yield Text(
            f"This report is preliminary: {' and '.join(waiting)}. `gnnhpc status RUN` shows what "
            "still runs; `gnnhpc rerun RUN --missing` submits the rest.",
            "warning",
        )
    if valid < len(cells):
        yield Text("Only valid cells are in averages, speedups and figures.")


def _how_it_ended(cell: dict[Any, Any]) -> str:
    if cell["valid"]:
        return "flagged" if cell["flags"] else "clean"
    known = {"done": "invalid", DAMAGED: "invalid", "missing": "not started"}
    known["unfinished"] = "unfinished"
    return known.get(cell["status"], "failed")


def _headline(summary: pd.DataFrame, figures: Figures) -> Iterator[Block]:
    """What was found in a sentence, then the speedup figures next to the table of training."""
    train = summary[summary["phase"] == "train"] if len(summary) else summary
    if train.empty:
        return
    compared = train[train["effect"].notna()]
    if len(compared):
        baselines = ", ".join(dict.fromkeys(map(str, compared["baseline"])))
        yield Text(
            f"{len(compared)} configurations are compared with their baseline ({baselines}). "
            + _found(compared)
        )
    elif train["speedup"].notna().any():
        yield Text(
            "Each configuration is its own baseline: no two of them differ in layout, "
            "micro-batches or schedule alone. What else they differ in is compared below."
        )
    else:
        yield Text("No configuration has a valid baseline to be compared with.")
    rows = join_intervals(with_study(train))
    for name in ("mean_s", "speedup", "bound"):
        # An estimate without an interval is shown with few digits.
        rows[name] = rows[name].astype(object).map(_as_interval)
    rows["remarks"] = [_remarks(row) for row in train.to_dict("records")]
    title = (
        "Training: seconds a mini-batch, and speedup of samples a second, with "
        f"{CONFIDENCE:.0%} intervals over runs where there are several"
    )
    shown = ROW_KEYS | {"mean_s": "step time (s)"}
    shown |= {name: name for name in ("speedup", "bound", "remarks")}
    table = page_table(rows, title, shown, keys=len(ROW_KEYS))
    yield Beside(figures.of_section("headline"), table)


def _found(compared: pd.DataFrame) -> str:
    """How many configurations differ from their baseline, and how; and which is the fastest."""
    effects = compared["effect"].astype(str)
    kinds = {
        "faster": effects.str.startswith("faster"),
        "slower": effects.str.startswith("slower"),
        "without a difference shown (the interval contains 1)": effects.str.startswith("no diff"),
        "without an interval, so that nothing is said of a difference": effects.str.contains(
            "no interval"
        ),
    }
    counts = [f"{int(found.sum())} {words}" for words, found in kinds.items() if found.any()]
    words = f"Found: {', '.join(counts)}."
    faster = compared[kinds["faster"]]
    if len(faster):
        best = faster.sort_values("speedup").iloc[-1]
        words += (
            f" The fastest is {best['layout']} m{best['microbatches']} ({best['model']}, "
            f"{best['data']}): {best['speedup']:.2f} times, with a bound of {best['bound']:.2f}."
        )
    return words


def _as_interval(value: Any) -> Interval | None:
    if isinstance(value, Interval):
        return value
    return None if pd.isna(value) else Interval(float(value), None, None)


def _remarks(row: dict[Any, Any]) -> str:
    """Whether a row may be believed."""
    if not row["n"]:
        return "no valid cell"
    words = [] if row["valid"] else ["not valid"]
    words += [str(row["flags"]).replace(";", ", ")] if row["flags"] else []
    if row["cells_used"] == 1:
        words.append("one run")
    elif row["speedup_from"] == ONE_RUN:
        words.append("baseline of one run")
    return "; ".join(words)


def _flags(run: RunData, summary: pd.DataFrame) -> Iterator[Block]:
    """Flags of cells, then those of comparing cells, each with one line of advice."""
    flagged = run.checks.groupby(["name", "verdict"], sort=False)
    found = flagged.agg(n=("cell", "size"), detail=("detail", "first"), cell=("cell", "first"))
    found = found.reset_index()
    if len(found):
        order = found.assign(first=found["verdict"] != "invalid", many=-found["n"])
        found = found.loc[order.sort_values(["first", "many"], kind="stable").index]
        advice = [advice_of(*pair) for pair in zip(found["name"], found["verdict"], strict=True)]
        columns = {
            "name": "flag", "verdict": "verdict", "n": "cells", "advice": "what to do",
            "detail": "what was found (first cell)", "cell": "first cell",
        }  # fmt: skip
        title = (
            "Flags of cells: an invalid cell is in no average, and so is one that is not "
            "comparable; cells with another flag are"
        )
        yield page_table(found.assign(advice=advice), title, columns)
    elif run.cells["valid"].any():
        yield Text("No cell has a flag.")
    if summary.empty:
        return
    own = summary["flags"].str.extract(f"({'|'.join(_FLAGS_OF_ROWS)})")[0]
    rows = with_study(summary).assign(advice=[advice_of(str(flag)) for flag in own])
    rows = rows[own.notna()].sort_values("valid", kind="stable")
    if len(rows):
        names = ("phase", "speedup", "bound", "efficiency", "valid", "flags", "note")
        title = (
            "Flags from comparing cells: speedups above the bound with their explanation, "
            "efficiencies above 1, and rows without a step after warm-up"
        )
        columns = ROW_KEYS | {name: name for name in names} | {"advice": "what to do"}
        yield page_table(rows, title, columns, keys=len(ROW_KEYS))


def _cells_without_numbers(run: RunData) -> Iterator[Table]:
    """Each cell that is not valid, and why."""
    invalid = run.checks[run.checks["verdict"] == "invalid"]
    reasons = (invalid["name"] + ": " + invalid["detail"]).groupby(invalid["cell"]).agg("; ".join)
    cells = run.cells[~run.cells["valid"].astype(bool)]
    if len(cells):
        columns = ("cell", "layout", "micro-batches", "status", "attempts", "reason")
        rows = [
            (
                *(str(cell["cell"]), cell["layout"], cell["microbatches"], _how_it_ended(cell)),
                *(cell["attempts"], reasons.get(str(cell["cell"])) or _reason_not_valid(cell)),
            )
            for cell in cells.to_dict("records")
        ]
        yield rows_table("Cells that are not valid, and why", columns, rows)


def _reason_not_valid(cell: dict[Any, Any]) -> str:
    if cell["status"] == "missing":
        return "no attempt"
    if not pd.isna(cell["failure"]) and cell["failure"]:
        return str(cell["failure"])
    if cell["status"] == "unfinished":
        return "its attempts have not ended, or died without a result"
    return "its result gives no reason"


def _not_comparable(cells: pd.DataFrame) -> Iterator[Table]:
    """How cells differ from the others of their model and data."""
    other = cells[cells["not_comparable"] != ""]
    if len(other):
        yield rows_table(
            "Cells that are not comparable with most cells of the same model and data, so that "
            "they are in no average and no ratio with these",
            ("difference", "cells", "first cell"),
            [
                (words, len(same), str(same["cell"].iloc[0]))
                for words, same in other.groupby("not_comparable", sort=False)
            ],
        )
