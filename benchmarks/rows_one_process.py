"""Matches of one process: recording, and layers and loaders against PyG's and DGL's."""

from __future__ import annotations

from collections.abc import Iterator
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
FORMS = {
    "edge_index": "PyG with edge_index",
    "adj_t": "PyG with adj_t",
    "csr": "PyG with CSR",
    "compiled": "PyG with torch.compile",
    "cuda_graph": "PyG as a CUDA graph over prepared edges",
    "dgl": "DGL",
}
"""The libraries' programs for a whole graph."""
ON_CPUS = ("edge_index", "adj_t", "csr", "compiled", "dgl")
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


def libraries(
    model: Settings, data: Settings, forms: tuple[str, ...], device: str = "cpu"
) -> dict[str, Contestant]:
    """Epochs of the libraries' programs; their attention layers take no CSR matrix."""
    function = "benchmarks.contestants.library_layers:whole_graph"
    run = {"model": model, "data": data, "device": device}
    return {
        FORMS[form]: Contestant(function, run | {"form": form})
        for form in forms
        if form != "csr" or "gat" not in model["name"]
    }


def recording(*, quick: bool) -> Iterator[Match]:
    """A recorded step of a run over a bare loop of the same layers.

    By where it finds its memory, a process has ratios that are up to 4 % off in all of its rounds.
    """
    pubmed, cora, images = (SMALL, SMALL, 20) if quick else (PUBMED, CORA, 100)
    yield from recorded("GAT, PubMed's shape", gat_cell(pubmed), 2 if quick else 10)
    yield from recorded("GAT, Cora's shape", gat_cell(cora), 2 if quick else 20)
    images_cell = vig_cell(images, microbatches=20)
    yield from recorded("ViG, 20 micro-batches", images_cell, 2 if quick else 3)


def recorded_run(cell: Settings, turns: int, **how: Any) -> Contestant:
    """Steps of a real run with its records and validation, and bare ones between them."""
    arguments = {"settings": cell, "turns": turns, **how}
    return Contestant("benchmarks.contestants.our_steps:recorded", arguments)


def recording_costs(what: str, run: str, goal: float) -> list[Comparison]:
    """Recorded steps of a run over its bare ones."""
    paused = f"{what} after a pause as long as the run's"
    return [
        Comparison(what, run, run, goal, reference_of="bare"),
        Comparison(paused, run, run, goal, reference_of="paused"),
    ]


def recorded(what: str, cell: Settings, rounds: int) -> Iterator[Match]:
    """Goals: recording costs 1 % at most, and an analysis averages all measured steps."""
    run = recorded_run(cell, rounds + 2)
    step = f"{what}: seconds of a recorded step, and bare"
    costs = recording_costs(step, "run", 1 / 1.01)
    yield Match({"run": run}, costs, rounds=rounds, processes=5)
    settled = {"steps": 40, "warmup_steps": 8, **cell}
    counted = f"{what}: measured steps, and those that an analysis averages"
    yield Match(
        {"run": Contestant("benchmarks.contestants.cells:cell", settled)},
        [Comparison(counted, "run", "run", 1.0, "measured_steps", "averaged_steps")],
        rounds=2,
        warmup=0,
    )


def vig_steps(form: str, *images: int, device: str = "cpu", **changes: Any) -> list[Contestant]:
    """Training steps of ViG at several sizes of a mini-batch, in seconds an image."""
    if form in ("edge_index", "adj_t"):
        function = "benchmarks.contestants.library_layers:vig"
        form_of = {"form": form, "device": device}
        return [Contestant(function, {**form_of, "images": n}, n) for n in images]
    ours = form == "fused"
    model = {"name": "vig", "implementation": "fused" if ours else "pyg"}
    cells = {n: vig_cell(n, device=device, model=model, **changes) for n in images}
    step = {"fresh": False, "kept": ours}
    return [Contestant(STEP, {"settings": each, **step}, n) for n, each in cells.items()]


