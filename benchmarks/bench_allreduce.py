"""What the all-reduce of replicas costs, and the most that hiding it behind a backward could win.

    python -m benchmarks.bench_allreduce [--models vig gat gcn sage] [--rounds 5]

Two replicas in one process each, by `allreduce_s` of their records: from when the last of them has
come. A bucket may be on its way while earlier layers go backward, as DistributedDataParallel does
(Li et al. 2020, arXiv:2006.15704, section 3.2.3); what cannot be hidden is the gradients of the
layer that goes backward last. So the most to win is the all-reduce's seconds times the share of all
other layers, if sending took no processor time from computing, which with gloo it does.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bench_gat import PUBMED_SHAPED
from benchmarks.launch import WARMUP, Launcher, Measured
from gnnhpc.core.outline import LayerOutline
from gnnhpc.spec.stage_cut import outline

GRAPH = {"name": "reddit-shaped", "nodes": 40_000, "edges": 400_000}
WHOLE: dict[str, Any] = {"batch_size": None, "chunks": "contiguous"}
SETTINGS: dict[str, dict[str, Any]] = {
    "vig": {},
    "gat": WHOLE | {"model": {"name": "gat"}, "data": PUBMED_SHAPED.model_dump()},
    "gcn": WHOLE | {"model": {"name": "gcn", "layers": 4, "hidden": 256}, "data": GRAPH},
    "sage": {
        "model": {"name": "sage", "layers": 3, "hidden": 256},
        "data": GRAPH,
        "sampling": {"fanouts": [10, 10, 10]},
        "batch_size": 512,
    },
}
"""Fields of an experiment, of the models of the three studies and a wide one."""
BANDWIDTH = 200e6
"""Bits a second of the cluster tests' slow network; of two replicas each sends all once."""


def gradient_share(layers: list[LayerOutline]) -> tuple[float, float]:
    """MiB of all gradients, and the share that is there before the last layer's to go backward."""
    counts = [layer.parameters or 0 for layer in layers]
    first = next(count for count in counts if count)
    return sum(counts) * 4 / 2**20, 1 - first / sum(counts)


def told(model: str, runs: list[Measured]) -> str:
    """One model's line."""
    steps, seconds = [], []
    for run in runs:
        steps += run.walls
        both = zip(run.steps(0), run.steps(1), strict=True)
        seconds += [max(step["allreduce_s"] for step in pair) for pair in both]
    experiment = runs[0].experiment
    mib, share = gradient_share(list(outline(experiment)))
    step_s, reduce_s = median(steps), median(seconds)
    slow_s = mib * 2**20 * 8 / BANDWIDTH
    slow_step_s = step_s - reduce_s + slow_s
    low, high = min(seconds), max(seconds)
    return (
        f"{model}: {step_s * 1e3:.1f} ms a step, all-reduce of {mib:.2f} MiB {reduce_s * 1e3:.2f} "
        f"({low * 1e3:.2f} to {high * 1e3:.2f}) ms, {reduce_s / step_s:.2%} of it; "
        f"{share:.0%} could be hidden, which would win {reduce_s * share / step_s:.2%}; "
        f"at {BANDWIDTH / 1e6:.0f} Mbit/s, on paper, {slow_s * 1e3:.0f} ms, and "
        f"{slow_s * share / slow_step_s:.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", choices=SETTINGS, nargs="+", default=list(SETTINGS))
    parser.add_argument("--rounds", type=int, default=5, help="runs of each model")
    parser.add_argument("--steps", type=int, default=10, help="timed in each run")
    given = parser.parse_args()
    runs: dict[str, list[Measured]] = {model: [] for model in given.models}
    with tempfile.TemporaryDirectory(prefix="gnnhpc-allreduce-") as folder:
        launcher = Launcher(Path(folder))
        for _ in range(given.rounds):
            for model, done in runs.items():
                changes = SETTINGS[model] | {"train_steps": WARMUP + given.steps}
                done.append(launcher.run("dp2", 1, **changes))
    for model, done in runs.items():
        print(told(model, done))


if __name__ == "__main__":
    main()
