"""Seconds of a step of sampled training: ours, DGL's and PyG's layers, each with its own sampler.

    python -m benchmarks.bench_sampled [--model sage] [--batch 1024] [--rounds 9] [--threads 2]
        [--workers 0] [--forms dgl pyg]

Boca's models on a graph of Reddit's shape, three layers of ten neighbours: drawing, gathering
features, forward, backward and Adam, one after another unless there are workers. Each contestant
has a process of its own (`benchmarks.turns`) and takes the same nodes in the same order. The
libraries have their memory from the C library as it comes, unless `memory kept` is asked for: what
our runs ask of it (`gnnhpc.distributed.allocator`). Last come the dense products of our step alone,
which every library has to compute.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.drawn_step import drawn_step
from benchmarks.products_alone import products_alone
from benchmarks.turns import Entry, compete, those_that_run
from gnnhpc.experiment.experiment import Experiment

FORMS: dict[str, dict[str, Any]] = {
    "ours": {},
    "dgl": {"sampler": "dgl"},
    "dgl, not fused": {"sampler": "dgl", "fused": False},
    "pyg": {"sampler": "pyg"},
    "pyg, untrimmed": {"sampler": "pyg", "trim": False},
}
"""Whose sampler, and layers."""
KEPT = ", memory kept"
"""After the name of a library's form: with the allocator's settings of a run of ours."""
PRODUCTS = "its products"
"""Of our step, alone: no form of the layers can be faster. Attention has none apart."""
MODELS: dict[str, dict[str, Any]] = {
    "sage": {"name": "sage", "layers": 3, "hidden": 256, "dropout": 0.5},
    "gat": {"name": "gat", "layers": 3, "heads": 1, "hidden": 16, "dropout": 0.6},
    "gcn": {"name": "gcn", "layers": 3, "hidden": 256, "dropout": 0.5},
    "gin": {"name": "gin", "layers": 3, "hidden": 256, "dropout": 0.5},
}
STEPS = 10_000


def contestant(
    form: str, model: str, batch: int, nodes: int, edges: int, workers: int
) -> Callable[[], float]:
    """One step a turn."""
    sampling = FORMS.get(form.removesuffix(KEPT), {})
    implementation = sampling.get("sampler", "fused")
    experiment = Experiment.model_validate(
        {
            "model": MODELS[model] | {"implementation": implementation},
            "data": {"name": "reddit-shaped", "nodes": nodes, "edges": edges},
            "sampling": {"fanouts": [10, 10, 10], "workers": workers, **sampling},
            "batch_size": batch,
            "train_steps": STEPS,
            "test_steps": 0,
            "optimizer": {"lr": 0.005, "weight_decay": 5e-4},
        }
    )
    if form == PRODUCTS:
        return products_alone(experiment)
    return drawn_step(experiment, as_in_a_run=form == "ours" or form.endswith(KEPT))


def main() -> None:
    choices = [*FORMS, *(f"{form}{KEPT}" for form in FORMS if form != "ours")]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=MODELS, default="sage")
    parser.add_argument("--batch", type=int, default=1024, help="nodes of a mini-batch")
    parser.add_argument("--rounds", type=int, default=9, help="steps timed")
    parser.add_argument("--threads", type=int, default=2, help="threads of every contestant")
    parser.add_argument("--nodes", type=int, default=232_965, help="of the graph")
    parser.add_argument("--edges", type=int, default=114_615_892, help="of the graph")
    parser.add_argument("--workers", type=int, default=0, help="that draw in advance")
    parser.add_argument("--forms", nargs="+", choices=choices, help="beside ours; all if not told")
    given = parser.parse_args()
    named = ("model", "batch", "nodes", "edges", "workers")
    settings = {name: getattr(given, name) for name in named}
    entries = {
        form: Entry("benchmarks.bench_sampled:contestant", {"form": form} | settings)
        for form in dict.fromkeys(("ours", *(given.forms or FORMS), PRODUCTS))
        if form != PRODUCTS or given.model != "gat"
    }
    entries = those_that_run(entries, given.threads)
    seconds = compete(entries, given.rounds, given.threads, warmup=2)
    for form, values in seconds.items():
        ratios = sorted(v / o for v, o in zip(values, seconds["ours"], strict=True))
        print(
            f"{form:18} median {statistics.median(values):6.3f} s a step"
            f"  ({min(values):.3f} to {max(values):.3f}), ours {statistics.median(ratios):5.2f}"
            f" times as fast ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