def vig(*, quick: bool) -> Iterator[Match]:
    """Seconds an image, of every form at the batch that suits it best; then a step of 1,000."""
    # At 1,000 images the libraries' forms take tens of GB.
    few, many = ((2,), 50) if quick else ((1, 2, 5, 10, 20), 1_000)
    others = {name: vig_steps(form, *few) for form, name in VIG_FORMS.items()}
    ours = vig_steps("fused", *sorted({100, many}))
    what = "ViG training step, 8 blocks, seconds an image"
    yield Match({"ours": ours, **others}, [Comparison(what, "ours", tuple(others), 20.0)], rounds=6)
    alone = f"ViG training step, {many} images"
    limits = [
        Comparison(f"{alone}: seconds; limit 12", "ours", 12.0 / many, 1.0),
        Comparison(f"{alone}: peak MiB; limit 1024", "ours", 1024.0, 1.0, of="peak_mib"),
    ]
    yield Match({"ours": vig_steps("fused", many)}, limits, rounds=4, warmup=1)


def _whole_graph(
    what: str, cell: Settings, data: Settings, goals: tuple[float | None, float], *, dense: bool
) -> tuple[dict[str, Contestant], list[Comparison]]:
    """Our step and the libraries'; goals are for the fastest form of PyG, and for DGL."""
    others = libraries(cell["model"], data, ON_CPUS)
    # Memory comes from the C library, as in the libraries' own programs.
    ours = Contestant(STEP, {"settings": cell, "dense": dense, "kept": False})
    pyg = tuple(name for name in others if name != "DGL")
    comparisons = [
        Comparison(what, "ours", pyg, goals[0]),
        Comparison(f"{what}, DGL", "ours", "DGL", goals[1]),
    ]
    return {"ours": ours, **others}, comparisons


def gat(*, quick: bool) -> Iterator[Match]:
    """GAT on PubMed's shape, with a tenth of the features not zero, and with all."""
    data = SMALL if quick else PUBMED
    what = f"GAT epoch, {data['nodes']:,} nodes"
    stored, dense = f"{what}, features as they are stored", f"{what}, dense features"
    cell = gat_cell(data)
    entries, comparisons = _whole_graph(f"{stored}, seconds", cell, data, (9.0, 9.0), dense=False)
    cut = gat_cell(data, microbatches=4, chunks="halo")
    entries["chunks"] = Contestant(STEP, {"settings": cut, "kept": False})
    # Four halo chunks may cost 1.5 times the whole graph.
    halo = f"{stored}, seconds: 4 halo chunks, and the whole graph"
    comparisons.append(Comparison(halo, "chunks", "ours", 1 / 1.5))
    yield Match(entries, comparisons, rounds=15, warmup=3)
    match = _whole_graph(f"{dense}, seconds", cell, data, (6.0, 5.0), dense=True)
    yield Match(*match, rounds=15, warmup=3)


def layers(*, quick: bool) -> Iterator[Match]:
    """Two convolutions, 256 wide, on 10^6 edges; GIN's goal is against DGL alone."""
    data = SMALL if quick else LARGE
    for name in ("gcn", "sage", "graphconv", "gin"):
        cell = gat_cell(data, model={"name": name, "hidden": 256, "dropout": 0.5})
        what = f"{name} epoch, 256 wide, {data['nodes']:,} nodes, {data['edges']:,} edges"
        goals = (None, 2.0) if name == "gin" else (1.8, 1.5)
        entries, comparisons = _whole_graph(f"{what}, seconds", cell, data, goals, dense=True)
        eager = FORMS["edge_index"]
        peak = Comparison(f"{what}, peak MiB, {eager}", "ours", eager, 2.0, of="peak_mib")
        yield Match(entries, [*comparisons, peak])


def _against_loaders(function: str, what: str, rounds: int, **arguments: Any) -> Match:
    """Our steps and those of the libraries' loaders and layers."""
    place = f"benchmarks.contestants.library_loaders:{function}"
    goals = {"DGL": 2.0, "PyG": 3.0}
    loaders = {name: Contestant(place, {"library": name.lower()} | arguments) for name in goals}
    comparisons = [
        Comparison(f"{what}, {name}'s loader and layers", "ours", name, goal)
        for name, goal in goals.items()
    ]
    return Match({"ours": Contestant(STEP, arguments), **loaders}, comparisons, rounds)


