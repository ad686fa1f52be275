"""The first section of a report: what the run is worth, what it found, and what to do next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis.figures.draw_figures import Figures
from analysis.load.comparable import values_in_words
from analysis.load.read_cell_flags import EQUIVALENT
from analysis.load.run_data import RunData
from analysis.render.document import Beside, Block, Folded, Section, Table, Text
from analysis.render.formats import environment
from analysis.report.sections import texts
from analysis.statistics.intervals import CONFIDENCE
from analysis.summary.settings_in_words import ROW_KEYS, with_study
from analysis.summary.summary_table import Summary

_FLAGS_OF_ROWS = ("above-bound-unexplained", "above-bound", "above-ideal", "only-warm-up")
_ENDED = {"missing": "not started", "unfinished": "unfinished", "failed": "failed"}
"""Status of a cell that is not valid -> what the page says; others are invalid."""
_PROVENANCE = {
    "commit": "code",
    "command": "command",
    "spec": "sweep",
    "overrides": "overrides",
    "created_at": "submitted at",
    "host": "submitted on",
    "user": "submitted by",
    "versions": "versions",
}


def first_page_section(found: Summary, figures: Figures | None = None) -> Section:
    """The verdict, the speedups, what was checked, each flag with advice, and cells without
    numbers; where the numbers come from is folded.
    """
    run, summary = found.run, found.table
    sentences = environment().get_template("first_page.txt.j2").render(_facts(run))
    verdict, checked = (_texts(part) for part in sentences.split("\n---\n"))
    blocks: list[Block] = [
        *verdict,
        *_headline(summary, figures or Figures()),
        *checked,
        *_flags_of_cells(run),
        *_flags_of_rows(summary),
        *_cells_without_numbers(run),
        Folded("What was run, and what numbers depend on", tuple(_what_was_run(run))),
    ]
    return Section("verdict", "Verdict", tuple(blocks))


def _texts(lines: str) -> list[Text]:
    """A paragraph for each line `kind: text`."""
    parts = (line.partition(": ") for line in lines.splitlines() if line)
    return [Text(text, kind) for kind, _, text in parts]


def _facts(run: RunData) -> dict[str, Any]:
    """What the sentences of the page are made of; every cell is counted once."""
    cells, valid = run.cells, run.cells["valid"].astype(bool)
    done = cells[cells["status"] == "done"]
    validated = done[done["checks"] > 0]
    checked = Counter(name for names in validated["checked"] for name in set(names.split(";")))
    ended = Counter(_how_it_ended(cells[~valid]))
    compared = cells["compared_steps"].dropna()
    return {
        "notes": run.notes,
        "cells": len(cells),
        "valid": valid.sum(),
        "flagged": (valid & (cells["flags"] != "")).sum(),
        "ended": ended,
        "waiting": [f"{ended[how]} {how}" for how in ("unfinished", "not started") if ended[how]],
        "done": len(done),
        "validated": len(validated),
        "checks": [
            name if count == len(validated) else f"{name} ({count})"
            for name, count in sorted(checked.items())
            if name
        ],
        "took_s": validated["validation_s"].sum(),
        "of_s": validated["attempt_s"].sum(),
        "compared": len(compared),
        "fewest_steps": int(compared.min()) if len(compared) else 0,
        "diverged": run.checks.loc[run.checks["name"] == EQUIVALENT, "cell"].nunique(),
        "alone": list(cells.loc[cells["no_sequential_cell"], "cell"]),
        "live": cells["code_from"].str.contains("live").sum(),
    }


def _how_it_ended(cells: pd.DataFrame) -> pd.Series[str]:
    """Of cells that are not valid."""
    return cells["status"].map(lambda status: _ENDED.get(str(status), "invalid"))


def _headline(summary: pd.DataFrame, figures: Figures) -> Iterator[Block]:
    """The speedup figures next to the table of training."""
    train = summary[summary["phase"] == "train"]
    if train.empty:
        return
    if train["speedup"].isna().all():
        yield Text("No configuration has a valid baseline to be compared with.")
    title = (
        "Training: seconds a mini-batch, and speedup of samples a second, with "
        f"{CONFIDENCE:.0%} intervals over runs where there are several"
    )
    columns = (*ROW_KEYS, "mean_s", "speedup", "bound", "flags")
    shown = with_study(train.assign(flags=train["flags"].str.replace(";", ", ")))
    table = Table("", title, shown, columns=columns, keys=len(ROW_KEYS))
    yield Beside(figures.of_section("headline"), table)


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
    found["advice"] = list(map(advice_of, found["name"], found["verdict"]))
    headings = {
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
    yield Table("", title, found[list(headings)].rename(columns=headings))


def advice_of(flag: str, verdict: str = "suspect") -> str:
    """The line for a flag, by its name or else by its verdict."""
    name = "inconclusive" if verdict == "inconclusive" else flag
    others = texts()["invalid" if verdict == "invalid" else "other"]
    return str(texts()["advice"].get(name, others))


def _flags_of_rows(summary: pd.DataFrame) -> Iterator[Table]:
    """The flags that comparing cells has found, with one line of advice."""
    own = summary["flags"].astype(str).str.extract(f"({'|'.join(_FLAGS_OF_ROWS)})")[0]
    if own.isna().all():
        return
    rows = with_study(summary).assign(**{"what to do": own.astype(str).map(advice_of)})[own.notna()]
    columns = (
        *(*ROW_KEYS, "phase", "speedup", "bound", "efficiency", "valid", "flags", "note"),
        "what to do",
    )
    title = (
        "Flags from comparing cells: speedups above the bound with their explanation, "
        "efficiencies above 1, and rows without a step after warm-up"
    )
    rows = rows.sort_values("valid", kind="stable")
    yield Table("", title, rows, columns=columns, keys=len(ROW_KEYS))


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
    yield Table("", "Cells that are not valid, and why", shown, columns=columns)


def _what_was_run(run: RunData) -> Iterator[Table]:
    """Provenance, models and data, and hosts; and the environments of the cells."""
    studies = sorted(set(run.cells["model"] + " on " + run.cells["data"]))
    rows = {
        "run": run.name,
        **{words: run.provenance.get(key, "") for key, words in _PROVENANCE.items()},
        "models and data": ", ".join(studies),
        "ran on": run.hosts,
    }
    shown = pd.DataFrame(filter(all, rows.items()), columns=["what", "value"])
    yield Table("", "What was run", shown)
    every = list(run.environments.values())
    if names := dict.fromkeys(name for each in every for name in each):
        values = [values_in_words([each.get(name) for each in every]) for name in names]
        title = (
            "What numbers depend on besides settings; only cells with equal values are averaged "
            "and compared"
        )
        yield Table("", title, pd.DataFrame({"what": list(names), "value (cells)": values}))
