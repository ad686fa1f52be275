"""The first section of a report: what the run is worth, what it found, and what to do next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pandas as pd

from analysis.figures.draw_figures import Figures
from analysis.load.run_data import RunData
from analysis.render.document import Beside, Block, Folded, Section, Table, Text, page_table
from analysis.report.run_facts import equivalence, live_code, validation, what_was_run
from analysis.report.texts import advice_of
from analysis.statistics.power import CONFIDENCE
from analysis.summary.settings_in_words import ROW_KEYS, with_study
from analysis.summary.summary_table import Summary

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
        *_flags_of_cells(run),
        *_flags_of_rows(summary),
        *_cells_without_numbers(run),
        Folded("What was run, and what numbers depend on", tuple(what_was_run(run))),
    ]
    return Section("verdict", "Verdict", tuple(blocks))


def _verdict(cells: pd.DataFrame) -> Iterator[Text]:
    """How many cells ended how; every cell is counted once."""
    valid = cells["valid"].astype(bool)
    flagged = int((valid & (cells["flags"] != "")).sum())
    counts = Counter(_how_it_ended(cells[~valid]))
    parts = [f"{valid.sum()} of {len(cells)} cells valid"]
    parts += [f"{flagged} of them flagged"] if flagged else []
    parts += [f"{count} {how}" for how, count in counts.items()]
    kind = "warning" if flagged or counts else "good"
    yield Text(", ".join(parts) + ".", "bad" if counts["invalid"] or not valid.any() else kind)
    waiting = [f"{counts[name]} {name}" for name in ("unfinished", "not started") if counts[name]]
    if waiting:
        yield Text(
            f"This report is preliminary: {' and '.join(waiting)}. `gnnhpc status RUN` shows what "
            "still runs; `gnnhpc rerun RUN --missing` submits the rest.",
            "warning",
        )
    if counts:
        yield Text("Only valid cells are in averages, speedups and figures.")


def _how_it_ended(cells: pd.DataFrame) -> pd.Series[str]:
    """Of cells that are not valid."""
    names = {"missing": "not started", "unfinished": "unfinished", "failed": "failed"}
    return cells["status"].map(lambda status: names.get(str(status), "invalid"))


def _headline(summary: pd.DataFrame, figures: Figures) -> Iterator[Block]:
    """The speedup figures next to the table of training."""
    train = summary[summary["phase"] == "train"] if len(summary) else summary
    if train.empty:
        return
    if train["speedup"].isna().all():
        yield Text("No configuration has a valid baseline to be compared with.")
    title = (
        "Training: seconds a mini-batch, and speedup of samples a second, with "
        f"{CONFIDENCE:.0%} intervals over runs where there are several"
    )
    columns = (*ROW_KEYS, "mean_s", "speedup", "bound", "flags")
    shown = train.assign(flags=train["flags"].str.replace(";", ", "))
    yield Beside(
        figures.of_section("headline"),
        page_table(with_study(shown), title, columns, keys=len(ROW_KEYS)),
    )


def _flags_of_cells(run: RunData) -> Iterator[Block]:
    """Each flag, those that make cells invalid first, with one line of advice."""
    flagged = run.checks.groupby(["name", "verdict"], sort=False)
    found = flagged.agg(n=("cell", "size"), detail=("detail", "first"), cell=("cell", "first"))
    found = found.reset_index()
    if found.empty:
        if run.cells["valid"].any():
            yield Text("No cell has a flag.")
        return
    order = found.assign(first=found["verdict"] != "invalid", many=-found["n"])
    found = found.loc[order.sort_values(["first", "many"], kind="stable").index]
    found["advice"] = [
        advice_of(*pair) for pair in zip(found["name"], found["verdict"], strict=True)
    ]
    columns = {
        "name": "flag",
        "verdict": "verdict",
        "n": "cells",
        "advice": "what to do",
        "detail": "what was found (first cell)",
        "cell": "first cell",
    }
    title = (
        "Flags of cells: an invalid cell is in no average, and so is one that is not "
        "comparable; cells with another flag are"
    )
    yield page_table(found[list(columns)].rename(columns=columns), title)


def _flags_of_rows(summary: pd.DataFrame) -> Iterator[Table]:
    """The flags that comparing cells has found, with one line of advice."""
    if summary.empty:
        return
    own = summary["flags"].str.extract(f"({'|'.join(_FLAGS_OF_ROWS)})")[0]
    advice = [advice_of(str(flag)) for flag in own]
    rows = with_study(summary).assign(**{"what to do": advice})[own.notna()]
    if len(rows):
        columns = (
            *(*ROW_KEYS, "phase", "speedup", "bound", "efficiency", "valid", "flags", "note"),
            "what to do",
        )
        title = (
            "Flags from comparing cells: speedups above the bound with their explanation, "
            "efficiencies above 1, and rows without a step after warm-up"
        )
        yield page_table(rows.sort_values("valid", kind="stable"), title, columns, len(ROW_KEYS))


def _cells_without_numbers(run: RunData) -> Iterator[Table]:
    """Each cell that is not valid, and why."""
    cells = run.cells[~run.cells["valid"].astype(bool)]
    if cells.empty:
        return
    invalid = run.checks[run.checks["verdict"] == "invalid"]
    reasons = (invalid["name"] + ": " + invalid["detail"]).groupby(invalid["cell"]).agg("; ".join)
    why = cells["cell"].map(reasons.to_dict()).astype(object)
    ended = _how_it_ended(cells)
    died = ended.map({"unfinished": "its attempts have not ended, or died without a result"})
    shown = cells.assign(ended=ended, reason=why.fillna(cells["failure"]).fillna(died))
    columns = ("cell", "layout", "microbatches", "ended", "attempts", "reason")
    yield page_table(shown, "Cells that are not valid, and why", columns)
