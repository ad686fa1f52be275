"""All tables of a report: speedup, efficiency, noise, and the published ones."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.render.document import Table
from analysis.statistics.power import CONFIDENCE
from analysis.studies.study_tables import study_tables
from analysis.summary.frameworks import frameworks_frame
from analysis.summary.ideal_step import LEAST_SHARE
from analysis.summary.settings_in_words import (
    ROW_KEYS,
    settings_in_words,
    varying_settings,
    with_study,
)
from analysis.summary.summary_table import DROPPED_COLUMNS, Summary
from analysis.summary.time_breakdown import COLUMNS as LOST_COLUMNS

_SETTING = ["model", "data", "layout", "microbatches", "phase", "n"]
_INTERVALS = (
    f"Intervals are Student's t at {CONFIDENCE:.0%} over runs, of speedups over pairs of runs."
)


def make_tables(found: Summary) -> list[Table]:
    """All tables; those of a published study only if the run has its model on its data."""
    summary = found.table
    tables = [speedup_table(summary), efficiency_table(summary), noise_table(summary)]
    if summary["lost_linear_s"].notna().any():
        tables.append(lost_time_table(summary))
    compared = frameworks_frame(found)
    if len(compared):
        tables.append(frameworks_table(compared))
    if "sampler" in summary and summary["sampler"].notna().any():
        tables.append(sampled_table(summary))
    return [*tables, *study_tables(found)]


def _chosen(summary: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    measured = summary[summary["n"] > 0]
    varied = varying_settings(summary) if len(summary) else []
    return measured[[*_SETTING, *varied, *columns]].reset_index(drop=True)


def _for_paper(summary: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """What names a row in four columns, and these."""
    measured = with_study(summary[summary["n"] > 0])
    return measured[[*ROW_KEYS, "phase", *columns]].reset_index(drop=True)


def speedup_table(summary: pd.DataFrame) -> Table:
    """Speedups of samples a second, with intervals, the bound and the effect in words."""
    columns = ["samples_per_s", "speedup", "speedup_low", "speedup_high", "bound"]
    columns += ["of_bound", "of_bound_low", "of_bound_high"]
    columns += ["speedup_median", "speedup_from", "speedup_same_m", "baseline", "effect", "flags"]
    return Table(
        "speedup",
        "Speedup of samples a second",
        _chosen(summary, columns),
        (_INTERVALS, "speedup_same_m: over the sequential run with the same micro-batches."),
        _for_paper(summary, "speedup", "speedup_low", "speedup_high", "bound", "flags"),
    )


def efficiency_table(summary: pd.DataFrame) -> Table:
    """Step time against the ideal step of the same schedule with the measured stages."""
    columns = ["mean_s", "mean_low", "mean_high", "median_s", "ideal_step_s"]
    columns += ["efficiency", "efficiency_low", "efficiency_high", "bubble", "recompute_s"]
    notes = [
        _INTERVALS,
        "bubble: the share of rank-time spent waiting for other ranks, with what lies between "
        "spans of work, which records do not separate; one rank waits for nobody, so 0. "
        "recompute_s: of the step, how long a rank recomputed forwards, of the ranks the "
        "longest.",
    ]
    if summary["weights_s"].notna().any():
        columns += ["weights_s", "weights_share"]
        notes.append(
            "weights_s: of the step, how long a rank on average computed gradients of weights "
            "after those of inputs, under zero-bubble and zbv. weights_share: of its backward."
        )
    return Table(
        "efficiency",
        "Efficiency: the ideal step over the step time",
        _chosen(summary, [*columns, "flags"]),
        (*notes, *split_backward_in_name(summary)),
        _for_paper(
            summary,
            *("mean_s", "mean_low", "mean_high"),
            *("efficiency", "efficiency_low", "efficiency_high"),
            *("bubble", "bubble_low", "bubble_high"),
        ),
    )


def lost_time_table(summary: pd.DataFrame) -> Table:
    """Training steps taken apart, from the linear ideal to what was measured."""
    taken = summary[(summary["phase"] == "train") & summary["lost_linear_s"].notna()]
    return Table(
        "lost_time",
        "Where a training step loses time: seconds that add up to it",
        _chosen(taken, [*LOST_COLUMNS, "mean_s", "of_bound"]).drop(columns="phase"),
        (
            "linear: the best sequential step on as many ranks that lose nothing. schedule: the "
            "bubble of equal stages; with it the step is at the bound. recomputation: recomputed "
            "forwards that the best sequential step does not have. microbatches: what they cost a "
            "sequential run; without one, part of contention. contention: passes slower when ranks "
            "run side by side. imbalance: of stages. waits: beyond these, as for transfers, with "
            "what lies between spans of work; of one rank, which waits for nobody, that is rest. "
            "waits and rest: less the sequential run's share of them.",
        ),
        _for_paper(taken, *LOST_COLUMNS, "mean_s").drop(columns="phase"),
    )


def noise_table(summary: pd.DataFrame) -> Table:
    """How many cells and steps count, and the noise of the machine."""
    columns = ["cells_used", "cells", *DROPPED_COLUMNS, "outliers", "n_effective", "drift"]
    columns += ["cpu_share", "steal_share", "switches_per_step", "data_s", "note"]
    return Table(
        "noise",
        "What was counted, and the noise of the machine",
        _chosen(summary, columns),
        (
            "warmup_dropped: steps that the run marked or that the series shows to be warm-up. "
            "profiled_dropped: steps in which hooks measured each layer. "
            "With n these add up to the steps that all ranks recorded, without those redone after "
            "a resume. "
            "outliers: more than 3.5 robust standard deviations from the median; marked, not "
            "dropped. n_effective: independent steps that the correlated ones are worth. drift: "
            "last third over first third, less 1. cpu_share: processor over busy time.",
        ),
        _for_paper(summary, "n", "drift", "cpu_share"),
    )


def frameworks_table(beside: pd.DataFrame) -> Table:
    """Our layers and the libraries', of the same settings."""
    return Table(
        "frameworks",
        "Milliseconds a training step by whose code computes the layers, and how many times as "
        "fast ours is",
        beside,
        (_INTERVALS, "flags: of how many of each one's cells."),
        beside.drop(columns="flags"),
        keys=5,
    )


