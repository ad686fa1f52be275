"""The first section of a report: how many cells are valid, flags, and what was run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.figures.catalog import Figures
from analysis.load.raised import DAMAGED
from analysis.load.run_data import RunData
from analysis.render.document import (
    Block,
    Folded,
    Section,
    TableBlock,
    Text,
    frame_table,
    rows_table,
)
from analysis.report.headline import headline
from analysis.report.schedule_in_name import zero_bubble_in_name
from analysis.report.settings_columns import ROW_KEYS, with_study
from analysis.report.what_it_cost import cost_text
from analysis.report.what_was_checked import (
    comparability_texts,
    environment_table,
    equivalence_texts,
    measured_again,
    not_comparable_table,
    validation_texts,
)
from gnnhpc.models.registry import model_class

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
NO_RECORDS = ("missing", "unfinished")


@dataclass(frozen=True)
class CellCounts:
    """Numbers of cells by how they ended; every cell is counted once."""

    cells: int
    clean: int
    """Valid, without a flag."""
    flagged: int
    """Valid, with a flag of an audit."""
    invalid: int
    """Done, but an audit found the numbers not valid, or the records are damaged."""
    failed: int
    missing: int
    """Not started, or not ended."""
    damaged: int = 0
    """Of the invalid ones."""

    @property
    def valid(self) -> int:
        return self.clean + self.flagged


def count_cells(cells: pd.DataFrame) -> CellCounts:
    """Count the rows of `RunData.cells`."""
    kinds = Counter(_how_it_ended(row) for row in cells.to_dict("records"))
    names = ("clean", "flagged", "invalid", "failed", "missing")
    damaged = int((cells["status"] == DAMAGED).sum())
    return CellCounts(len(cells), **{name: kinds[name] for name in names}, damaged=damaged)


def _how_it_ended(cell: dict[Any, Any]) -> str:
    if cell["valid"]:
        return "flagged" if cell["flags"] else "clean"
    if cell["status"] in NO_RECORDS:
        return "missing"
    return "invalid" if cell["status"] in ("done", DAMAGED) else "failed"


def first_page_section(
    run: RunData, summary: pd.DataFrame, figures: Figures | None = None
) -> Section:
    """The verdict, the speedups, what was checked, every flag and cell that is not valid.

    Where the numbers come from is folded.
    """
    checked = [
        *map(Text, run.notes),
        *validation_texts(run),
        *equivalence_texts(run),
        *comparability_texts(run),
    ]
    blocks: list[Block | None] = [
        *_verdict(count_cells(run.cells)),
        *(text for text in checked if text.kind == "bad"),
        *headline(summary, figures or Figures()),
        *_chunks_without_speed(run),
        *(Text(line, "warning") for line in zero_bubble_in_name(summary)),
        *(text for text in checked if text.kind != "bad"),
        _flag_table(run),
        *_summary_flag_table(summary),
        _invalid_cell_table(run),
        *not_comparable_table(run),
        Folded("What was run, and what numbers depend on", tuple(_origin(run))),
    ]
    return Section("verdict", "Verdict", tuple(block for block in blocks if block is not None))


def _origin(run: RunData) -> Iterator[Block]:
    yield what_was_run(run)
    yield from _batchnorm(run)
    yield from environment_table(run)


def _verdict(counts: CellCounts) -> Iterator[Text]:
    parts = [
        f"{counts.valid} of {counts.cells} cells valid",
        f"{counts.flagged} of them flagged",
        f"{counts.invalid} invalid",
        f"{counts.failed} failed",
        f"{counts.missing} missing",
    ]
    if counts.valid < counts.cells:
        kind = "bad" if counts.invalid or not counts.valid else "warning"
    else:
        kind = "warning" if counts.flagged else "good"
    yield Text(", ".join(parts) + ".", kind)
    if counts.damaged:
        yield Text(
            f"{counts.damaged} of the invalid cells have damaged records and are set apart: the "
            "table below names file and line.",
            "bad",
        )
    if counts.valid < counts.cells:
        yield Text(
            "Cells that are not valid are listed below and are in no average, speedup or figure."
        )


def _chunks_without_speed(run: RunData) -> Iterator[Text]:
    cells = run.cells
    chosen = (cells["engine"] == "torchgpipe") & (cells["device"] == "cpu") & (cells["stages"] > 1)
    if chosen.any():
        yield Text(
            f"Engine torchgpipe on a CPU ({int(chosen.sum())} cells): all stages of a replica are "
            "one process there and share one worker, so its chunks bring no speed, whatever the "
            "bound says."
        )


def _batchnorm(run: RunData) -> Iterator[Text]:
    """Which statistics BatchNorm used; nothing for models without it."""
    using = [_uses_batchnorm(str(model)) for model in run.cells["model"]]
    modes = run.cells.loc[using, "batchnorm"]
    words = {
        "micro": "each micro-batch normalises by its own statistics, and running statistics are "
        "updated a micro-batch at a time, as GPipe does",
        "deferred": "each micro-batch normalises by its own statistics, and running statistics "
        "are updated once a mini-batch from all of its micro-batches",
    }
    for mode, cells in modes.value_counts().items():
        name = str(mode)
        yield Text(
            f"BatchNorm, mode {name} ({cells} cells): {words.get(name, name)}. Evaluation uses "
            "running statistics that are synchronised over replicas."
        )


def _uses_batchnorm(model: str) -> bool:
    """Of a user's own model nothing is known without its file."""
    known = model_class(model)
    return known is not None and known.uses_batchnorm


