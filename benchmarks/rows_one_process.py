"""Matches of one process: recording, and layers and loaders against PyG's and DGL's."""

from __future__ import annotations

from typing import Any

from benchmarks.table import Comparison, Match
from benchmarks.turns import Contestant

Settings = dict[str, Any]
STEP = "benchmarks.contestants.our_steps:step"
PUBMED = {"nodes": 19_717, "edges": 88_648, "features": 500, "classes": 3}
CORA = {"nodes": 2_708, "edges": 10_556, "features": 1_433, "classes": 7}
LARGE = {"nodes": 100_000, "edges": 1_000_000, "features": 100, "classes": 40}
SMALL = {"nodes": 500, "edges": 4_000, "features": 16, "classes": 3}
ADAM = {"lr": 0.005, "weight_decay": 5e-4}
LIBRARIES = {
    "edge_index": "PyG with edge_index",
    "adj_t": "PyG with adj_t",
    "csr": "PyG with CSR",
    "compiled": "PyG with torch.compile",
    "dgl": "DGL",
}
PYG_FORMS = ("edge_index", "adj_t", "csr", "compiled")
PYG_ON_GPUS = {
    "edge_index": LIBRARIES["edge_index"],
    "csr": LIBRARIES["csr"],
    "compiled": LIBRARIES["compiled"],
    "cuda_graph": "PyG as a CUDA graph over prepared edges",
}
VIG_FORMS = {
    "edge_index": "the study's form with edge_index",
    "adj_t": "the study's form with adj_t",
    "reference": "PyG's layers a batch of images",
}


def gat_cell(sizes: Settings, **changes: Any) -> Settings:
    """A GAT on a made-up graph; one mini-batch is the whole graph."""
    data = {"name": "synthetic-citation", **sizes}
    return {"model": {"name": "gat"}, "data": data, "layout": "seq", "microbatches": 1} | changes


def vig_cell(images: int, **changes: Any) -> Settings:
    """ViG on made-up images."""
    data = {"name": "synthetic-cifar10", "train": 2 * images, "test": 2 * images}
    settings = {"model": {"name": "vig"}, "data": data, "batch_size": images}
    return settings | {"layout": "seq", "microbatches": 1} | changes


def recording(*, quick: bool) -> list[Match]:
    """A recorded step of a run over a bare loop of the same layers."""
    sizes = (SMALL, SMALL, 20) if quick else (PUBMED, CORA, 100)
    cells = {
        "GAT, PubMed's shape": (gat_cell(sizes[0]), 40),
        "GAT, Cora's shape": (gat_cell(sizes[1]), 80),
        "ViG, 20 micro-batches": (vig_cell(sizes[2], microbatches=20), 10),
    }
    return [
        match
        for what, (cell, rounds) in cells.items()
        for match in recorded(what, cell, 2 if quick else rounds)
    ]


def recorded(what: str, cell: Settings, rounds: int, goal: float = 1 / 1.01) -> list[Match]:
    """Goals: recording costs 1 % at most, and an analysis averages all measured steps."""
    run = {"settings": cell, "turns": rounds + 2}
    turns = Match(
        {"run": Contestant("benchmarks.contestants.recording:run", run)},
        [
            Comparison(
                f"{what}: seconds of a recorded step, and {meaning}",
                *("run", "run", goal),
                reference_of=reference,
            )
            for reference, meaning in {
                "bare": "bare",
                "paused": "bare after a pause as long as the run's",
            }.items()
        ],
        rounds=rounds,
    )
    settled = {"steps": 40, "warmup_steps": 8, **cell}
    whole = Match(
        {"run": Contestant("benchmarks.contestants.cells:cell", settled)},
        [
            Comparison(
                f"{what}: measured steps, and those that an analysis averages",
                *("run", "run", 1.0, "measured_steps", "averaged_steps"),
            )
        ],
        rounds=2,
        warmup=0,
    )
    return [turns, whole]


def vig_steps(form: str, *images: int, device: str = "cpu") -> list[Contestant]:
    """Training steps of ViG at several sizes of a mini-batch, in seconds an image."""
    function = "benchmarks.contestants.vig_steps:contestant"
    given = {"form": form, "device": device}
    return [Contestant(function, given | {"images": n}, n) for n in images]


