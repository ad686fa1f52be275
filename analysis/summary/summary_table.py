"""The table of summary.csv: one row a configuration and phase, over all valid repeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.load.read_cell_flags import count_flags
from analysis.load.run_data import RunData
from analysis.statistics.intervals import UNKNOWN, interval_of_shares, ratio_in_words
from analysis.summary.baseline_and_speedup import (
    Baseline,
    bound_of,
    exceeds,
    explain_excess,
    find_baseline,
    limits_over,
    shares_of_passes,
)
from analysis.summary.configurations import Configuration, make_configurations, why_not_counted
from analysis.summary.summary_csv_columns import (
    CONTRACT_COLUMNS,
    DROPPED_COLUMNS,
    KEY_COLUMNS,
    SAMPLING_COLUMNS,
    VARIANT_COLUMNS,
    learnt_columns,
)
from analysis.summary.time_breakdown import break_down
from gnnhpc.core.errors import InputError


@dataclass(frozen=True)
class Summary:
    """What a run measured: its configurations, each with its row of summary.csv."""

    run: RunData
    baseline: Baseline
    configurations: tuple[Configuration, ...]
    table: pd.DataFrame
    """One row a configuration, in the same order: model, data, layout, micro-batches, other
    settings that vary, and phase."""


def summarize(run: RunData, baseline: str = "seq") -> Summary:
    """Average the cells that count, and compare each configuration with its baseline.

    Times are of the steps that count (no warm-up) of valid cells; a row without one has n 0 and
    no times. A speedup is a ratio of samples a second, over `baseline`: a layout, or
    `layout:microbatches` (one micro-batch unless given). Raises InputError for another form, and
    for one that no cell has.
    """
    requested = Baseline.parse(baseline)
    rows = make_configurations(run)
    there = sorted({Baseline(row.layout, row.microbatches) for row in rows})
    # The default baseline need not be there.
    if requested not in (Baseline(), *there):
        found = f"{requested}, which no cell has"
        raise InputError("--baseline", None, found, ", ".join(map(str, there)))
    varying = _varying(run)
    frame = pd.DataFrame([_summary_row(row, rows, requested, varying, run) for row in rows])
    empty = frame.columns[frame.isna().all()]
    others = [name for name in frame.columns if name not in CONTRACT_COLUMNS]
    frame = frame.astype(dict.fromkeys(empty, float))[[*CONTRACT_COLUMNS, *others]]
    # In few blocks: pandas warns of each column added to a frame of over a hundred.
    return Summary(run, requested, tuple(rows), frame.copy())


def _varying(run: RunData) -> list[str]:
    """Settings in which cells of one model and data differ, without those that are always shown.

    Those of sampling are among them wherever a cell is sampled.
    """
    by_study = run.cells.groupby(["model", "data"])
    return [
        key
        for key in run.settings
        if key not in (*KEY_COLUMNS, *VARIANT_COLUMNS)
        and (key in SAMPLING_COLUMNS or (by_study[key].nunique(dropna=False) > 1).any())
    ]


def _summary_row(
    row: Configuration,
    rows: Sequence[Configuration],
    requested: Baseline,
    varying: Sequence[str],
    run: RunData,
) -> dict[str, Any]:
    values, mean, layout = row.sample.values, row.sample.mean, row.layout
    samples, most = row.mean("samples"), bound_of(row)
    used, units, shares = row.used, row.cell_phases, shares_of_passes(row)
    line = {key: row.settings[key] for key in KEY_COLUMNS} | {
        "stages": layout.stages,
        "replicas": layout.replicas,
        "phase": row.phase,
        "n": values.size,
        **mean.columns("mean_s"),
        "std_s": values.std(ddof=1) if values.size > 1 else None,
        "min_s": values.min() if values.size else None,
        "max_s": values.max() if values.size else None,
        **row.sample.median.columns("median_s"),
        "samples_per_s": samples / mean.value if samples else None,
        "ideal_step_s": row.mean("ideal_step_s"),
        **(row.interval("efficiency") or UNKNOWN).columns("efficiency"),
        **(row.interval("bubble", interval_of_shares) or UNKNOWN).columns("bubble"),
        "balanced_bubble": None if most is None else 1.0 - most / layout.world_size,
        **_speedup_columns(row, rows, requested, run),
        **{key: row.settings.get(key) for key in (*VARIANT_COLUMNS, *varying)},
        "cells": len(row.cells),
        "cells_used": len(used),
        **{name: int(units[name].sum()) for name in (*DROPPED_COLUMNS, "outliers")},
        **{name: row.mean(name) for name in ("drift", "cpu_share", "steal_share")},
        **{name: row.mean(name) for name in ("data_s", "recompute_s", "weights_s")},
        "weights_share": shares[2] / sum(shares[1:]) if shares and any(shares[1:]) else None,
        **{name: units[name].max() for name in ("peak_rss_mib", "peak_device_mib")},
        "edges_kept": used["edges_kept"].astype(float).mean(),
        **learnt_columns(used),
    }
    return line | (_sampling_columns(row) if "sampler" in row.settings else {})


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
    flags, notes = counted_flags(row), [*_notes(row, base, requested, why_none)]
    valid, compared = bool(row.step_times), base is not None and base is not row
    if not row.step_times and row.cells["counts"].any():
        flags.append("only-warm-up")
    if why_none:
        flags.append("not-comparable")
    efficiency = row.interval("efficiency")
    if efficiency and exceeds(efficiency, 1.0):
        flags.append("above-ideal")
        notes.append(
            f"efficiency {efficiency.value:.3f} is above 1 by more than its interval: the schedule "
            "of the measured stages alone takes longer than the step"
        )
    several = row.layout.world_size > 1 and compared
    if several and base and speedup and most and exceeds(speedup, most):
        valid, note = explain_excess(speedup, most, base, row, run)
        flags.append("above-bound" if valid else "above-bound-unexplained")
        notes += [note] + (["that bound is of ranks that never wait"] if most != bound else [])
    return {
        **(speedup or UNKNOWN).columns("speedup"),
        **(of_medians or UNKNOWN).columns("speedup_median"),
        "bound": bound,
        "valid": valid,
        "flags": ";".join(sorted(flags)),
        "speedup_same_m": same_m.value if same_m else None,
        "of_bound": speedup.value / bound if speedup and bound else None,
        **break_down(row, best, same),
        "speedup_from": speedup.basis if speedup and compared else None,
        "baseline": str(requested) if base else None,
        "effect": ratio_in_words(speedup) if speedup and compared else None,
        "note": "; ".join(notes),
    }


def counted_flags(row: Configuration) -> list[str]:
    """The flags of the cells that count, such as `drift 2 of 5`, without those of another phase."""
    # Drift is of training; the other flags concern the whole cell.
    return count_flags(row.used["flags"], but=() if row.phase == "train" else ("drift",))


def _notes(
    row: Configuration, base: Configuration | None, requested: Baseline, why_none: str
) -> Iterator[str]:
    """What a reader of the row has to know, a clause each."""
    left_out = row.cells[~row.cells["cell"].isin(row.cell_phases["cell"])]
    if len(left_out):
        warmup = (
            f"{row.settings['warmup_steps']:g} of warm-up: raise {row.phase}_steps in the sweep"
        )
        short = f"no {row.phase} steps beyond {warmup}"
        cells = left_out.to_dict("records")
        reasons = Counter(short if cell["counts"] else why_not_counted(cell) for cell in cells)
        words = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        yield f"{len(left_out)} of {len(row.cells)} cells left out: {words}"
    if why_none:
        yield f"not comparable with the {requested} that was measured: {why_none}"
    elif row.step_times and base is None:
        yield f"no valid {requested} of the same settings to compare with"


def _sampling_columns(row: Configuration) -> dict[str, Any]:
    """For sampled mini-batches: an epoch, the parts of a step, sampled edges, memory of a host.

    `data_s` is what the step waited for its mini-batch; `sample_s` and `gather_s` are seconds of
    the threads or processes that made it, perhaps in advance.
    """
    epoch, origin = row.interval("epoch_s"), None
    if epoch:
        fewest, steps = row.cell_phases["whole_epochs"].min(), row.used["steps_per_epoch"].max()
        origin = f"extrapolated from {row.cell_phases['n'].min():g} of {steps:g} steps"
        if fewest:
            epochs = f"{fewest:g} whole epoch{'s' if fewest > 1 else ''}"
            origin = f"measured, {epochs} of {steps:g} steps"
    parts = ("compute_s", "allreduce_s", "sample_s", "gather_s", "sampled_edges_per_s")
    return {
        **(epoch or UNKNOWN).columns("epoch_s"),
        "epoch_from": origin,
        **{name: row.mean(name) for name in parts},
        "peak_host_mib": row.cell_phases["peak_host_mib"].max(),
    }