def _flag_table(run: RunData) -> Block | None:
    """One row a flag: how many cells have it, and its detail in the first of them."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for cell, name, verdict, detail in run.checks.itertuples(index=False):
        found.setdefault((name, verdict), []).append((cell, detail))
    if not found:
        return Text("No cell has a flag.") if run.cells["valid"].any() else None
    return rows_table(
        "Flags of cells: an invalid cell is in no average, and so is one that is not comparable; "
        "cells with another flag are",
        ("flag", "verdict", "cells", "what it says (first cell)", "first cell"),
        [
            (name, verdict, len(cells), cells[0][1], cells[0][0])
            for (name, verdict), cells in sorted(
                found.items(), key=lambda item: (item[0][1] != "invalid", -len(item[1]))
            )
        ],
    )


def _summary_flag_table(summary: pd.DataFrame) -> Iterator[TableBlock]:
    """Rows of the summary flagged for a speedup above the bound or an efficiency above 1."""
    if summary.empty:
        return
    own = summary["flags"].str.contains("above-bound|above-ideal", regex=True)
    rows = summary[own & (summary["n"] > 0)].sort_values("valid", kind="stable")
    if len(rows):
        shown = ("phase", "speedup", "bound", "efficiency", "valid", "flags", "note")
        yield frame_table(
            with_study(summary).loc[rows.index],
            "Flags from comparing cells: speedups above the bound with their explanation, and "
            "efficiencies above 1",
            ROW_KEYS | {name: name for name in shown},
            keys=len(ROW_KEYS),
        )


def _invalid_cell_table(run: RunData) -> TableBlock | None:
    """Each cell that is not valid, and why."""
    invalid = run.checks[run.checks["verdict"] == "invalid"]
    reasons = (invalid["name"] + ": " + invalid["detail"]).groupby(invalid["cell"]).agg("; ".join)
    cells = run.cells[~run.cells["valid"].astype(bool)]
    if cells.empty:
        return None
    return rows_table(
        "Cells that are not valid, and why",
        ("cell", "layout", "micro-batches", "status", "attempts", "reason"),
        [
            (
                str(cell["cell"]),
                cell["layout"],
                cell["microbatches"],
                "invalid" if cell["status"] == "done" else cell["status"],
                cell["attempts"],
                reasons.get(str(cell["cell"])) or _reason_not_valid(cell),
            )
            for cell in cells.to_dict("records")
        ],
    )


def _reason_not_valid(cell: dict[Any, Any]) -> str:
    if cell["status"] == "missing":
        return "no attempt"
    if not pd.isna(cell["failure"]) and cell["failure"]:
        return str(cell["failure"])
    if cell["status"] == "unfinished":
        return "its attempts have not ended, or died without a result"
    return "its result gives no reason"


def what_was_run(run: RunData) -> TableBlock:
    """Commit, versions, machines, models, data and layouts of the run."""
    cells = run.cells[~run.cells["status"].isin(NO_RECORDS)]
    rows: list[tuple[str, str]] = [("run", run.name)]
    provenance = run.provenance
    if provenance is None:
        rows.append(("submitted", "nobody knows how: the run has no provenance.json"))
        provenance = {}
    rows += [
        (words, _provenance_text(provenance[key]))
        for key, words in _PROVENANCE.items()
        if key in provenance
    ]
    hosts = sorted({host for text in cells["hosts"] for host in str(text).split(";") if host})
    rows += [
        (
            "models and data",
            ", ".join(sorted(set(run.cells["model"] + " on " + run.cells["data"]))),
        ),
        ("implementations", _distinct_values(run.cells["implementation"])),
        ("layouts", _distinct_values(run.cells["layout"])),
        ("ran on", ", ".join(hosts[:12]) + (f" and {len(hosts) - 12} more" * (len(hosts) > 12))),
        ("attempts", _attempts_text(run)),
        ("it cost", cost_text(run)),
    ]
    return rows_table("What was run", ("what", "value"), [row for row in rows if row[1]])


def _attempts_text(run: RunData) -> str:
    text = f"{int(run.cells['attempts'].sum())} for {len(run.cells)} cells"
    again = len(measured_again(run.attempts))
    if again:
        text += f"; {again} valid, of jobs that Slurm requeued after their result: the newer counts"
    return text


def _provenance_text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {text}" for key, text in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value or "")


def _distinct_values(values: pd.Series[Any]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if str(value)))
