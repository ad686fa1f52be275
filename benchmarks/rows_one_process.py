"""Matches of one process: recording, and layers and loaders against PyG's and DGL's."""

from __future__ import annotations

from typing import Any

from benchmarks.table import Comparison, Match
from benchmarks.turns import Contestant

Settings = dict[str, Any]
WHOLE: Settings = {"batch_size": None, "chunks": "contiguous"}
PUBMED = {"nodes": 19_717, "edges": 88_648, "features": 500, "classes": 3}
CORA = {"nodes": 2_708, "edges": 10_556, "features": 1_433, "classes": 7}
LARGE = {"nodes": 100_000, "edges": 1_000_000, "features": 100, "classes": 40}
SMALL = {"nodes": 500, "edges": 4_000, "features": 16, "classes": 3}
ADAM = {"lr": 0.005, "weight_decay": 5e-4}


def gat_cell(sizes: Settings) -> Settings:
    """A GAT on a made-up graph, one mini-batch of which is the whole graph."""
    data = {"name": "synthetic-citation", **sizes}
    return WHOLE | {"model": {"name": "gat"}, "data": data, "layout": "seq", "microbatches": 1}


def vig_cell(images: int, microbatches: int = 1, layout: str = "seq") -> Settings:
    return {
        "model": {"name": "vig"},
        "data": {"name": "synthetic-cifar10"},
        "batch_size": images,
        "microbatches": microbatches,
        "layout": layout,
    }


def recording(*, quick: bool) -> list[Match]:
    """A recorded step of a run over a bare loop of the same layers; 1 % is the goal."""
    cells = {
        "GAT, PubMed's shape": (gat_cell(SMALL if quick else PUBMED), 40),
        "GAT, Cora's shape": (gat_cell(SMALL if quick else CORA), 80),
        "ViG, 20 micro-batches": (vig_cell(20 if quick else 100, 20), 6),
    }
    return [
        recording_match(what, settings, 2 if quick else rounds)
        for what, (settings, rounds) in cells.items()
    ]


def recording_match(what: str, settings: Settings, rounds: int) -> Match:
    warmup = 2
    turns = {"settings": settings, "turns": rounds + warmup}
    return Match(
        {
            "bare": Contestant("benchmarks.recording:bare", {"settings": settings}),
            "run": Contestant("benchmarks.recording:recorded", turns),
        },
        [
            Comparison(f"{what}: seconds of a recorded step, and of a bare loop", "run", "bare", 1 / 1.01),
            Comparison(f"{what}: share of measured steps in the averages", "run", 1.0, 1.0, of="dropped"),
        ],
        rounds=rounds,
        warmup=warmup,
        restarts=5,
    )
