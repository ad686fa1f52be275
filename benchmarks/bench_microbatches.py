"""What micro-batches cost beside their samples: a sequential step in 1, 5, 10, 20 of them.

    python -m benchmarks.bench_microbatches [--model vig] [--counts 1 5 10 20] [--rounds 9]

The step of a run's own engine, without records: zero gradients, forwards and backwards, Adam. Each
number of micro-batches has a process of its own (`benchmarks.turns`) and takes the same mini-batch
in its turn. GAT's are chunks of one graph: in halo chunks neighbours of other chunks are computed
again, which is told beside; contiguous ones lose edges instead.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.bench_gat import PUBMED_SHAPED
from benchmarks.turns import Entry, compete
from gnnhpc.core.layout import Layout
from gnnhpc.distributed.allocator import keep_freed_memory, map_large_blocks_separately
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.training.setup import set_up

STEPS = 10_000
SETTINGS: dict[str, dict[str, Any]] = {
    "vig": {
        "model": {"name": "vig"},
        "data": {"name": "synthetic-cifar10", "train": 100, "test": 100},
        "batch_size": 100,
    },
    "gat": {
        "model": {"name": "gat"},
        "data": PUBMED_SHAPED.model_dump(),
    },
}
CHUNKS = ("contiguous", "halo")


def contestant(model: str, microbatches: int, chunks: str | None = None) -> Callable[[], float]:
    """A training step of the same mini-batch, with a run's allocator."""
    settings = SETTINGS[model] | {"microbatches": microbatches, "train_steps": STEPS}
    if chunks is not None and microbatches > 1:
        settings["chunks"] = chunks
    (map_large_blocks_separately if model == "vig" else keep_freed_memory)()
    experiment = Experiment.model_validate(settings | {"test_steps": 0})
    parts = set_up(experiment, Mesh(Layout(), 0, torch.device("cpu")), None)
    parts.stage.train()
    optimizer = parts.optimizer
    assert optimizer is not None
    with parts.batches.open("train", 0, 1) as batches:
        batch = next(batches)

    def turn() -> float:
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=False)
        parts.engine.train_step(batch)
        parts.stage.end_minibatch()
        optimizer.step()
        return time.perf_counter() - began

    return turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=SETTINGS, default="vig")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 5, 10, 20])
    parser.add_argument("--chunks", choices=CHUNKS, help="of GAT; contiguous if not told")
    parser.add_argument("--rounds", type=int, default=9, help="steps timed")
    parser.add_argument("--threads", type=int, default=1, help="threads of every contestant")
    given = parser.parse_args()
    chunks = (given.chunks or CHUNKS[0]) if given.model == "gat" else None
    entries = {
        count: Entry(
            "benchmarks.bench_microbatches:contestant",
            {"model": given.model, "microbatches": count, "chunks": chunks},
        )
        for count in given.counts
    }
    named = {str(count): entry for count, entry in entries.items()}
    seconds = compete(named, given.rounds, given.threads, warmup=2)
    base = seconds[str(given.counts[0])]
    for name, values in seconds.items():
        ratios = sorted(v / b for v, b in zip(values, base, strict=True))
        each = (statistics.median(values) - statistics.median(base)) / max(int(name) - 1, 1)
        print(
            f"{given.model}, {name:>3} micro-batches: {statistics.median(values):.4f} s a step, "
            f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}) of "
            f"{given.counts[0]}'s; {each * 1e3:.2f} ms for each one more"
        )


if __name__ == "__main__":
    main()
