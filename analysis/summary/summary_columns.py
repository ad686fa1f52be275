"""The columns of summary.csv that scripts rely on, in their order, and what each means."""

from __future__ import annotations

from typing import Final

COLUMN_MEANINGS: Final[dict[str, str]] = {
    "model": "The model's name, or its label.",
    "data": "The data set.",
    "layout": "`seq`, `pp<S>`, `dp<R>` or `dp<R>-pp<S>`.",
    "stages": "S, the stages of a pipeline.",
    "replicas": "R, the replicas of the pipeline.",
    "microbatches": "M, the micro-batches of a mini-batch and replica.",
    "phase": "`train` or `test`.",
    "n": "Steps that count: without warm-up and profiled steps, of all valid repeats.",
    "mean_s": "Mean seconds of a step.",
    "std_s": "Standard deviation of the steps, in seconds.",
    "min_s": "Seconds of the shortest step.",
    "max_s": "Seconds of the longest step.",
    "median_s": "Median seconds of a step.",
    "samples_per_s": "Samples of all replicas over the mean step time.",
    "speedup": "Samples a second over those of the baseline.",
    "speedup_low": "Lower end of the 95 % interval of the speedup, over repeats.",
    "speedup_high": "Upper end of the 95 % interval of the speedup, over repeats.",
    "bound": "The highest speedup of balanced stages: R*S*M / (M + (S-1)/V).",
    "ideal_step_s": "Seconds of the step that the measured costs of the stages give under the "
    "schedule, if nothing else took time.",
    "efficiency": "Ideal step time over measured step time.",
    "bubble": "Share of rank-time in which ranks wait for other ranks.",
    "valid": "Whether a valid cell was measured and no speedup exceeds its bound without a cause.",
    "flags": "Names of the checks that flagged cells of this row, and how many cells.",
}
