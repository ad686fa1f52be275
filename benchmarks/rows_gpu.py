"""Matches on GPUs: steps against limits and the best of PyG's forms, and what two ranks gain.

A recorded step is one of a real run, with all of its records and validation; the engine's step is
the same one taken alone. Both are replayed as CUDA graphs.

All models have a match of their own, in which everything gets ready at the same time: that takes up
to a minute, and all turns together some seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.rows_many_processes import cell
from benchmarks.rows_one_process import (
    FORMS,
    PUBMED,
    SMALL,
    STEP,
    VIG_FORMS,
    Settings,
    gat_cell,
    libraries,
    recorded_run,
    recording_costs,
    vig_cell,
    vig_steps,
)
from benchmarks.table import Comparison, Match
from benchmarks.turns import Contestant, Entry
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
SHAPES = {
    "PubMed's shape": (PUBMED, ("edge_index", "csr", "compiled", "cuda_graph")),
    # Launching takes no time here, so a CUDA graph would only double the memory.
    "10 M edges": (LARGE, ("edge_index", "csr", "compiled")),
}
"""Sizes, and PyG's forms."""
GOALS = {
    "gat": {"PubMed's shape": (0.75e-3, 2.8), "10 M edges": (7.4e-3, 3.8)},
    "gcn": {"PubMed's shape": (0.8e-3, 1.5), "10 M edges": (3.1e-3, 3.6)},
    "sage": {"PubMed's shape": (1.05e-3, 1.5), "10 M edges": (3.6e-3, 2.5)},
}
"""Model and graph -> the most seconds of a recorded step on an H200, and the engine's step in how
many of which the best of PyG's forms is taken."""
RECORDING_GOAL = 1 / 1.02
ALONE = "and of the engine's alone (host work included)"
"""What the host does before a replay is in both."""
VIG_GOAL = 12.8
VIG_SECONDS, VIG_PEAK_MIB = 0.045, 2_867.0
"""The goals of a training step of 1,000 images."""
EDGES_WITHOUT_GOAL = {"GATv2": 10_000_000, "SAGE, max": 2_000_000, "GIN": 10_000_000}
"""PyG stores two values for each edge and channel of a maximum."""
ROUNDS, WARMUP = 8, 2


def gpu(*, quick: bool) -> Iterator[Match]:
    """Rows that have a goal, the most important ones first."""
    yield _whole_graph("gat", quick=quick)
    yield _vig(quick=quick)
    yield _sampled(quick=quick)
    yield _whole_graph("gcn", quick=quick)
    yield _whole_graph("sage", quick=quick)


def gpu_more(*, quick: bool) -> Iterator[Match]:
    """Rows without a goal: other models, and two ranks."""
    for name, edges in EDGES_WITHOUT_GOAL.items():
        sizes, what = SMALL if quick else LARGE | {"edges": edges}, f"{name}, {edges // 10**6} M"
        forms = libraries(MODELS[name], sizes, ("edge_index", "csr", "compiled"), **ON_GPU)
        eager = FORMS["edge_index"]
        yield _match(
            {"engine": _engine_step(MODELS[name], sizes), **forms},
            Comparison(f"{what} edges, seconds of the engine's step", "engine", tuple(forms)),
            Comparison(f"{what} edges, peak MiB, {eager}", "engine", eager, of="peak_mib"),
        )
    yield from _two_ranks(SMALL if quick else LARGE, quick=quick)


def _match(entries: Mapping[str, Entry], *comparisons: Comparison, **how: Any) -> Match:
    counts = {"rounds": ROUNDS, "warmup": WARMUP, "gpus": 1, "timeout_s": 300.0}
    return Match(entries, comparisons, **(counts | how))


def _engine_step(model: Settings, sizes: Settings) -> Contestant:
    return Contestant(STEP, {"settings": gat_cell(sizes, model=model, **ON_GPU)})


