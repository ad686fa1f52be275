"""The columns that name a row of the summary: study, layout, micro-batches."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.figures.studies import settings_label
from analysis.summary.settings_in_words import varying_settings

ROW_KEYS = {"study": "study", "layout": "layout", "microbatches": "micro-batches"}
"""Columns of `with_study` that name a row, with their headings."""


def with_study(summary: pd.DataFrame) -> pd.DataFrame:
    """`summary` with a column `study`: model and data, where there are several, and other settings.

    Of these a row has those in which rows of its model and data differ.
    """
    if summary.empty:
        return summary.assign(study="")
    named = [key for key in ("model", "data") if summary[key].nunique() > 1]
    labels: dict[Any, str] = {}
    for _, rows in summary.groupby(["model", "data"], sort=False):
        keys = [*named, *varying_settings(rows)]
        values = rows[keys].to_numpy(object)
        for place, row in zip(rows.index, values, strict=True):
            labels[place] = _label(dict(zip(keys, row, strict=True)))
    return summary.assign(study=[labels[place] for place in summary.index])


def _label(settings: dict[str, Any]) -> str:
    """The settings that a row has: a graph has no batch size."""
    known = {key: value for key, value in settings.items() if not pd.isna(value) and value != ""}
    return settings_label(known)