def graphs(*, quick: bool) -> Iterator[Match]:
    """Graph classification: five convolutions, 32 wide, batches of 128 graphs of 24 nodes."""
    for name in ("gin", "gcn"):
        settings = {
            "model": {"name": name, "layers": 5, "hidden": 32, "dropout": 0.5},
            "data": {"name": "synthetic-graphs", "graphs": 1_000 if quick else 10_000},
            "batch_size": 128,
            "optimizer": {"lr": 0.01},
        }
        what = f"{name}, 5 layers 32 wide, 128 graphs of 24 nodes, seconds a step"
        # A step takes milliseconds, so a turn is 20 of them.
        yield _against_loaders("graphs", what, 15, settings=settings, steps=20)


def _sampled_cell(model: Settings, data: Settings, sampler: str = "ours") -> Settings:
    return {
        "model": {"layers": 3, **model},
        "data": {"name": "reddit-shaped", **data},
        "sampling": {"fanouts": [10, 10, 10], "workers": 0, "sampler": sampler},
        "batch_size": 1_024,
        "optimizer": ADAM,
    }


def links(*, quick: bool) -> Iterator[Match]:
    """Links of a graph of ogbl-collab's size: 1,024 and as many negatives a step."""
    nodes, edges = (20_000, 200_000) if quick else (235_868, 2_570_930)
    for name in ("sage", "gcn"):
        model = {"name": name, "hidden": 256, "dropout": 0.5}
        cell = _sampled_cell(model, {"nodes": nodes, "edges": edges, "features": 128})
        cell["task"] = {"name": "links", "embedding": 256}
        what = f"links, {name}, 3 layers 256 wide, {edges:,} edges, 1,024 a step, seconds"
        yield _against_loaders("links", what, 9, settings=cell)


def sampled(*, quick: bool) -> Iterator[Match]:
    """Sampled training on a graph of Reddit's shape, each library with its sampler and layers.

    The libraries' memory comes from the C library as in their own programs, or is kept once it is
    freed, as a run of ours keeps it.
    """
    shape = {"nodes": 20_000, "edges": 200_000} if quick else {}
    for model in (
        {"name": "sage", "hidden": 256, "dropout": 0.5},
        {"name": "gat", "heads": 1, "hidden": 16, "dropout": 0.6},
    ):
        entries = {}
        for name in ("ours", "dgl", "pyg", "dgl, memory kept"):
            library = name.partition(",")[0]
            implementation = "fused" if library == "ours" else library
            cell = _sampled_cell(model | {"implementation": implementation}, shape, library)
            kept = name not in ("dgl", "pyg")
            entries[name] = Contestant(STEP, {"settings": cell, "kept": kept})
        what = f"{model['name']}, sampled, 3 layers, 1,024 nodes a step, seconds"
        others = [name for name in entries if name != "ours"]
        yield Match(entries, [Comparison(f"{what}, {name}", "ours", name) for name in others])


def microbatches(*, quick: bool) -> Iterator[Match]:
    """A sequential step in several micro-batches, one thread; it may cost 5 % more than in one."""
    vig, gat = vig_cell(20 if quick else 100), gat_cell(SMALL if quick else PUBMED)
    for name, settings, all_counts in (("ViG", vig, (5, 10, 20)), ("GAT", gat, (4, 8))):
        counts = all_counts[: 1 if quick else 3]
        cells = {str(count): settings | {"microbatches": count} for count in (1, *counts)}
        entries = {m: Contestant(STEP, {"settings": c, "fresh": False}) for m, c in cells.items()}
        what = f"{name} step, sequential, seconds"
        comparisons = [
            Comparison(f"{what}: {count} micro-batches, and one", str(count), "1", 1 / 1.05)
            for count in counts
        ]
        yield Match(entries, comparisons, threads=1)
