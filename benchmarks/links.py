"""Learning links of a sampled graph: ours against DGL's and PyG's own loaders and layers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.bench_links import EDGES, NODES, entries_of
from benchmarks.ratios import paired
from benchmarks.table import Parts, Row, not_measured
from benchmarks.turns import compete, failing

BATCH = 1_024
NAMES = {
    "dgl": "DGL's edge prediction sampler, which leaves out the step's links too",
    "pyg": "PyG's LinkNeighborLoader, which leaves them in, trimmed to what each layer needs",
}
GOALS = {"dgl": 2.0, "pyg": 3.0}


def parts(*, quick: bool, threads: int) -> Parts:
    return {
        "GraphSAGE": partial(_steps, "sage", quick=quick, threads=threads),
        "GCN": partial(_steps, "gcn", quick=quick, threads=threads),
    }


def _steps(model: str, *, quick: bool, threads: int) -> Iterator[Row]:
    nodes, edges = (20_000, 200_000) if quick else (NODES, EDGES)
    entries = entries_of(model, BATCH, nodes, edges)
    missing = {form: why for form in NAMES if (why := failing(entries[form], threads))}
    running = {form: entry for form, entry in entries.items() if form not in missing}
    seconds = compete(running, 2 if quick else 9, threads, warmup=1 if quick else 2)
    what = (
        f"links, {model}, three layers of 256, {nodes:,} nodes, {edges:,} edges, "
        f"{BATCH:,} links a step, seconds"
    )
    for form, name in NAMES.items():
        if form in missing:
            yield not_measured(f"{what}, {name}", GOALS[form], missing[form])
        else:
            yield Row(f"{what}, {name}", paired(seconds["ours"], seconds[form]), GOALS[form])
