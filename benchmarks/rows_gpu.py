"""Matches on GPUs: one process against the best of PyG's forms, recording, and two ranks.

Two ranks take a GPU each by NCCL where there are two. Two ranks that share one send through the
host's memory, which shows what that costs and is no speedup.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.rows_many_processes import cell
from benchmarks.rows_one_process import (
    FORMS,
    ON_GPUS,
    PUBMED,
    SMALL,
    STEP,
    Settings,
    gat_cell,
    libraries,
    recorded,
    vig_cell,
    vig_steps,
)
from benchmarks.table import Comparison, Match
from benchmarks.turns import Contestant
from gnnhpc.distributed.devices import SHARE_VARIABLE

ON_GPU = {"device": "gpu"}
LARGE = {"nodes": 100_000, "edges": 10_000_000, "features": 128, "classes": 7}
MODELS: dict[str, Settings] = {
    "gat": {"name": "gat"},
    "gcn": {"name": "gcn", "hidden": 256, "dropout": 0.5},
    "sage": {"name": "sage", "hidden": 256, "dropout": 0.5},
    "GATv2": {"name": "gatv2"},
    "SAGE, max": {"name": "sage", "aggregator": "max", "hidden": 256, "dropout": 0.5},
    "GIN": {"name": "gin", "hidden": 256, "dropout": 0.5},
}
GOALS = {
    ("gat", "PubMed's shape"): (0.75e-3, 2.8),
    ("gat", "10 M edges"): (7.4e-3, 3.8),
    ("gcn", "PubMed's shape"): (0.8e-3, 1.5),
    ("sage", "PubMed's shape"): (1.05e-3, 1.5),
    ("gcn", "10 M edges"): (3.1e-3, 3.6),
    ("sage", "10 M edges"): (3.6e-3, 2.5),
}
"""Model and graph -> the most seconds of a step, on an H200, and how many times the best of PyG's
forms may take."""
WITHOUT_GOAL = ("GATv2", "SAGE, max", "GIN")
RECORDING_GOAL = 1 / 1.02
VIG_GOAL = 12.8
VIG_SECONDS = 45e-6
"""The goal of an image of a training step of 1,000."""


def gpu(*, quick: bool) -> Iterator[Match]:
    """All matches."""
    pubmed, large = (SMALL, SMALL) if quick else (PUBMED, LARGE)
    shapes = {"PubMed's shape": pubmed, "10 M edges": large}
    for (name, shape), (limit_s, goal) in GOALS.items():
        entries, pyg = _step_and_epochs(MODELS[name], shapes[shape])
        what = f"{name}, {shape}, a step"
        limit = Comparison(f"{what}, limit {limit_s:g}", "ours", limit_s, 1.0)
        yield Match(entries, [Comparison(what, "ours", pyg, goal), limit], rounds=10, warmup=3)
    for shape, sizes in shapes.items():
        rounds = 2 if quick else 20
        yield from recorded(f"gat, {shape}", gat_cell(sizes, **ON_GPU), rounds, RECORDING_GOAL)
    for name in WITHOUT_GOAL:
        entries, pyg = _step_and_epochs(MODELS[name], large)
        what = f"{name}, 10 M edges, an epoch"
        eager = FORMS["edge_index"]
        peak = Comparison(f"{what}, peak_mib, {eager}", "ours", eager, of="peak_mib")
        seconds = Comparison(f"{what}, seconds", "ours", pyg)
        yield Match(entries, [seconds, peak], rounds=10, warmup=3)
    yield _sampled(quick=quick)
    yield _vig(quick=quick)
    yield from _two_ranks(large, quick=quick)


def _step_and_epochs(
    model: Settings, data: Settings
) -> tuple[dict[str, Contestant], tuple[str, ...]]:
    """A step of the engine of a run, as a CUDA graph, and an epoch of each form of PyG's."""
    pyg = libraries(model, data, ON_GPUS, **ON_GPU)
    settings = gat_cell(data, model=model, **ON_GPU)
    return {"ours": Contestant(STEP, {"settings": settings}), **pyg}, tuple(pyg)


def _sampled(*, quick: bool) -> Match:
    """A step of sampled GraphSAGE with the wait for its mini-batch, as a run records it."""
    sizes = {"nodes": 500, "edges": 4_000} if quick else {"edges": 12_000_000}
    settings = {
        "model": {"name": "sage", "layers": 3, "hidden": 256, "dropout": 0.5},
        "data": {"name": "reddit-shaped", **sizes},
        "sampling": {"fanouts": [10, 10, 10]},
        "batch_size": 100 if quick else 1_024,
        **ON_GPU,
    }
    what = "SAGE, sampled, 1,024 nodes of 12 M edges, seconds a step; limit 0.008"
    limit = Comparison(what, "ours", 0.008, 1.0, of="data_s")
    return Match({"ours": cell(settings, quick, 20)}, [limit], rounds=3, warmup=0)


def _vig(*, quick: bool) -> Match:
    """Seconds an image, of each form at the batch that suits it best."""
    ours, theirs = ((8,), (2,)) if quick else ((1_000, 4_000), (50, 100, 250, 500, 1_000))
    forms = ("reference", "edge_index", "adj_t")
    entries = {form: vig_steps(form, *theirs, **ON_GPU) for form in forms}
    entries["ours"] = vig_steps("fused", *ours, **ON_GPU)
    what = "ViG training step, 8 blocks, seconds an image, PyG's layers"
    comparisons = [Comparison(what, "ours", forms, VIG_GOAL)]
    if not quick:
        what = "ViG training step of 1,000 images, seconds an image, and 0.045 ms"
        entries["ours, 1,000 images"] = vig_steps("fused", 1_000, **ON_GPU)
        comparisons.append(Comparison(what, "ours, 1,000 images", VIG_SECONDS, goal=1.0))
    return Match(entries, comparisons, rounds=10)


def _two_ranks(sizes: Settings, *, quick: bool) -> Iterator[Match]:
    """Two stages and two replicas, against one process with as many micro-batches."""
    where = {
        "2 ranks of one GPU": {SHARE_VARIABLE: "1", "CUDA_VISIBLE_DEVICES": "0"},
        "2 ranks of two GPUs": {},
    }
    for model, settings in {
        "ViG": vig_cell(8 if quick else 2_000, microbatches=4, **ON_GPU),
        "GAT": gat_cell(sizes, microbatches=4, chunks="contiguous", **ON_GPU),
    }.items():
        for name, environment in where.items():
            for layout in ("pp2", "dp2"):
                # Replicas of a graph share its chunks; replicas of images take a mini-batch each.
                halved = {"microbatches": 2} if (layout, model) == ("dp2", "GAT") else {}
                two = settings | {"layout": layout} | halved
                entries = {
                    layout: cell(two, quick, 20, environment=environment),
                    "seq": cell(settings, quick, 20),
                }
                what = f"{model} {layout}, {name}: seconds a step, and one process"
                yield Match(entries, [Comparison(what, layout, "seq")], rounds=2, warmup=0)