def vig(*, quick: bool) -> list[Match]:
    """Seconds an image, of every form at the batch that suits it best; then a step of 1,000."""
    # At 1,000 images the libraries' forms take tens of GB.
    few, many = ((2,), 50) if quick else ((1, 2, 5, 10, 20), 1_000)
    entries = {VIG_FORMS[form]: vig_steps(form, *few) for form in VIG_FORMS}
    what = "ViG training step, 8 blocks, seconds an image"
    against = Comparison(what, "ours", tuple(entries), 20.0)
    alone = f"ViG training step, {many} images"
    return [
        Match(
            {"ours": vig_steps("fused", *({50, 100} & {many, 100}), many), **entries},
            [against],
            rounds=6,
        ),
        Match(
            {"ours": vig_steps("fused", many)},
            [
                Comparison(f"{alone}: seconds; limit 12", "ours", 12.0 / many, 1.0),
                Comparison(f"{alone}: peak MiB; limit 1024", "ours", 1024.0, 1.0, of="peak_mib"),
            ],
            rounds=4,
            warmup=1,
        ),
    ]


def epochs(
    model: Settings, forms: tuple[str, ...], data: Settings, **arguments: Any
) -> dict[str, Contestant]:
    """Epochs on a whole graph, of our layers and of the libraries' programs."""
    given = {"model": model, "data": data, **arguments}
    names = {"fused": "ours", "pyg": "our model of PyG's layers"} | LIBRARIES | PYG_ON_GPUS
    function = "benchmarks.contestants.graph_layers:contestant"
    return {names[form]: Contestant(function, {"form": form, **given}) for form in forms}


def gat(*, quick: bool) -> list[Match]:
    """GAT on PubMed's shape, with a tenth of the features not zero, and with all."""
    data = SMALL if quick else PUBMED
    pyg = tuple(LIBRARIES[form] for form in PYG_FORMS if form != "csr")
    forms = ("fused", *(form for form in LIBRARIES if form != "csr"))
    matches = []
    for density, goals in ((0.1, (9.0, 9.0)), (1.0, (6.0, 5.0))):
        which = "dense features" if density == 1.0 else "features as they are stored"
        what = f"GAT epoch, {data['nodes']:,} nodes, {which}, seconds"
        entries = epochs({"name": "gat"}, forms, data, density=density)
        comparisons = [
            Comparison(what, "ours", pyg, goals[0]),
            Comparison(f"{what}, DGL", "ours", "DGL", goals[1]),
        ]
        if density < 1.0:
            cut = epochs({"name": "gat"}, ("fused",), data, density=density, chunks=4)
            entries["chunks"] = cut["ours"]
            # Four halo chunks may cost 1.5 times the whole graph.
            halo = f"{what}: 4 halo chunks, and the whole graph"
            comparisons.append(Comparison(halo, "chunks", "ours", 1 / 1.5))
        matches.append(Match(entries, comparisons, rounds=15, warmup=3))
    return matches


def layers(*, quick: bool) -> list[Match]:
    """Two convolutions, 256 wide, on 10^6 edges; GIN's goal is against DGL alone."""
    data, matches = SMALL if quick else LARGE, []
    pyg = tuple(LIBRARIES[form] for form in PYG_FORMS)
    for name in ("gcn", "sage", "graphconv", "gin"):
        model = {"name": name, "hidden": 256, "dropout": 0.5}
        entries = epochs(model, ("fused", *LIBRARIES), data, density=1.0, all_labelled=True)
        what = f"{name} epoch, 256 wide, {data['nodes']:,} nodes, {data['edges']:,} edges"
        gin = name == "gin"
        comparisons = [
            Comparison(f"{what}, seconds", "ours", pyg, None if gin else 1.8),
            Comparison(f"{what}, seconds, DGL", "ours", "DGL", 2.0 if gin else 1.5),
            Comparison(f"{what}, peak MiB, {pyg[0]}", "ours", pyg[0], 2.0, of="peak_mib"),
        ]
        matches.append(Match(entries, comparisons))
    return matches


def _against_loaders(
    function: str, what: str, goals: dict[str, float], rounds: int = 9, **given: Any
) -> Match:
    """Our steps and those of the libraries' loaders and layers; `goals` has one for each."""
    loaders = {
        name: Contestant(
            f"benchmarks.contestants.library_loaders:{function}", {"library": name.lower()} | given
        )
        for name in goals
    }
    comparisons = [
        Comparison(f"{what}, {name}'s loader and layers", "ours", name, goal)
        for name, goal in goals.items()
    ]
    return Match({"ours": Contestant(STEP, given), **loaders}, comparisons, rounds)


