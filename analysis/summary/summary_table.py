"""The table of summary.csv: one row a configuration and phase, over all valid repeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.load.comparable import values_in_words
from analysis.load.flags import count_flags
from analysis.load.run_data import RunData
from analysis.statistics.intervals import ONE_RUN, Interval, ratio_in_words
from analysis.summary.baseline_and_speedup import (
    Baseline,
    balanced_bubble,
    bound_of,
    exceeds,
    explain_excess,
    find_baseline,
    limits_over,
    same_batch_size,
)
from analysis.summary.configurations import Configuration, make_configurations
from analysis.summary.learnt_columns import learnt_columns
from analysis.summary.summary_columns import COLUMN_MEANINGS
from analysis.summary.time_breakdown import COLUMNS, StepSeconds, break_down

CONTRACT_COLUMNS = tuple(COLUMN_MEANINGS)
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

DROPPED_COLUMNS = ("warmup_dropped", "profiled_dropped")
"""Steps that do not count, by reason; with `n` they add up to the recorded steps."""
PHASE_OF_FLAG = {"drift": "train"}
"""Flags that concern one phase; the others concern the whole cell."""

_KEY_COLUMNS = ("model", "data", "layout", "microbatches")
_TEXT_COLUMNS = ("baseline", "effect", "speedup_from", "epoch_from")
_PARTS_OF_STEP = ("data_s", "recompute_s", "weights_s")
_NOISE = ("drift", "cpu_share", "steal_share", "switches_per_step")
_PEAKS = ("peak_rss_mib", "peak_device_mib")
_AVERAGED_COLUMNS = ("edges_kept", "node_redundancy", "edge_redundancy", "startup_s")


@dataclass(frozen=True)
class Summary:
    """What a run measured: its configurations, each with its row of summary.csv."""

    run: RunData
    baseline: Baseline
    configurations: tuple[Configuration, ...]
    table: pd.DataFrame
    """One row a configuration, in the same order: model, data, layout, micro-batches, other
    settings that vary, and phase."""


def summarize(run: RunData, baseline: str | Baseline = "seq") -> Summary:
    """Average the cells that count, and compare each configuration with its baseline.

    Times are of the steps that count (no warm-up) of valid cells; a row without one has n 0 and
    no times. A speedup is a ratio of samples a second, over `baseline`: a layout, or
    `layout:microbatches` (one micro-batch unless given); InputError for another form.
    """
    requested = baseline if isinstance(baseline, Baseline) else Baseline.parse(baseline)
    rows = make_configurations(run)
    varying = _varying(run)
    frame = pd.DataFrame([_summary_row(row, rows, requested, varying, run) for row in rows])
    if frame.empty:
        return Summary(run, requested, (), pd.DataFrame(columns=list(CONTRACT_COLUMNS)))
    # An empty column gets a numeric type, unless it is one of text.
    empty = [c for c in frame.columns if c not in _TEXT_COLUMNS and frame[c].isna().all()]
    frame = frame.astype(dict.fromkeys(empty, float))
    others = (c for c in frame.columns if c not in CONTRACT_COLUMNS)
    # In few blocks: pandas warns of each column added to a frame of over a hundred.
    return Summary(run, requested, tuple(rows), frame[[*CONTRACT_COLUMNS, *others]].copy())


def _varying(run: RunData) -> list[str]:
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
    requested: Baseline,
    varying: list[str],
    run: RunData,
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
        **{f"mean_{end}": getattr(mean, end) for end in ("low", "high")},
        **{f"median_{end}": getattr(median, end) for end in ("low", "high")},
        **_interval_columns("efficiency", row.efficiency),
        **_interval_columns("bubble", row.bubble),
        "balanced_bubble": balanced_bubble(row),
    }
    line |= _speedup_columns(row, rows, requested, run)
    line |= {key: row.settings.get(key) for key in (*VARIANT_COLUMNS, *varying)}
    line |= _quality_columns(row)
    if "sampler" in row.settings:
        line |= _sampling_columns(row)
    return line


def _speedup_columns(
    row: Configuration, rows: Sequence[Configuration], requested: Baseline, run: RunData
) -> dict[str, Any]:
    """Speedups over the baselines, the bound, validity, flags and notes."""
    base, why_none = find_baseline(row, rows, requested)
    best = base if requested == Baseline() else find_baseline(row, rows, Baseline())[0]
    same, _ = find_baseline(row, rows, Baseline(microbatches=row.microbatches))
    speedup = row.speedup_over(base) if base else None
    of_medians = row.speedup_over(base, "median") if base else None
    same_m = row.speedup_over(same) if same else None
    bound, most = limits_over(row, base, requested)
    flags = counted_flags(row)
    notes = _notes(row, base, requested, why_none)
    valid = bool(row.step_times)
    if not row.step_times and row.cells["counts"].any():
        flags.append("only-warm-up")
    if why_none:
        flags.append("not-comparable")
    efficiency = row.efficiency
    if efficiency and exceeds(efficiency, 1.0):
        flags.append("above-ideal")
        notes.append(
            f"efficiency {efficiency.value:.3f} is above 1 by more than its interval: the schedule "
            "of the measured stages alone takes longer than the step"
        )
    several = row.layout.world_size > 1 and base is not row
    if several and base and speedup and most and exceeds(speedup, most):
        explained, note = explain_excess(speedup, most, base, row, run)
        flags.append("above-bound" if explained else "above-bound-unexplained")
        notes += [note] + (["that bound is of ranks that never wait"] if most != bound else [])
        valid = valid and explained
    return {
        **_interval_columns("speedup", speedup),
        "bound": bound,
        "valid": valid,
        "flags": ";".join(sorted(flags)),
        **_interval_columns("speedup_median", of_medians),
        **_interval_columns("speedup_same_m", same_m),
        **_interval_columns("of_bound", speedup.over(bound) if speedup and bound else None),
        **_breakdown_columns(row, best, same),
        "speedup_from": speedup.basis if speedup and base is not row else None,
        "baseline": str(requested) if base else None,
        "effect": ratio_in_words(speedup) if speedup and base is not row else None,
        "note": "; ".join(notes),
    }


def counted_flags(row: Configuration) -> list[str]:
    """The flags of the cells that count, such as `drift 2 of 5`, without those of another phase."""
    other = {flag for flag, phase in PHASE_OF_FLAG.items() if phase != row.phase}
    return count_flags(row.used["flags"], but=other)


def _breakdown_columns(
    row: Configuration, best: Configuration | None, same: Configuration | None
) -> dict[str, float | None]:
    """The parts of a training step; None without the seconds that they follow from.

    `best` is the sequential run in one micro-batch, `same` the one in as many as `row`.
    """
    step, ideal = row.seconds, row.mean("ideal_mean_s")
    alone, most = _for_as_many(row, best), bound_of(row)
    if row.phase != "train" or step is None or ideal is None or alone is None or most is None:
        return dict.fromkeys(COLUMNS)
    ranks, same_seconds = row.layout.world_size, _for_as_many(row, same)
    return break_down(step, ideal, alone, same_seconds, ranks=ranks, stretch=ranks / most)


def _for_as_many(row: Configuration, other: Configuration | None) -> StepSeconds | None:
    """The other's seconds for as many samples a step as `row` has."""
    seconds = other.seconds if other else None
    samples, mine = other.mean("samples") if other else None, row.mean("samples")
    if seconds is None or not samples or not mine:
        return None
    return seconds.times(mine / samples)


