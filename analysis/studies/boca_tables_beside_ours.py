"""Boca's table 2 of sampled training: published, ours, and which of its conclusions hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis.render.document import Table
from analysis.statistics.pairs import FEWEST_PAIRS
from analysis.studies.boca_claims import CLAIMS, EPOCHS, published_seconds
from analysis.studies.boca_findings import boca_findings, share_waiting
from analysis.studies.boca_runs import BocaRow, BocaRows
from analysis.studies.conclusions import conclusions_frame, finding_row
from analysis.studies.study import published_studies, study_notes

_KEYS = ["model", "library", "ranks", "batch_size"]
_COLUMNS = [
    *_KEYS,
    *("published_workers", "published_s"),
    *("data", "semantics", "workers"),
    *("epochs_s", "epochs_low", "epochs_high", "told_from"),
    *("waiting_percent", "waiting_percent_low", "waiting_percent_high"),
    *("runs", "settings"),
]
_PAPER = ["setting", "published_s", "epochs_s", "epochs_low", "epochs_high"]
_PAPER += ["waiting_percent", "waiting_percent_low", "waiting_percent_high"]
_NOTES = (
    f"epochs_s: seconds of {EPOCHS} epochs, {EPOCHS} times those of one; told_from says whether "
    "whole epochs were measured, or fewer steps stand for one.",
    "PyG keeps what was drawn for a node that is reached twice (once), DGL draws it anew "
    "(resample): PyG's and DGL's seconds are of unequal work and are not compared.",
    "Seconds of different machines and data are not compared; speedups and shares are.",
)

_WAITING = (
    "A mini-batch is its edges and its features: ours copies no features that its first layer can "
    "read where they lie, PyG's and DGL's layers are given a copy."
)
_LIKE = (
    "lists all comparisons. Only like is compared with like: the same sampler, semantics, "
    "fan-outs, batch a rank and, but for one claim, data workers."
)


def boca_tables(rows: BocaRows) -> list[Table]:
    """The conclusions, and table 2 with ours beside it."""
    notes = study_notes(published_studies()["boca"], "sharding", "loading", "workers")
    conclusions = conclusions_frame(CLAIMS, boca_findings(rows))
    rule = f"A verdict rests on intervals over {FEWEST_PAIRS} runs or more; the corrected study "
    table = _side_by_side(rows)
    return [
        Table(
            "boca_conclusions",
            "Boca's conclusions on sampled training, and what ours does instead",
            conclusions,
            (*notes, f"{rule}{_LIKE}", _WAITING),
        ),
        Table(
            "boca_table2",
            f"Boca's table 2: {EPOCHS} epochs on Reddit, seconds of the longest training process, "
            "and ours",
            table,
            (*notes, *_NOTES),
            _for_paper(table),
        ),
    ]


def boca_finding_rows(rows: BocaRows) -> Iterator[dict[str, Any]]:
    """Rows of the corrected study: what this run measured of the conclusions."""
    for finding in boca_findings(rows):
        if finding.ours is not None:
            model, _, setting = finding.setting.partition(", ")
            yield {"study": "boca", "model": model, **finding_row(finding), "setting": setting}


def _side_by_side(rows: BocaRows) -> pd.DataFrame:
    """Published rows with ours of the same keys, and those of ours that nobody published."""
    published = pd.DataFrame(
        [
            dict(zip(_KEYS, key, strict=True)) | {"published_workers": count, "published_s": s}
            for key, (count, s) in published_seconds().items()
        ]
    )
    ours = [_line(row) for row in rows]
    if ours:
        published = published.merge(pd.DataFrame(ours), on=_KEYS, how="outer", sort=False)
    return published.reindex(columns=_COLUMNS)


def _line(row: BocaRow) -> dict[str, Any]:
    seconds = row.seconds
    return {
        "model": row.model,
        "library": row.library,
        "ranks": row.ranks,
        "batch_size": row.batch_size,
        "data": row.data,
        "semantics": row.settings["semantics"],
        "workers": row.workers,
        "epochs_s": seconds.value if seconds else None,
        "epochs_low": seconds.low if seconds else None,
        "epochs_high": seconds.high if seconds else None,
        "told_from": row.told_from,
        **share_waiting(row),
        "runs": row.runs,
        "settings": row.others,
    }


def _for_paper(table: pd.DataFrame) -> pd.DataFrame:
    """What names a row in one column, and the numbers."""
    drawn = table["semantics"].fillna("")
    words = table["model"] + ", " + table["library"]
    words += (", " + drawn).where((table["library"] == "ours") & (drawn != ""), "")
    words += ", " + table["ranks"].astype(str) + " ranks, batch " + table["batch_size"].astype(str)
    counts = table["workers"].map(lambda count: "" if pd.isna(count) else f", {count:g} workers")
    return table.assign(setting=words + counts)[_PAPER]
