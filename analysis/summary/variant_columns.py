"""Adds the settings in which rows of the summary differ to the columns of a table."""

from __future__ import annotations

import pandas as pd

from analysis.summary.summary_table import VARIANT_COLUMNS


def with_variant_columns(summary: pd.DataFrame, columns: dict[str, str]) -> dict[str, str]:
    """`columns` (name -> heading) with the settings that vary inserted after the first four."""
    by_study = summary.groupby(["model", "data"])
    varying = [
        key
        for key in VARIANT_COLUMNS
        if key in summary and (by_study[key].nunique(dropna=False) > 1).any()
    ]
    names = list(columns)
    order = [*names[:4], *varying, *names[4:]]
    return {name: columns.get(name, name.replace("_", " ")) for name in order}
