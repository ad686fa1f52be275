"""The tables of a report: a list of columns of the summary each, and those of published studies."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.render.document import Table
from analysis.report.texts import texts
from analysis.studies.study_tables import study_tables
from analysis.summary.frameworks import frameworks_frame
from analysis.summary.learnt_columns import is_share
from analysis.summary.settings_in_words import ROW_KEYS, with_study
from analysis.summary.summary_table import DROPPED_COLUMNS, Summary
from analysis.summary.time_breakdown import COLUMNS as LOST_COLUMNS

_COLUMNS: dict[str, Sequence[str]] = {
    "step_times": (
        *("n", "mean_s", "mean_low", "mean_high", "median_s", "std_s", "min_s", "max_s"),
        "samples_per_s",
    ),
    "speedup": (
        *("n", "speedup", "speedup_low", "speedup_high", "bound"),
        *("of_bound", "of_bound_low", "of_bound_high", "speedup_from", "speedup_same_m"),
        *("effect", "flags", "note"),
    ),
    "efficiency": (
        *("ideal_step_s", "efficiency", "efficiency_low", "efficiency_high"),
        *("bubble", "bubble_low", "bubble_high", "recompute_s", "weights_s", "weights_share"),
    ),
    "lost_time": (*LOST_COLUMNS, "mean_s", "of_bound"),
    "sampled": (
        *("epoch_s", "epoch_low", "epoch_high", "epoch_from", "mean_s", "data_s"),
        *("sample_s", "gather_s", "compute_s", "allreduce_s", "sampled_edges_per_s"),
        *("peak_rss_mib", "peak_host_mib"),
    ),
    "noise": (
        *("n", "cells_used", "cells", "attempts", *DROPPED_COLUMNS, "outliers"),
        *("drift", "cpu_share", "steal_share", "switches_per_step", "peak_rss_mib", "startup_s"),
    ),
}
_OF_TRAINING = ("lost_time", "sampled", "learnt")


def make_tables(found: Summary) -> list[Table]:
    """All tables that have a row; those of a published study only if the run has its model on its
    data.
    """
    measured = found.table[found.table["n"] > 0]
    learnt = [name for name in map(str, measured.columns) if _is_learnt(name)]
    tables = [_table(name, measured, columns) for name, columns in _COLUMNS.items()]
    tables.append(_table("learnt", measured, [*learnt, "cells_used"]))
    compared = frameworks_frame(found)
    title, *words = texts()["tables"]["frameworks"]
    tables.append(Table("frameworks", title, compared, tuple(words), keys=5))
    return [table for table in tables if len(table.frame)] + study_tables(found)


def _is_learnt(name: str) -> bool:
    """Whether a column of the summary is a loss or a share, or a bound of one."""
    stem = name.removesuffix("_low").removesuffix("_high")
    return stem.endswith("_loss") or is_share(stem)


def _table(name: str, rows: pd.DataFrame, columns: Sequence[str]) -> Table:
    """The rows that have a value in the first of these columns."""
    title, *words = texts()["tables"][name]
    keys = [*ROW_KEYS, "phase"]
    if name in _OF_TRAINING:
        rows, keys = rows[rows["phase"] == "train"], keys[:-1]
    rows = rows[rows[columns[0]].notna()] if columns[0] in rows else rows[:0]
    frame = with_study(rows)[[*keys, *(each for each in columns if each in rows)]]
    return Table(name, title, frame.reset_index(drop=True), tuple(words), keys=len(keys))
