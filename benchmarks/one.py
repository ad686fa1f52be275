"""One process: ViG's and GAT's training steps against PyG's and DGL's, and the wait for data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.bench_gat import NAMES as GAT_NAMES
from benchmarks.isolated import BenchmarkError, call
from benchmarks.launch import Launcher
from benchmarks.ratios import against_limit, paired
from benchmarks.table import Parts, Row, not_measured
from benchmarks.turns import Entry, compete, failing, fastest

STEP_LIMIT_S = 12.0
MEMORY_LIMIT_MIB = 1024.0
WAIT_SHARE = 0.01
VIG_GOAL = 20.0
VIG_FORMS = {
    "edge_index": "the study's form with edge_index",
    "adj_t": "the study's form with adj_t",
    "reference": "PyG's layers a batch of images",
}
FUSED_IMAGES = (100, 1000)
REFERENCE_IMAGES = (1, 2, 5, 10, 20)
"""At 1,000 images these would take tens of GB."""
PYG_GOAL, DGL_GOAL = 9.0, 9.0
DENSE_PYG_GOAL, DENSE_DGL_GOAL = 6.0, 5.0
CHUNKS_GOAL = 1 / 1.5
"""Four chunks may cost 1.5 times one."""
MICROBATCHES = {"vig": (5, 10, 20), "gat": (4, 8)}
MICROBATCHES_GOAL = 1 / 1.05
"""A step in micro-batches may take 1.05 times as long as in one."""


def parts(folder: Path, *, quick: bool, threads: int) -> Parts:
    return {
        "ViG": partial(_vig, quick=quick, threads=threads),
        "ViG alone": partial(_vig_alone, quick=quick, threads=threads),
        "GAT": partial(_gat, quick=quick, threads=threads),
        "GAT, dense": partial(_gat, quick=quick, threads=threads, dense=True),
        "micro-batches": partial(_microbatches, quick=quick),
        "data": partial(_data_wait, folder, quick=quick),
    }


def _vig(*, quick: bool, threads: int) -> Iterator[Row]:
    """Seconds an image: every form at the batch that suits it best, then all of them in turns."""
    tries, rounds = (1, 2) if quick else (3, 6)

    def best(form: str, images: Sequence[int]) -> Entry:
        return fastest([_vig_entry(form, count) for count in images], tries, threads)

    entries = {"fused": best("fused", (50,) if quick else FUSED_IMAGES)}
    names, missing = {}, {}
    for form, name in VIG_FORMS.items():
        try:
            entries[form] = best(form, (2,) if quick else REFERENCE_IMAGES)
            names[form] = f"{name} at {entries[form].per:g}"
        except BenchmarkError as error:
            names[form], missing[form] = name, str(error)
    what = f"ViG training step, 8 blocks, seconds an image: ours at {entries['fused'].per:g} images"
    seconds = compete(entries, rounds, threads)
    yield from _against(what, seconds, "fused", names, missing, VIG_GOAL)


def _vig_entry(form: str, images: int) -> Entry:
    return Entry("benchmarks.vig_step:contestant", {"form": form, "images": images}, per=images)


def _against(
    what: str,
    seconds: Mapping[str, Sequence[float]],
    ours: str,
    names: Mapping[str, str],
    missing: Mapping[str, str],
    goal: float,
) -> Iterator[Row]:
    """A row for each form of a peer; the goal is held against the fastest, which says so."""
    measured = [form for form in names if form in seconds]
    best = min(measured, key=lambda form: median(seconds[form]), default=None)
    for form, name in names.items():
        if form in missing:
            yield not_measured(f"{what}, {name}", None if measured else goal, missing[form])
        elif form == best:
            row = f"{what}, {name}" + (": the best form" if len(names) > 1 else "")
            yield Row(row, paired(seconds[ours], seconds[form]), goal)
        else:
            yield Row(f"{what}, {name}", paired(seconds[ours], seconds[form]), None)


def _vig_alone(*, quick: bool, threads: int) -> Iterator[Row]:
    images, rounds = (50, 2) if quick else (1000, 4)
    alone = call("benchmarks.vig_step:alone", images=images, rounds=rounds, threads=threads)
    what = f"ViG training step, {images} images"
    seconds, peak = alone["seconds"], alone["peak_mib"]
    limits = f"seconds; limit {STEP_LIMIT_S:g}", f"peak MiB; limit {MEMORY_LIMIT_MIB:g}"
    yield Row(f"{what}, {limits[0]}", against_limit(seconds, STEP_LIMIT_S), 1.0)
    yield Row(f"{what}, {limits[1]}", against_limit(peak, MEMORY_LIMIT_MIB), 1.0)


def _gat(*, quick: bool, threads: int, dense: bool = False) -> Iterator[Row]:
    """One form a process, all at the whole graph: there is no batch to choose.

    The libraries take dense features either way; ours as they are stored, unless `dense`.
    """
    entries, missing = {}, {}
    for form in ("fused", *(() if dense else ("chunks",)), "edge_index", "adj_t", "dgl"):
        entry = Entry("benchmarks.bench_gat:contestant", {"form": form, "dense": dense})
        if form in ("adj_t", "dgl") and (why := failing(entry, threads)):
            missing[form] = why
        else:
            entries[form] = entry
    seconds = compete(entries, 3 if quick else 15, threads, warmup=1 if quick else 3)
    what = f"GAT epoch, 19,717 nodes, 88,648 edges, 500 {'dense ' * dense}features, seconds"
    goals = (DENSE_PYG_GOAL, DENSE_DGL_GOAL) if dense else (PYG_GOAL, DGL_GOAL)
    pyg = {form: GAT_NAMES[form] for form in ("edge_index", "adj_t")}
    yield from _against(what, seconds, "fused", pyg, missing, goals[0])
    yield from _against(what, seconds, "fused", {"dgl": GAT_NAMES["dgl"]}, missing, goals[1])
    if dense:
        return
    chunks = paired(seconds["chunks"], seconds["fused"])
    yield Row(f"{what}, four halo chunks against the whole graph", chunks, CHUNKS_GOAL)


def _microbatches(*, quick: bool) -> Iterator[Row]:
    """A sequential step in several against one, one thread; GAT's chunks are contiguous."""
    for model, all_counts in MICROBATCHES.items():
        counts = all_counts[:1] if quick else all_counts
        entries = {
            str(count): Entry(
                "benchmarks.bench_microbatches:contestant",
                {"model": model, "microbatches": count, "chunks": "contiguous"},
            )
            for count in (1, *counts)
        }
        seconds = compete(entries, 2 if quick else 9, threads=1, warmup=1 if quick else 2)
        for count in counts:
            what = f"{model} step, sequential, seconds: {count} micro-batches, and one"
            yield Row(what, paired(seconds[str(count)], seconds["1"]), MICROBATCHES_GOAL)


def _data_wait(folder: Path, *, quick: bool) -> Iterator[Row]:
    """Time from step to step without waiting for data, over that with it."""
    launcher = Launcher(folder)
    run = launcher.run("seq", 1, batch_size=20 if quick else 100, train_steps=5 if quick else 10)
    steps = run.steps(0)
    wall = [step["wall_s"] for step in steps]
    waited = [step["wall_s"] + step["data_s"] for step in steps]
    yield Row(
        f"Wait for data, ViG, seconds a step with it and without; at most {WAIT_SHARE:.0%}",
        paired(waited, wall),
        1.0 - WAIT_SHARE,
    )