def _whole_graph(name: str, *, quick: bool) -> Match:
    """A model on graphs of both shapes."""
    entries: dict[str, Entry] = {}
    comparisons = []
    for shape, (limit_s, goal) in GOALS[name].items():
        sizes, forms = SHAPES[shape]
        sizes = SMALL if quick else sizes
        pyg = libraries(MODELS[name], sizes, forms, **ON_GPU)
        pyg = {f"{form} ({shape})": each for form, each in pyg.items()}
        run, engine = f"run, {shape}", f"engine, {shape}"
        settings = gat_cell(sizes, model=MODELS[name], **ON_GPU)
        entries[run] = recorded_run(settings, ROUNDS + WARMUP)
        entries |= {engine: _engine_step(MODELS[name], sizes), **pyg}
        what = f"{name}, {shape}, seconds of"
        step = f"{what} a recorded step"
        comparisons += [
            Comparison(f"{step}; limit {limit_s:g}", run, limit_s, 1.0),
            Comparison(f"{what} the engine's step", engine, tuple(pyg), goal),
            *recording_costs(f"{step}, {ALONE}", run, RECORDING_GOAL),
        ]
    return _match(entries, *comparisons)


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
    what = "SAGE, sampled, 1,024 nodes of 12 M edges, seconds of a recorded step; limit 0.008"
    limit = Comparison(what, "ours", 0.008, 1.0, of="data_s")
    return _match({"ours": cell(settings, quick, 40)}, limit, rounds=2, warmup=0)


def _vig(*, quick: bool) -> Match:
    """A step of 1,000 images, and PyG's layers at the batch that suits them best."""
    images, sizes = (8, (2,)) if quick else (1_000, (50, 250))
    settings = vig_cell(images, **ON_GPU)
    entries: dict[str, Entry] = {
        "run": recorded_run(settings, ROUNDS + WARMUP, together=3),
        "engine": Contestant(STEP, {"settings": settings, "fresh": False}),
    }
    pyg = {}
    for count in sizes:
        for how, changes in {
            "as they are called": {"cuda_graph": "off"},
            "as a CUDA graph": {},
            "compiled": {"cuda_graph": "off", "compile": "default"},
        }.items():
            (pyg[f"{VIG_FORMS['reference']}, {count}, {how}"],) = vig_steps(
                "reference", count, **ON_GPU, **changes
            )
    # Memory holds all of them at the same time.
    count = 2 if quick else 100
    (pyg[f"{VIG_FORMS['edge_index']}, {count}"],) = vig_steps("edge_index", count, **ON_GPU)
    what = f"ViG, 8 blocks, {images:,} images"
    step = f"{what}, seconds of a recorded step"
    # PyG's seconds are those of an image.
    peers = tuple(pyg)
    return _match(
        entries | pyg,
        Comparison(f"{step}; limit {VIG_SECONDS}", "run", VIG_SECONDS, 1.0),
        Comparison(
            f"{what}, seconds of the engine's step", "engine", peers, VIG_GOAL, factor=images
        ),
        *recording_costs(f"{step}, {ALONE}", "run", RECORDING_GOAL),
        Comparison(
            f"{what}, peak MiB; limit {VIG_PEAK_MIB:g}", "run", VIG_PEAK_MIB, 1.0, of="peak_mib"
        ),
    )


def _two_ranks(sizes: Settings, *, quick: bool) -> Iterator[Match]:
    """Two stages and two replicas, against one process with as many micro-batches.

    Two ranks take a GPU each by NCCL where there are two. Two ranks that share one send through the
    host's memory, which shows what that costs and is no speedup.
    """
    where: dict[str, tuple[int, dict[str, str]]] = {
        "2 ranks of one GPU": (1, {SHARE_VARIABLE: "1", "CUDA_VISIBLE_DEVICES": "0"}),
        "2 ranks of two GPUs": (2, {}),
    }
    for model, settings in {
        "ViG": vig_cell(8 if quick else 2_000, microbatches=4, **ON_GPU),
        "GAT": gat_cell(sizes, microbatches=4, chunks="contiguous", **ON_GPU),
    }.items():
        for name, (gpus, environment) in where.items():
            for layout in ("pp2", "dp2"):
                # Replicas of a graph share its chunks; replicas of images take a mini-batch each.
                halved = {"microbatches": 2} if (layout, model) == ("dp2", "GAT") else {}
                two = settings | {"layout": layout} | halved
                entries = {
                    layout: cell(two, quick, 20, environment=environment),
                    "seq": cell(settings, quick, 20),
                }
                what = f"{model} {layout}, {name}: seconds a step, and one process"
                step = Comparison(what, layout, "seq")
                yield _match(entries, step, rounds=2, warmup=0, gpus=gpus)
