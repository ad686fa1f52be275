"""The table of summary.csv: one row a configuration and phase, over all valid repeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.across.likeness import values_in_words
from analysis.loading.run import Run
from analysis.stats.intervals import ONE_RUN, Interval, ratio_in_words
from analysis.summary.above_bound import LayerSeconds, exceeds_bound, explain_excess
from analysis.summary.baseline import Baseline, find_baseline, same_batch_size
from analysis.summary.bounds import balanced_bubble, limits_over
from analysis.summary.configurations import Configuration, make_configurations
from analysis.summary.learnt_columns import learnt_columns
from analysis.summary.lost_columns import lost_columns
from analysis.summary.row_flags import counted_flags
from gnnhpc.core.layout import Layout

CONTRACT_COLUMNS = (
    "model",
    "data",
    "layout",
    "stages",
    "replicas",
    "microbatches",
    "phase",
    "n",
    "mean_s",
    "std_s",
    "min_s",
    "max_s",
    "median_s",
    "samples_per_s",
    "speedup",
    "speedup_low",
    "speedup_high",
    "bound",
    "ideal_step_s",
    "efficiency",
    "bubble",
    "valid",
    "flags",
)
"""The first columns of summary.csv, in this order: scripts rely on them. Others follow."""

VARIANT_COLUMNS = (
    "implementation",
    "batch_size",
    "schedule",
    "virtual_stages",
    "chunks",
    "batchnorm",
)
"""Settings that are always columns; other settings are only where they vary."""

SAMPLING_COLUMNS = ("sampler", "semantics", "fanouts", "workers")
"""Settings that are always columns of a run with sampled cells."""

DROPPED_COLUMNS = ("warmup_dropped", "looked_dropped", "unlike_dropped")
"""Steps that do not count, by why; with `n` they add up to those that were recorded."""

_KEY_COLUMNS = ("model", "data", "layout", "microbatches")
_TEXT_COLUMNS = ("baseline", "effect", "speedup_from", "epoch_from")
_AVERAGED_COLUMNS = ("edges_kept", "node_redundancy", "edge_redundancy", "startup_s")


def summarise(run: Run, baseline: str | Baseline = "seq") -> pd.DataFrame:
    """One row a model, data, layout, micro-batches, other settings that vary, and phase.

    Times are of the steps that count (no warm-up) of valid cells; a row without one has n 0 and
    no times. A speedup is a ratio of samples a second, against `baseline`: a layout, or
    `layout:microbatches` (one micro-batch unless given); InputError for another form.
    """
    wanted = baseline if isinstance(baseline, Baseline) else Baseline.parse(baseline)
    rows = make_configurations(run)
    seconds = LayerSeconds(run)
    varying = _varying(run)
    frame = pd.DataFrame([_summary_row(row, rows, wanted, varying, seconds) for row in rows])
    if frame.empty:
        return pd.DataFrame(columns=list(CONTRACT_COLUMNS))
    # An empty column gets a numeric type, unless it is one of text.
    empty = [c for c in frame.columns if c not in _TEXT_COLUMNS and frame[c].isna().all()]
    frame = frame.astype(dict.fromkeys(empty, float))
    return _sorted(
        frame[[*CONTRACT_COLUMNS, *(c for c in frame.columns if c not in CONTRACT_COLUMNS)]]
    )


def _varying(run: Run) -> list[str]:
    """Settings in which cells of one model and data differ, without those that are always shown.

    Those of sampling are among them wherever a cell is sampled.
    """
    usual = {*_KEY_COLUMNS, *VARIANT_COLUMNS}
    by_study = run.cells.groupby(["model", "data"])
    return [
        key
        for key in run.settings
        if key not in usual
        and (key in SAMPLING_COLUMNS or (by_study[key].nunique(dropna=False) > 1).any())
    ]


def _summary_row(
    row: Configuration,
    rows: Sequence[Configuration],
    wanted: Baseline,
    varying: list[str],
    seconds: LayerSeconds,
) -> dict[str, Any]:
    values, mean, median = row.sample.values, row.sample.mean, row.sample.median
    layout, ideal = row.layout, row.mean("ideal_step_s")
    line: dict[str, Any] = {key: row.settings[key] for key in _KEY_COLUMNS}
    line |= {
        "stages": layout.stages,
        "replicas": layout.replicas,
        "phase": row.phase,
        "n": values.size,
        "mean_s": mean.value,
        "std_s": values.std(ddof=1) if values.size > 1 else None,
        "min_s": values.min() if values.size else None,
        "max_s": values.max() if values.size else None,
        "median_s": median.value,
        "samples_per_s": row.samples_per_s,
        "ideal_step_s": ideal,
        "mean_low": mean.low,
        "mean_high": mean.high,
        "median_low": median.low,
        "median_high": median.high,
        **_interval_columns("efficiency", row.efficiency),
        **_interval_columns("bubble", row.bubble),
        "balanced_bubble": balanced_bubble(row),
    }
    line |= _speedup_columns(row, rows, wanted, seconds)
    line |= {key: row.settings.get(key) for key in (*VARIANT_COLUMNS, *varying)}
    line |= _quality_columns(row)
    if "sampler" in row.settings:
        line |= _drawing_columns(row)
    return line


def _speedup_columns(
    row: Configuration, rows: Sequence[Configuration], wanted: Baseline, seconds: LayerSeconds
) -> dict[str, Any]:
    """Speedups over the baselines, the bound, validity, flags and notes."""
    base, unlike = find_baseline(row, rows, wanted)
    best = base if wanted == Baseline() else find_baseline(row, rows, Baseline())[0]
    same, _ = find_baseline(row, rows, Baseline(microbatches=row.microbatches))
    speedup = row.speedup_over(base) if base else None
    of_medians = row.speedup_over(base, "median") if base else None
    same_m = row.speedup_over(same) if same else None
    limits = limits_over(row, base, wanted)
    flags = counted_flags(row)
    notes = _notes(row, base, wanted, unlike)
    valid = bool(row.step_times)
    if unlike:
        flags.append("unlike")
    efficiency = row.efficiency
    if efficiency and exceeds_bound(efficiency, 1.0):
        flags.append("above-ideal")
        notes.append(
            f"efficiency {efficiency.value:.3f} is above 1 by more than its interval: the schedule "
            "of the measured stages alone takes longer than the step"
        )
    pipelined, most = row.layout.world_size > 1, limits.credible
    if pipelined and base and base is not row and speedup and most and exceeds_bound(speedup, most):
        verdict = explain_excess(
            speedup,
            most,
            seconds.per_sample(base),
            seconds.per_sample(row),
            seconds.stages_without_backward(row),
        )
        flags.append("above-bound" if verdict.explained else "above-bound-unexplained")
        notes.append(verdict.note)
        if most != limits.bound:
            notes.append("that bound is of ranks that never wait")
        valid = valid and verdict.explained
    return {
        **_interval_columns("speedup", speedup),
        "bound": limits.bound,
        "valid": valid,
        "flags": ";".join(sorted(flags)),
        **_interval_columns("speedup_median", of_medians),
        **_interval_columns("speedup_same_m", same_m),
        **_interval_columns("of_bound", _over(speedup, limits.bound)),
        **lost_columns(row, best, same),
        "speedup_from": speedup.basis if speedup and base is not row else None,
        "baseline": str(wanted) if base else None,
        "effect": ratio_in_words(speedup) if speedup and base is not row else None,
        "note": "; ".join(notes),
    }


def _over(speedup: Interval | None, bound: float | None) -> Interval | None:
    return None if speedup is None or bound is None else speedup.over(bound)


def _interval_columns(name: str, value: Interval | None) -> dict[str, float | None]:
    if value is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}


def _notes(
    row: Configuration, base: Configuration | None, wanted: Baseline, unlike: str
) -> list[str]:
    notes = []
    left_out = len(row.cells) - len(row.step_times)
    if left_out:
        notes.append(f"{left_out} of {len(row.cells)} cells left out: {_reasons(row)}")
    if unlike:
        notes.append(f"unlike the {wanted} that was measured, so not compared: {unlike}")
    elif row.step_times and base is None:
        notes.append(f"no valid {wanted} of the same settings to compare with")
    elif base and base is not row and not same_batch_size(row, base):
        notes.append(
            f"{row.together:g} samples a step as the baseline, {row.layout.replicas} replicas "
            "share them"
        )
    cuts = row.used["stage_layers"].dropna()
    if cuts.nunique() > 1:
        of = "part" if row.parts > 1 else "stage"
        notes.append(f"layers a {of}, as each run measured: {values_in_words([*cuts])}")
    if len(row.step_times) == 1:
        notes.append(f"{ONE_RUN}: no interval, only the spread of its steps")
    elif base and base is not row and len(base.step_times) == 1:
        notes.append(f"of the baseline {ONE_RUN}: no interval of the speedup")
    return notes


def _reasons(row: Configuration) -> str:
    cells = row.cells[~row.cells["cell"].isin(row.cell_phases["cell"])]
    why = "invalid (" + cells["flags"].str.replace(";", ", ") + ")"
    status = cells["status"].where(
        cells["status"] != "done", why.where(why != "invalid ()", "invalid")
    )
    unlike = cells["unlike"] != ""
    status = status.where(~unlike, "unlike (" + cells["unlike"] + ")")
    status = status.where(
        ~cells["valid"].astype(bool) | unlike, f"no {row.phase} steps beyond warm-up"
    )
    return ", ".join(f"{count} {reason}" for reason, count in status.value_counts().items())


def _quality_columns(row: Configuration) -> dict[str, Any]:
    """Counts of cells and steps, noise of the machine, memory, and final losses and accuracies."""
    used, units = row.used, row.cell_phases
    return {
        "cells": len(row.cells),
        "cells_used": len(used),
        "attempts": int(row.cells["attempts"].sum()),
        "redone": int(used["redone"].sum()),
        **{name: int(units[name].sum()) for name in DROPPED_COLUMNS},
        "outliers": int(units["outliers"].sum()),
        "n_effective": float(units["n_effective"].sum()) if row.step_times else None,
        "drift": row.mean("drift"),
        "cpu_share": row.mean("cpu_share"),
        "steal_share": row.mean("steal_share"),
        "switches_per_step": row.mean("switches_per_step"),
        "data_s": row.mean("data_s") if row.step_times else None,
        "recompute_s": row.mean("recompute_s") if row.step_times else None,
        "weights_s": row.mean("weights_s") if row.step_times else None,
        "weights_share": row.weights_share,
        "peak_rss_mib": units["peak_rss_mib"].max() if row.step_times else None,
        "peak_device_mib": units["peak_device_mib"].max() if row.step_times else None,
        **{name: used[name].astype(float).mean() for name in _AVERAGED_COLUMNS},
        **learnt_columns(used),
    }


def _drawing_columns(row: Configuration) -> dict[str, Any]:
    """Of sampled mini-batches: an epoch, the parts of a step, edges drawn, memory of a host.

    `data_s` is what the step waited for its mini-batch; `sample_s` and `gather_s` are of the
    threads or processes that made it, perhaps in advance.
    """
    drawn = row.phase == "train" and not pd.isna(row.settings["sampler"]) and row.step_times
    parts = ("compute_s", "allreduce_s", "sample_s", "gather_s", "sampled_edges_per_s")
    return {
        "epoch_s": row.epoch.value if row.epoch else None,
        "epoch_low": row.epoch.low if row.epoch else None,
        "epoch_high": row.epoch.high if row.epoch else None,
        "epoch_from": row.epoch_from,
        **{name: row.mean(name) if drawn else None for name in parts},
        "peak_host_mib": row.cell_phases["peak_host_mib"].max() if row.step_times else None,
    }


def _sorted(frame: pd.DataFrame) -> pd.DataFrame:
    """Sorted by model and data as submitted, then by ranks, replicas, micro-batches and phase."""
    order = pd.DataFrame(
        {
            "model": pd.factorize(frame["model"])[0],
            "data": pd.factorize(frame["data"])[0],
            "world": [Layout.parse(name).world_size for name in frame["layout"]],
            "replicas": frame["replicas"],
            "microbatches": frame["microbatches"],
            "phase": pd.factorize(frame["phase"])[0],
        }
    )
    ordered = frame.loc[order.sort_values(list(order.columns), kind="stable").index]
    # In few blocks: pandas warns of each column added to a frame of over a hundred.
    return ordered.reset_index(drop=True).copy()
