"""Matches on GPUs: one process against the best of PyG's forms, recording, and two ranks.

Two ranks take a GPU each by NCCL where there are two. Two ranks that share one send through the
host's memory, which shows what that costs and is no speedup.
"""

from __future__ import annotations

from benchmarks.rows_many_processes import cell
from benchmarks.rows_one_process import (
    PUBMED,
    PYG_ON_GPUS,
    SMALL,
    STEP,
    Settings,
    epochs,
    gat_cell,
    recorded,
    vig_cell,
    vig_steps,
)
from benchmarks.table import Comparison, Match
from benchmarks.turns import Contestant, Entry
from gnnhpc.distributed.devices import SHARE_VARIABLE

LARGE = {"nodes": 100_000, "edges": 10_000_000, "features": 128, "classes": 7}
LAYERS: dict[str, Settings] = {
    "GATv2": {"name": "gatv2"},
    "SAGE, max": {"name": "sage", "aggregator": "max", "hidden": 256, "dropout": 0.5},
    "GIN": {"name": "gin", "hidden": 256, "dropout": 0.5},
}
"""Models whose epochs are compared with the best of PyG's forms without a goal."""
RECORDING_GOAL = 1 / 1.02
WIDE: dict[str, Settings] = {
    "gat": {},
    "gcn": {"hidden": 256, "dropout": 0.5},
    "sage": {"hidden": 256, "dropout": 0.5},
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
VIG_GOAL = 12.8
VIG_SECONDS = 45e-6
"""The goal of an image of a training step of 1,000."""


def gpu(*, quick: bool, device: str = "cuda") -> list[Match]:
    """All matches; with `device` "cpu" they only try that the benchmark runs."""
    on = {"device": "gpu" if device == "cuda" else "cpu"}
    pubmed, large = (SMALL, SMALL) if quick else (PUBMED, LARGE)
    shapes = {"PubMed's shape": pubmed, "10 M edges": large}
    matches = [
        _best_of_pyg(f"{name}, {shape}", {"name": name} | WIDE[name], shapes[shape], goals, device)
        for (name, shape), goals in GOALS.items()
    ]
    for shape, sizes in shapes.items():
        what = f"gat, {shape}"
        matches += recorded(what, gat_cell(sizes, **on), 2 if quick else 20, RECORDING_GOAL)
    for what, model in LAYERS.items():
        matches.append(_epochs(f"{what}, 10 M edges", model, large, device))
    matches += [_sampled(on, quick=quick), _vig(device, quick=quick)]
    return [*matches, *_two_ranks(on, large, quick=quick)]


def _sampled(on: Settings, *, quick: bool) -> Match:
    """A step of sampled GraphSAGE with the wait for its mini-batch, as a run records it."""
    sizes = {"nodes": 500, "edges": 4_000} if quick else {"edges": 12_000_000}
    settings = {
        "model": {"name": "sage", "layers": 3, "hidden": 256, "dropout": 0.5},
        "data": {"name": "reddit-shaped", **sizes},
        "sampling": {"fanouts": [10, 10, 10]},
        "batch_size": 100 if quick else 1_024,
        **on,
    }
    what = "SAGE, sampled, 1,024 nodes of 12 M edges, seconds a step; limit 0.008"
    limit = Comparison(what, "ours", 0.008, 1.0, of="data_s")
    return Match({"ours": cell(settings, quick, 20)}, [limit], rounds=3, warmup=0)


def _best_of_pyg(
    what: str, model: Settings, data: Settings, goals: tuple[float, float], device: str
) -> Match:
    """A step of the engine of a run, as a CUDA graph, and an epoch of each form of PyG's."""
    limit_s, ratio = goals
    place = "gpu" if device == "cuda" else "cpu"
    others = epochs(model, _forms(model), data, density=1.0, device=device)
    settings = gat_cell(data, model=model, device=place)
    comparisons = [
        Comparison(f"{what}, a step", "ours", tuple(others), ratio),
        Comparison(f"{what}, a step, limit {limit_s:g}", "ours", limit_s, 1.0),
    ]
    ours = Contestant(STEP, {"settings": settings})
    return Match({"ours": ours} | others, comparisons, rounds=10, warmup=3)


def _forms(model: Settings) -> tuple[str, ...]:
    """PyG's forms of a model; its attention layers take no CSR matrix."""
    return tuple(form for form in PYG_ON_GPUS if form != "csr" or "gat" not in model["name"])


def _epochs(what: str, model: Settings, data: Settings, device: str) -> Match:
    """Seconds an epoch and peak memory of our layers and of PyG's forms, on dense features."""
    entries = epochs(model, ("fused", *_forms(model)), data, density=1.0, device=device)
    ours, *pyg = entries
    comparisons = [
        Comparison(f"{what}, an epoch, seconds", ours, tuple(pyg)),
        Comparison(f"{what}, an epoch, peak_mib, {pyg[0]}", ours, pyg[0], of="peak_mib"),
    ]
    return Match(entries, comparisons, rounds=10, warmup=3)


def _vig(device: str, *, quick: bool) -> Match:
    """Seconds an image, of each form at the batch that suits it best."""
    ours, theirs = ((8,), (2,)) if quick else ((1_000, 4_000), (50, 100, 250, 500, 1_000))
    entries: dict[str, Entry] = {"ours": vig_steps("fused", *ours, device=device)}
    forms = ("reference", "edge_index", "adj_t")
    for form in forms:
        entries[form] = vig_steps(form, *theirs, device=device)
    what = "ViG training step, 8 blocks, seconds an image, PyG's layers"
    comparisons = [Comparison(what, "ours", forms, VIG_GOAL)]
    if not quick:
        what = "ViG training step of 1,000 images, seconds an image, and 0.045 ms"
        entries["ours, 1,000 images"] = vig_steps("fused", 1_000, device=device)
        comparisons.append(Comparison(what, "ours, 1,000 images", VIG_SECONDS, goal=1.0))
    return Match(entries, comparisons, rounds=10)


def _two_ranks(on: Settings, sizes: Settings, *, quick: bool) -> list[Match]:
    """Two stages and two replicas, against one process with as many micro-batches."""
    cells = {
        "ViG": vig_cell(8 if quick else 2_000, microbatches=4, **on),
        "GAT": gat_cell(sizes, microbatches=4, chunks="contiguous", **on),
    }
    where = {
        "2 ranks of one GPU": {SHARE_VARIABLE: "1", "CUDA_VISIBLE_DEVICES": "0"},
        "2 ranks of two GPUs": {},
    }
    matches = []
    for model, settings in cells.items():
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
                comparisons = [Comparison(what, layout, "seq")]
                matches.append(Match(entries, comparisons, rounds=2, warmup=0))
    return matches
