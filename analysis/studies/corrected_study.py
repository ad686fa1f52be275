"""The corrected study: each published number with ours, the bound and a verdict."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.load.run_data import RunData as Run
from analysis.studies.boca_runs import BocaRows
from analysis.studies.boca_tables_beside_ours import boca_finding_rows
from analysis.studies.boca_verdicts import boca_verdict_rows
from analysis.studies.gat_runs import GatRows
from analysis.studies.gat_verdicts import gat_verdict_rows
from analysis.studies.study import studies_of
from analysis.studies.vig_verdicts import vig_verdict_rows
from analysis.summary.baseline_and_speedup import Baseline
from analysis.summary.summary_table import summarise

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


def corrected_study_frame(summary: pd.DataFrame, run: Run) -> pd.DataFrame:
    """One row a published number of speed or accuracy, of studies whose model and data were run.

    `ours` is empty where this run has no such cells. A setting that it measured in several ways
    (data, batch size, implementation) has a row for each; the column `run` says which. Speedups
    are over what the published ones are over, whatever the baseline of `summary`.
    """
    rows: list[dict[str, Any]] = []
    studies = studies_of(run)
    if "raffi" in studies:
        rows += vig_verdict_rows(_over_sequential(summary, run), run)
    if "dearing" in studies:
        rows += gat_verdict_rows(GatRows(run, summary))
    if "boca" in studies:
        rows += boca_verdict_rows()
        rows += boca_finding_rows(BocaRows(run, summary))
    return pd.DataFrame(rows, columns=STUDY_COLUMNS)


def _over_sequential(summary: pd.DataFrame, run: Run) -> pd.DataFrame:
    """`summary`, made again where its baseline is not the sequential run."""
    told = set(summary["baseline"].dropna()) if len(summary) else {str(Baseline())}
    return summary if told == {str(Baseline())} else summarise(run)