def _interval_columns(name: str, value: Interval | None) -> dict[str, float | None]:
    return value.columns(name) if value else dict.fromkeys((name, f"{name}_low", f"{name}_high"))


def _notes(
    row: Configuration, base: Configuration | None, requested: Baseline, why_none: str
) -> list[str]:
    notes = []
    left_out = len(row.cells) - len(row.step_times)
    if left_out:
        notes.append(f"{left_out} of {len(row.cells)} cells left out: {_reasons(row)}")
    if why_none:
        notes.append(f"not comparable with the {requested} that was measured: {why_none}")
    elif row.step_times and base is None:
        notes.append(f"no valid {requested} of the same settings to compare with")
    elif base and base is not row and not same_batch_size(row, base):
        notes.append(
            f"{row.together:g} samples a step as the baseline, {row.layout.replicas} replicas "
            "share them"
        )
    cuts = row.used["stage_layers"].dropna()
    if cuts.nunique() > 1:
        of = "virtual stage" if row.virtual_stages > 1 else "stage"
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
    apart = cells["not_comparable"] != ""
    status = status.where(~apart, "not comparable (" + cells["not_comparable"] + ")")
    warmup = f"no {row.phase} steps beyond {row.cells['warmup_steps'].max():g} of warm-up"
    status = status.where(
        ~cells["valid"].astype(bool) | apart, f"{warmup}: raise {row.phase}_steps in the sweep"
    )
    return ", ".join(f"{count} {reason}" for reason, count in status.value_counts().items())


def _quality_columns(row: Configuration) -> dict[str, Any]:
    """Counts of cells and steps, noise of the machine, memory, and final losses and accuracies."""
    used, units = row.used, row.cell_phases
    return {
        "cells": len(row.cells),
        "cells_used": len(used),
        "attempts": int(row.cells["attempts"].sum()),
        **{name: int(units[name].sum()) for name in DROPPED_COLUMNS},
        "outliers": int(units["outliers"].sum()),
        **{name: row.mean(name) for name in (*_NOISE, *_PARTS_OF_STEP)},
        "weights_share": row.weights_share,
        **{name: units[name].max() for name in _PEAKS},
        **{name: used[name].astype(float).mean() for name in _AVERAGED_COLUMNS},
        **learnt_columns(used),
    }


def _sampling_columns(row: Configuration) -> dict[str, Any]:
    """For sampled mini-batches: an epoch, the parts of a step, sampled edges, memory of a host.

    `data_s` is what the step waited for its mini-batch; `sample_s` and `gather_s` are seconds of
    the threads or processes that made it, perhaps in advance.
    """
    sampled = row.phase == "train" and not pd.isna(row.settings["sampler"]) and row.step_times
    parts = ("compute_s", "allreduce_s", "sample_s", "gather_s", "sampled_edges_per_s")
    return {
        "epoch_s": row.epoch.value if row.epoch else None,
        **{f"epoch_{end}": getattr(row.epoch, end, None) for end in ("low", "high")},
        "epoch_from": row.epoch_from,
        **{name: row.mean(name) if sampled else None for name in parts},
        "peak_host_mib": row.cell_phases["peak_host_mib"].max() if row.step_times else None,
    }
