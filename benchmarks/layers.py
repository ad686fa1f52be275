"""Graph layers against PyG's and DGL's, of one graph and of many, memory, pipelines, torchgpipe."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bench_gat import PUBMED_SHAPED
from benchmarks.bench_graphs import FORMS as GRAPH_FORMS
from benchmarks.bench_graphs import MODELS as GRAPH_MODELS
from benchmarks.bench_layers import FORMS, KINDS
from benchmarks.isolated import BenchmarkError, call
from benchmarks.launch import WARMUP, Launcher
from benchmarks.ratios import paired
from benchmarks.table import Parts, Row, not_measured
from benchmarks.turns import Entry, compete, failing

DGL_GOALS = {"gcn": 1.5, "sage": 1.5, "graphconv": 1.5, "gin": 2.0}
PYG_GOAL, EDGE_INDEX_GOAL = 1.8, 4.0
GRAPH_GOALS = {"dgl": 2.0, "pyg": 3.0}
MEMORY_GOAL = 2.0
DEEP_GOAL = 0.95
DEEP: dict[str, Any] = {
    "data": {
        "name": "synthetic-citation",
        "nodes": 100_000,
        "edges": 1_000_000,
        "features": 128,
        "classes": 40,
    },
    "chunks": "clustered",
    "batch_size": None,
}
CHUNKS = 8
GPIPE_GOAL = 0.98


def parts(folder: Path, *, quick: bool, threads: int) -> Parts:
    return {
        **{kind: partial(_layer, kind, quick=quick, threads=threads) for kind in KINDS},
        **{f"graphs, {m}": partial(_graphs, m, quick=quick, threads=threads) for m in GRAPH_MODELS},
        "memory": partial(_memory, quick=quick, threads=threads),
        "deep": partial(_deep, Launcher(folder), quick=quick),
        "torchgpipe": partial(_torchgpipe, Launcher(folder / "torchgpipe"), quick=quick),
    }


def _layer(kind: str, *, quick: bool, threads: int) -> Iterator[Row]:
    """Ours against each of the libraries' forms, all in turns."""
    entries, missing = {}, {}
    for form in FORMS:
        entry = Entry("benchmarks.bench_layers:contestant", {"kind": kind, "form": form})
        if form in ("adj_t", "dgl") and (why := failing(entry, threads)):
            missing[form] = why
        else:
            entries[form] = entry
    seconds = compete(entries, 2 if quick else 9, threads, warmup=1 if quick else 2)
    pyg = [form for form in ("edge_index", "adj_t") if form in seconds]
    best = min(pyg, key=lambda form: median(seconds[form]))
    # GIN's goal is against DGL alone.
    goals = {"dgl": DGL_GOALS[kind]}
    if kind != "gin":
        goals |= {"edge_index": EDGE_INDEX_GOAL} | {best: PYG_GOAL}
    what = f"{kind} epoch, 256 wide, 10^5 nodes, 10^6 edges, seconds"
    for form, name in FORMS.items():
        if form in missing:
            yield not_measured(f"{what}, {name}", goals.get(form), missing[form])
        elif form != "fused":
            best_form = ": PyG's best" if form == best else ""
            compared = paired(seconds["fused"], seconds[form])
            yield Row(f"{what}, {name}{best_form}", compared, goals.get(form))


def _graphs(model: str, *, quick: bool, threads: int) -> Iterator[Row]:
    """A step of graph classification against the libraries' loaders and layers, in turns."""
    entries, missing = {}, {}
    for form in GRAPH_FORMS:
        entry = Entry("benchmarks.bench_graphs:contestant", {"form": form, "model": model})
        if form == "dgl" and (why := failing(entry, threads)):
            missing[form] = why
        else:
            entries[form] = entry
    seconds = compete(entries, 2 if quick else 15, threads, warmup=1 if quick else 2)
    what = f"{model}, 5 layers 32 wide, 128 graphs of 24 nodes, seconds a step"
    for form, goal in GRAPH_GOALS.items():
        if form in missing:
            yield not_measured(f"{what}, {GRAPH_FORMS[form]}", goal, missing[form])
        else:
            compared = paired(seconds["ours"], seconds[form])
            yield Row(f"{what}, {GRAPH_FORMS[form]}", compared, goal)


def _memory(*, quick: bool, threads: int) -> Iterator[Row]:
    """What the process held at most, besides what it held before its first epoch."""
    for kind in KINDS[:1] if quick else KINDS:
        peaks = {}
        for form in ("fused", "edge_index"):
            told = [
                call("benchmarks.bench_layers:peak", kind=kind, form=form, threads=threads)
                for _ in range(1 if quick else 2)
            ]
            peaks[form] = [each["peak"] for each in told]
        what = f"{kind}, peak MiB of the process, {FORMS['edge_index']}"
        yield Row(what, paired(peaks["fused"], peaks["edge_index"]), MEMORY_GOAL)


def _deep(launcher: Launcher, *, quick: bool) -> Iterator[Row]:
    """Two stages of 32 layers: the schedule's ideal over the real step; and the same losses."""
    cpus = len(os.sched_getaffinity(0))
    steps = WARMUP + (2 if quick else 8)
    for name in ("resgcn", "gcnii"):
        model = {"name": name, "layers": 4 if quick else 32, "hidden": 64}
        what = f"{model['layers']}-layer {name}, pp2, {CHUNKS} clustered chunks"
        if cpus < 2:
            yield not_measured(f"{what}: seconds a step", DEEP_GOAL, f"{cpus} CPU, 2 ranks")
            continue
        changes = DEEP | {"model": model, "train_steps": steps}
        walls, ideals, alone = [], [], []
        for _ in range(1 if quick else 3):
            pipeline = launcher.run("pp2", CHUNKS, **changes)
            sequential = launcher.run("seq", CHUNKS, **changes)
            walls += pipeline.walls
            ideals += pipeline.ideals
            alone += sequential.walls
            if pipeline.result.final != sequential.result.final:
                raise BenchmarkError(f"{what}: other losses than one process has")
        yield Row(f"{what}: seconds a step, ideal and real", paired(walls, ideals), DEEP_GOAL)
        yield Row(f"{what}: seconds a step, against one process", paired(walls, alone), None)


def _torchgpipe(launcher: Launcher, *, quick: bool) -> Iterator[Row]:
    """The same micro-batches in one process: our sequential engine, and GPipe of two partitions."""
    cells: dict[str, dict[str, Any]] = {
        "GAT": {
            "model": {"name": "gat"},
            "data": PUBMED_SHAPED.model_dump(),
            "chunks": "clustered",
            "batch_size": None,
        },
        "ViG": {"batch_size": 20},
    }
    for name, changes in cells.items():
        ours, theirs = [], []
        for _ in range(1 if quick else 4):
            given = changes | {"train_steps": WARMUP + (3 if quick else 12)}
            ours += launcher.run("seq", 4, **given).walls
            theirs += launcher.run("pp2", 4, engine="torchgpipe", **given).walls
        what = f"{name}, 4 micro-batches in one process, against torchgpipe: seconds a step"
        yield Row(what, paired(ours, theirs), GPIPE_GOAL)
