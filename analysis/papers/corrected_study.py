"""The corrected study: each published number with ours, the bound and a verdict."""

from __future__ import annotations

import pandas as pd

from analysis.loading.run import Run
from analysis.papers.gat_verdicts import gat_verdict_rows
from analysis.papers.other_studies import boca_verdict_rows, torchgpipe_verdict_rows
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
    """One row a published number of speed or accuracy.

    `ours` is empty where this run has no such cells. A setting that it measured in several ways
    (data, batch size, implementation) has a row for each; the column `run` says which. Our seconds
    of single layers (Raffi's tables 2 and 3) are not in a summary: they need the argument `run`.
    """
    rows = [
        *vig_verdict_rows(summary, run),
        *gat_verdict_rows(summary),
        *boca_verdict_rows(),
        *torchgpipe_verdict_rows(),
    ]
    return pd.DataFrame(rows, columns=STUDY_COLUMNS)
