"""The corrected study: for each published table what was printed, ours, the bound, a verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis.loading.run import Run
from analysis.papers.gat_tables_beside_ours import boca_table, torchgpipe_table
from analysis.papers.gat_verdicts import gat_verdict_rows
from analysis.papers.vig_verdicts import vig_verdict_rows

STUDY_COLUMNS = [
    "study",
    "table",
    "model",
    "setting",
    "phase",
    "quantity",
    "published",
    "ours",
    "ours_low",
    "ours_high",
    "bound",
    "run",
    "verdict",
]


def corrected_study_frame(summary: pd.DataFrame, run: Run | None = None) -> pd.DataFrame:
    """One row a published number that says something about speed or learning.

    `ours` is empty where this run has no such cells; a setting that it measured in several ways
    (data, batch size, implementation) has a row for each, told apart by `run`. Seconds of single
    layers (Raffi's tables 2 and 3) are not in a summary: ours stand there if `run` is given.
    """
    rows = [*vig_verdict_rows(summary, run), *gat_verdict_rows(summary), *_boca(), *_torchgpipe()]
    return pd.DataFrame(rows, columns=STUDY_COLUMNS)


def _boca() -> Iterator[dict[str, Any]]:
    frame = boca_table().frame
    for _, row in frame[frame["gpus"] > 1].iterrows():
        for library in ("pyg", "dgl"):
            speedup = float(row[f"{library}_speedup"])
            slower = "Slower than one GPU" if speedup < 1.0 else "Below the bound"
            reason = (
                "each process very likely trained on all of the data"
                if library == "dgl"
                else "the time includes loading the data set"
            )
            workers = "" if row["workers"] == 8 else ", one loader worker instead of 8"
            yield {
                "study": "boca",
                "table": "2",
                "model": str(row["model"]),
                "setting": f"{row['gpus']} GPUs, batch {row['batch_size']}, {library}",
                "phase": "train",
                "quantity": "speedup",
                "published": speedup,
                "bound": float(row["gpus"]),
                "verdict": f"{slower}: {reason}{workers}",
            }


def _torchgpipe() -> Iterator[dict[str, Any]]:
    for _, row in torchgpipe_table().frame.iterrows():
        most, published = row["bound"], float(row["torchgpipe_speedup"])
        if pd.isna(most) or published == 1.0:
            continue
        yield {
            "study": "torchgpipe",
            "table": "benchmark",
            "model": str(row["model"]),
            "setting": str(row["setting"]),
            "phase": "train",
            "quantity": "speedup",
            "published": published,
            "bound": most,
            "verdict": "Within the bound"
            if published <= most
            else f"Above the bound by {published / most - 1:.1%}; no interval is published",
        }
