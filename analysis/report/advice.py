"""What to do about a flag: one line for each, which names the setting to change."""

from __future__ import annotations

ADVICE = {
    "oversubscribed": "Give each rank its CPUs: raise `cpus_per_task` or `nodes` in the site file, "
    "or lower `max_parallel`.",
    "shared-node": "Set `exclusive: true` in the site file, and submit with `--paired` so that all "
    "cells of a repeat use the same nodes.",
    "noisy": "Set `exclusive: true` in the site file, or rerun these cells when the machine is "
    "idle: `gnnhpc rerun RUN --flagged`.",
    "drift": "Raise `train_steps` and `warmup_steps` in the sweep, and rerun: `gnnhpc rerun RUN "
    "--flagged`. Clocks that fall while the machine warms up need a longer warm-up.",
    "affinity": "Set the binding of CPUs in the site file, and stop what changes it (a container, "
    "OMP_PROC_BIND); then rerun.",
    "between-steps": "Look for work outside the step: raise `workers` of the sampler, or put the "
    "data on local disk.",
    "edges-lost": "Set `chunks: halo` in the sweep, which keeps every edge.",
    "inconclusive": "Read the cause: make the custom model deterministic (`gnnhpc.Dropout` for "
    "`F.dropout`), then `gnnhpc verify` it and rerun.",
    "not-comparable": "Rerun these cells on the machines and with the versions of the others, or "
    "show them as rows of their own with `--separate`.",
    "not-validated": "Take out `check: off` in the sweep and rerun; unvalidated numbers are no "
    "result.",
    "equivalent-cells": "Do not use these numbers: run `gnnhpc verify` with the cell's layout, and "
    "look for state that the model keeps between micro-batches.",
    "engine-parity": "Do not use these numbers: run `gnnhpc verify` with the model and layout of "
    "the cell, which names the first tensor that differs.",
    "kernel-parity": "Do not use these numbers: run with `implementation: pyg`, and report the "
    "kernel, compiler and shape that the check names.",
    "damaged": "Copy the run folder again, or rerun the cells: `gnnhpc rerun RUN --failed`.",
    "threads": "Set `cpus_per_task` in the site file; do not set OMP_NUM_THREADS in the job.",
    "no-checkpoint": "Rerun the cell, and give the job more time than a checkpoint takes.",
    "above-bound": "Compare on the same nodes: submit with `--paired` and `exclusive: true`. The "
    "note names the layers that were faster in the pipeline.",
    "above-bound-unexplained": "Measure both layouts again, on the same nodes: `exclusive: true` "
    "in the site file and `--paired`.",
    "above-ideal": "Raise `repeats` and `train_steps`: the ideal step and the measured step come "
    "from too few steps, or from ranks that took turns on shared CPUs.",
    "only-warm-up": "Set `test_steps` (or `train_steps`) above `warmup_steps` in the sweep.",
}
_INVALID = (
    "Do not use these numbers: rerun the cell, and where it fails again report the check's words."
)
_OTHER = "Rerun these cells: `gnnhpc rerun RUN --flagged`."


def advice_of(flag: str, verdict: str = "suspect") -> str:
    """The line for a flag, by its name or else by its verdict."""
    if verdict == "inconclusive":
        flag = "inconclusive"
    if flag in ADVICE:
        return ADVICE[flag]
    return _INVALID if verdict == "invalid" else _OTHER
