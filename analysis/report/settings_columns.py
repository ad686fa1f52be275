"""The columns that name a row of the summary: study, layout, micro-batches."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.figures.studies import settings_label
from analysis.summary.varying_settings import varying_settings

ROW_KEYS = {"study": "study", "layout": "layout", "microbatches": "micro-batches"}
"""Columns of `with_study` that name a row, with their headings."""


def with_study(summary: pd.DataFrame) -> pd.DataFrame:
    """`summary` with a column `study`: model, data and other settings, those that differ in it.

    Empty where all rows are of one study.
    """
    if summary.empty:
        return summary.assign(study="")
    named = [key for key in ("model", "data") if summary[key].nunique() > 1]
    named += varying_settings(summary)
    if not named:
        return summary.assign(study="")
    labels = [_label(dict(zip(named, row, strict=True))) for row in summary[named].to_numpy(object)]
    return summary.assign(study=labels)


def _label(settings: dict[str, Any]) -> str:
    """The settings that a row has: a graph has no batch size."""
    known = {key: value for key, value in settings.items() if not pd.isna(value) and value != ""}
    return settings_label(known)