def sampled_table(summary: pd.DataFrame) -> Table:
    """Sampled training: an epoch, the parts of a step, edges sampled, memory."""
    columns = ["epoch_s", "epoch_low", "epoch_high", "epoch_from", "mean_s", "data_s"]
    columns += ["sample_s", "gather_s", "compute_s", "allreduce_s", "sampled_edges_per_s"]
    columns += ["peak_rss_mib", "peak_host_mib"]
    drawn = summary[summary["sampler"].notna() & (summary["phase"] == "train")]
    return Table(
        "sampled",
        "Sampled training: seconds of an epoch and of the parts of a step, edges sampled, memory",
        _chosen(drawn, columns).drop(columns="phase"),
        (
            _INTERVALS,
            "mean_s: a step, data_s of it waiting for its mini-batch, with copying features where "
            "the ranks do that. sample_s and gather_s: sampling and copying, perhaps in advance by "
            "threads or processes of their own; a library's loader does not time its sampling. "
            "allreduce_s: averaging gradients. What is left of mean_s is waiting for other ranks "
            "and the rest, such as what lies between spans of work; of one rank the rest alone. "
            "sampled_edges_per_s: on all ranks, over the seconds of the steps. peak_rss_mib: "
            "of a rank; peak_host_mib: of all ranks of a host, what they share counted for each; "
            "without the processes of a library's loader.",
        ),
        _for_paper(drawn, "epoch_s", "epoch_low", "epoch_high", "data_s", "compute_s"),
        keys=4,
    )


def split_backward_in_name(summary: pd.DataFrame) -> tuple[str, ...]:
    """A sentence for each model and data whose gradients of weights take hardly any time.

    There zero-bubble is 1F1B in all but name, and zbv has its virtual stages alone.
    """
    if summary.empty:
        return ()
    few = summary[summary["weights_share"] < LEAST_SHARE]
    varied = [one for one in varying_settings(summary) if one not in ("schedule", "virtual_stages")]
    meaning = {
        "zero-bubble": "zero-bubble is 1F1B there in all but name, and does not pay",
        "zbv": "zbv can pay there by its two virtual stages a rank alone",
    }
    lines = []
    for (model, data), rows in few.groupby(["model", "data"], sort=False):
        where = dict.fromkeys(_place(row, varied) for row in rows.to_dict("records"))
        means = "; ".join(meaning[name] for name in meaning if name in set(rows["schedule"]))
        lines.append(
            f"Model {model} on {data} ({'; '.join(where)}): separate gradients of weights took "
            f"{rows['weights_share'].max():.1%} of backward at most, as its layers compute both "
            f"halves in one. So {means}."
        )
    return tuple(lines)


def _place(row: dict[Any, Any], varied: list[str]) -> str:
    count = row["microbatches"]
    name = f"{row['layout']}, {count} micro-batch{'' if count == 1 else 'es'}"
    return ", ".join(filter(None, (name, settings_in_words(row, varied))))