def graphs(*, quick: bool) -> list[Match]:
    """Graph classification: five convolutions, 32 wide, batches of 128 graphs of 24 nodes."""
    matches = []
    for name in ("gin", "gcn"):
        settings = {
            "model": {"name": name, "layers": 5, "hidden": 32, "dropout": 0.5},
            "data": {"name": "synthetic-graphs", "graphs": 1_000 if quick else 10_000},
            "batch_size": 128,
            "optimizer": {"lr": 0.01},
        }
        what = f"{name}, 5 layers 32 wide, 128 graphs of 24 nodes, seconds a step"
        goals = {"DGL": 2.0, "PyG": 3.0}
        # A step takes milliseconds, so a turn is 20 of them.
        matches.append(_against_loaders("graphs", what, goals, 15, settings=settings, steps=20))
    return matches


def links(*, quick: bool) -> list[Match]:
    """Links of a graph of ogbl-collab's size: 1,024 and as many negatives a step."""
    nodes, edges = (20_000, 200_000) if quick else (235_868, 2_570_930)
    matches = []
    for name in ("sage", "gcn"):
        settings = {
            "model": {"name": name, "layers": 3, "hidden": 256, "dropout": 0.5},
            "data": {"name": "reddit-shaped", "nodes": nodes, "edges": edges, "features": 128},
            "sampling": {"fanouts": [10, 10, 10], "workers": 0},
            "task": {"name": "links", "embedding": 256},
            "batch_size": 1_024,
            "optimizer": ADAM,
        }
        what = f"links, {name}, 3 layers 256 wide, {edges:,} edges, 1,024 a step, seconds"
        goals = {"DGL": 2.0, "PyG": 3.0}
        matches.append(_against_loaders("links", what, goals, settings=settings))
    return matches


def sampled(*, quick: bool) -> list[Match]:
    """Sampled training on a graph of Reddit's shape, each library with its sampler and layers.

    The libraries' memory comes from the C library as in their own programs, or is kept once it is
    freed, as a run of ours keeps it.
    """
    shape = {"nodes": 20_000, "edges": 200_000} if quick else {}
    matches = []
    for model in (
        {"name": "sage", "layers": 3, "hidden": 256, "dropout": 0.5},
        {"name": "gat", "layers": 3, "heads": 1, "hidden": 16, "dropout": 0.6},
    ):
        entries = {}
        for name in ("ours", "dgl", "pyg", "dgl, memory kept"):
            library = name.partition(",")[0]
            settings = {
                "model": model | {"implementation": "fused" if library == "ours" else library},
                "data": {"name": "reddit-shaped", **shape},
                "sampling": {"fanouts": [10, 10, 10], "workers": 0, "sampler": library},
                "batch_size": 1_024,
                "optimizer": ADAM,
            }
            given = {"settings": settings, "kept": name not in ("dgl", "pyg")}
            entries[name] = Contestant(STEP, given)
        what = f"{model['name']}, sampled, 3 layers, 1,024 nodes a step, seconds"
        others = [name for name in entries if name != "ours"]
        comparisons = [Comparison(f"{what}, {name}", "ours", name) for name in others]
        matches.append(Match(entries, comparisons))
    return matches


def microbatches(*, quick: bool) -> list[Match]:
    """A sequential step in several micro-batches, one thread; it may cost 5 % more than in one."""
    vig, gat = vig_cell(20 if quick else 100), gat_cell(SMALL if quick else PUBMED)
    matches = []
    for name, settings, counts in (("ViG", vig, [5, 10, 20]), ("GAT", gat, [4, 8])):
        del counts[1 if quick else 3 :]
        entries = {
            str(count): Contestant(
                STEP, {"settings": settings | {"microbatches": count}, "fresh": False}
            )
            for count in (1, *counts)
        }
        what = f"{name} step, sequential, seconds"
        comparisons = [
            Comparison(f"{what}: {count} micro-batches, and one", str(count), "1", 1 / 1.05)
            for count in counts
        ]
        matches.append(Match(entries, comparisons, threads=1))
    return matches
