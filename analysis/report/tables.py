"""All tables of a report: speedup, efficiency, noise, and the published ones."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.render.document import Table
from analysis.report.texts import texts
from analysis.studies.study_tables import study_tables
from analysis.summary.frameworks import frameworks_frame
from analysis.summary.settings_in_words import (
    ROW_KEYS,
    varying_settings,
    with_study,
)
from analysis.summary.summary_table import DROPPED_COLUMNS, Summary
from analysis.summary.time_breakdown import COLUMNS as LOST_COLUMNS

_SETTING = ("model", "data", "layout", "microbatches", "phase", "n")
_OF_BACKWARD = ("weights_s", "weights_share")
_COLUMNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "speedup": (
        (
            *("samples_per_s", "speedup", "speedup_low", "speedup_high", "bound"),
            *("of_bound", "of_bound_low", "of_bound_high", "speedup_median", "speedup_from"),
            *("speedup_same_m", "baseline", "effect", "flags"),
        ),
        ("speedup", "speedup_low", "speedup_high", "bound", "flags"),
    ),
    "efficiency": (
        (
            *("mean_s", "mean_low", "mean_high", "median_s", "ideal_step_s"),
            *("efficiency", "efficiency_low", "efficiency_high", "bubble", "recompute_s"),
            *(*_OF_BACKWARD, "flags"),
        ),
        (
            *("mean_s", "mean_low", "mean_high"),
            *("efficiency", "efficiency_low", "efficiency_high"),
            *("bubble", "bubble_low", "bubble_high"),
        ),
    ),
    "noise": (
        (
            *("cells_used", "cells", *DROPPED_COLUMNS, "outliers", "drift"),
            *("cpu_share", "steal_share", "switches_per_step", "data_s", "note"),
        ),
        ("n", "drift", "cpu_share"),
    ),
    "lost_time": ((*LOST_COLUMNS, "mean_s", "of_bound"), (*LOST_COLUMNS, "mean_s")),
    "sampled": (
        (
            *("epoch_s", "epoch_low", "epoch_high", "epoch_from", "mean_s", "data_s"),
            *("sample_s", "gather_s", "compute_s", "allreduce_s", "sampled_edges_per_s"),
            *("peak_rss_mib", "peak_host_mib"),
        ),
        ("epoch_s", "epoch_low", "epoch_high", "data_s", "compute_s"),
    ),
}
"""Name -> columns after those of the setting, and those for which a paper has room."""


def make_tables(found: Summary) -> list[Table]:
    """All tables; those of a published study only if the run has its model on its data."""
    summary = found.table
    split = summary["weights_s"].notna().any()
    unsplit = () if split else _OF_BACKWARD
    tables = [
        _table("speedup", summary),
        _table("efficiency", summary, but=unsplit),
        _table("noise", summary),
    ]
    train = summary[summary["phase"] == "train"]
    if (taken := train[train["lost_linear_s"].notna()]).size:
        tables.append(_table("lost_time", taken, but=("phase",)))
    compared = frameworks_frame(found)
    if len(compared):
        title, *words = texts()["tables"]["frameworks"]
        paper = compared.drop(columns="flags")
        tables.append(Table("frameworks", title, compared, tuple(words), paper, keys=5))
    if "sampler" in train and (sampled := train[train["sampler"].notna()]).size:
        tables.append(_table("sampled", sampled, but=("phase",), keys=4))
    return [*tables, *study_tables(found)]


def _table(
    name: str,
    rows: pd.DataFrame,
    *,
    but: Sequence[str] = (),
    keys: int = 1,
) -> Table:
    """A table of these rows of the summary, without the columns in `but`."""
    columns, of_paper = _COLUMNS[name]
    title, *words = texts()["tables"][name]
    if "weights_s" in but:
        words = words[:-1]
    measured = with_study(rows[rows["n"] > 0])
    varied = varying_settings(rows) if len(rows) else []
    whole = [one for one in (*_SETTING, *varied, *columns) if one not in but]
    paper = [one for one in (*ROW_KEYS, "phase", *of_paper) if one not in but]
    frames = (measured[names].reset_index(drop=True) for names in (whole, paper))
    return Table(name, title, next(frames), tuple(words), next(frames), keys=keys)
