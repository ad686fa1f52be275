"""What the all-reduce of replicas costs, and what reducing buckets during the backward wins.

    python -m benchmarks.bench_allreduce [--models vig gat gcn sage] [--rounds 5] [--bucket-mib 0.5]

Two replicas in one process each, in turn with and without `bucket_mib`, by `allreduce_s` of their
records: from when the last of them has come. What cannot be hidden is the gradients of the layer
that goes backward last. So the most to win is the all-reduce's seconds times the share of all other
layers, if sending took no processor time from computing, which with gloo it does.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bench_gat import PUBMED_SHAPED
from benchmarks.launch import WARMUP, Launcher, Measured
from benchmarks.ratios import paired
from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.experiment.stage_cut import outline

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


def gradient_share(layers: list[LayerSpec]) -> tuple[float, float]:
    """MiB of all gradients, and the share that is there before the last layer's to go backward."""
    counts = [layer.parameters or 0 for layer in layers]
    first = next(count for count in counts if count)
    return sum(counts) * 4 / 2**20, 1 - first / sum(counts)


def allreduces(runs: list[Measured]) -> list[float]:
    """Seconds of each step, the slower replica's."""
    pairs = [pair for run in runs for pair in zip(run.steps(0), run.steps(1), strict=True)]
    return [max(step["allreduce_s"] for step in pair) for pair in pairs]


def told(model: str, runs: list[Measured], in_buckets: list[Measured]) -> str:
    """One model's line; a run of each, one after the other, are a pair."""
    steps, seconds = [wall for run in runs for wall in run.walls], allreduces(runs)
    won = paired([run.step_s for run in in_buckets], [run.step_s for run in runs]).ratio
    buckets_s = median(allreduces(in_buckets))
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
        f"{slow_s * share / slow_step_s:.1%}; in buckets {buckets_s * 1e3:.2f} ms after the "
        f"backward, {won.value:.3f} ({won.low:.3f} to {won.high:.3f}) times as fast"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", choices=SETTINGS, nargs="+", default=list(SETTINGS))
    parser.add_argument("--rounds", type=int, default=5, help="runs of each model")
    parser.add_argument("--steps", type=int, default=10, help="timed in each run")
    parser.add_argument("--bucket-mib", type=float, default=0.5, help="of gradients")
    given = parser.parse_args()
    ways: list[dict[str, Any]] = [{}, {"bucket_mib": given.bucket_mib}]
    runs: dict[str, list[list[Measured]]] = {model: [[] for _ in ways] for model in given.models}
    with tempfile.TemporaryDirectory(prefix="gnnhpc-allreduce-") as folder:
        launcher = Launcher(Path(folder))
        for _ in range(given.rounds):
            for model, done in runs.items():
                changes = SETTINGS[model] | {"train_steps": WARMUP + given.steps}
                for way, measured in zip(ways, done, strict=True):
                    measured.append(launcher.run("dp2", 1, **changes, **way))
    for model, done in runs.items():
        print(told(model, *done))


if __name__ == "__main__":
    main()
