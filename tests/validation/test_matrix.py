"""Engines, schedules, layouts, models, chunks, samplers and tasks agree with one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gnnhpc.batches.sampled import evaluations
from gnnhpc.kernels import sample_neighbors as sample
from tests.tools.backends import needs_dgl, needs_pyg_sampler
from tests.tools.cells import GAT, GRAPHS, LINKED, SAMPLED, VIG
from tests.validation.parity import checked

pytestmark = pytest.mark.distributed

Cell = dict[str, Any]
Named = Iterator[tuple[str, Cell]]
# Three blocks and a readout are seven layers, nine modules of GAT do not fill two stages evenly,
# and 121 nodes do not make equal chunks.
IMAGES: Cell = VIG | {
    "model": VIG["model"] | {"blocks": 3, "ffn_width": 12, "readout_width": 8},
    "data": {"name": "synthetic-cifar10", "image_size": 4, "train": 72, "test": 36},
    "batch_size": 12,
    "microbatches": 3,
}
NODES: Cell = GAT | {
    "model": {"name": "gat", "layers": 3},
    "data": {"name": "synthetic-citation", "nodes": 121, "edges": 500, "features": 24},
    "chunks": "halo",
    "microbatches": 3,
}
LARGE_IMAGES: Cell = VIG | {"data": {"name": "synthetic-cifar10", "train": 64, "test": 32}}
PP2, PP3, DP2_PP2 = ({"layout": layout} for layout in ("pp2", "pp3", "dp2-pp2"))
INTERLEAVED: Cell = {"schedule": "interleaved"}
ZERO_BUBBLE: Cell = {"schedule": "zero-bubble"}
ZBV: Cell = {"schedule": "zbv"}
TORCH: Cell = {"engine": "pipelining"}
GPIPE: Cell = {"engine": "torchgpipe"}
ALWAYS, EXCEPT_LAST = ({"activation_checkpointing": when} for when in ("always", "except_last"))
DEFERRED: Cell = {"batchnorm": "deferred"}


def model(name: str, **settings: Any) -> Cell:
    return {"model": {"name": name, **settings}}


SETTINGS: dict[str, Cell] = {
    "interleaved-2": IMAGES | INTERLEAVED | PP2 | {"virtual_stages": 2, "microbatches": 4},
    "interleaved-3": IMAGES | INTERLEAVED | PP2 | {"virtual_stages": 3, "microbatches": 2},
    "interleaved-gat": NODES | INTERLEAVED | PP3 | ALWAYS | {"virtual_stages": 3},
    "interleaved-replicas": IMAGES
    | INTERLEAVED
    | DEFERRED
    | {"layout": "dp2-pp3", "virtual_stages": 2, "balance": [1, 1, 2, 1, 1, 1]},
    "interleaved-pipelining": IMAGES
    | INTERLEAVED
    | DP2_PP2
    | TORCH
    | {"virtual_stages": 3, "microbatches": 4},
    "zero-bubble": IMAGES | ZERO_BUBBLE | PP2,
    "zero-bubble-gcn": NODES | ZERO_BUBBLE | DP2_PP2 | EXCEPT_LAST | model("gcn"),
    "zero-bubble-gatv2": NODES
    | ZERO_BUBBLE
    | model("gatv2")
    | {"layout": "pp4", "microbatches": 2},
    "zero-bubble-resgcn": NODES | ZERO_BUBBLE | PP3 | model("resgcn"),
    "zero-bubble-pipelining": IMAGES | ZERO_BUBBLE | PP3 | TORCH,
    "zero-bubble-pipelining-replicas": IMAGES | ZERO_BUBBLE | DP2_PP2 | TORCH,
    "zbv": IMAGES | ZBV | PP2,
    "zbv-gat": NODES | ZBV | DP2_PP2 | EXCEPT_LAST,
    "zbv-sage": NODES | ZBV | PP2 | model("sage") | {"microbatches": 1},
    "zbv-deferred": IMAGES | ZBV | DP2_PP2 | DEFERRED,
    "zbv-pipelining": IMAGES | ZBV | PP3 | TORCH,
    "zbv-pipelining-replicas": IMAGES | ZBV | DP2_PP2 | TORCH,
    "torchgpipe": IMAGES | GPIPE | EXCEPT_LAST | {"layout": "pp4"},
    "torchgpipe-replicas": NODES | GPIPE | DP2_PP2 | ALWAYS,
    "recomputed": IMAGES | DP2_PP2 | ALWAYS,
    "recomputed-gat": NODES | EXCEPT_LAST,
    "buckets": IMAGES | DP2_PP2 | {"bucket_mib": 0.001},
    "deferred-profile": IMAGES | PP2 | DEFERRED | {"balance": "profile"},
    "stages-of-dropout": GAT | {"layout": "pp4", "balance": [1, 2, 1, 2]},
    "contiguous": NODES | {"layout": "dp2", "chunks": "contiguous"},
    "clustered": NODES | PP2 | {"chunks": "clustered"},
    "rebuilt": NODES | PP2 | {"chunks": "contiguous", "rebuild": "layer"},
    # Of which the slice has a corner.
    "images-of-32-pixels": LARGE_IMAGES,
    "images-of-32-pixels-pp2": LARGE_IMAGES | PP2,
    "no-evaluation": IMAGES | {"test_steps": 0},
    "float64": NODES | PP2 | {"dtype": "float64"},
    "sgd": NODES | {"optimizer": {"name": "sgd", "lr": 0.1, "weight_decay": 0.01}},
    "adam": IMAGES | PP2 | {"optimizer": {"lr": 0.01, "weight_decay": 0.1}},
}


def pipelines() -> Named:
    for name, cell in (("vig", IMAGES), ("gat", NODES)):
        yield f"{name}-seq", cell
        for layout in ("pp2", "pp4", "dp2-pp2", "dp3-pp2"):
            more = {"microbatches": 4} if layout == "pp4" else {}
            for schedule in ("gpipe", "1f1b"):
                for engine in ("native", "pipelining"):
                    settings = {"layout": layout, "schedule": schedule, "engine": engine}
                    yield f"{name}-{layout}-{schedule}-{engine}", cell | settings | more


MODELS: dict[str, Cell] = {
    "gcn": {"name": "gcn", "layers": 3},
    "sage": {"name": "sage", "layers": 3},
    "sage-max": {"name": "sage", "aggregator": "max"},
    "sage-pool": {"name": "sage", "aggregator": "pool"},
    "gin": {"name": "gin", "layers": 3},
    "graphconv": {"name": "graphconv", "layers": 3},
    "gat": {"name": "gat", "layers": 3},
    "gatv2": {"name": "gatv2", "layers": 3},
    "resgcn": {"name": "resgcn", "layers": 4},
    "gcnii": {"name": "gcnii", "layers": 4},
}
LACKING = {("sage-max", "dgl"), ("graphconv", "dgl"), ("gcnii", "dgl")}
WAYS = (DP2_PP2, {"layout": "seq"}, PP2 | TORCH, PP2 | GPIPE)


def implementations() -> Named:
    """Of 61 nodes, which do not make equal chunks."""
    data = {"name": "synthetic-citation", "nodes": 61, "edges": 250, "features": 12}
    for name, settings in MODELS.items():
        for form in ("fused", "pyg", "dgl"):
            for way in WAYS if (name, form) not in LACKING else ():
                cell = NODES | {"model": settings | {"implementation": form}, "data": data} | way
                yield "-".join((name, form, *way.values())), cell


SAMPLERS: dict[str, Cell] = {
    "ours": {"fanouts": [4, 3, 2]},
    "ours-once": {"fanouts": [3, 3, 3], "semantics": "once"},
    "ours-sampled-evaluation": {"fanouts": [4, 3, 2], "evaluation": "sampled"},
    "ours-inductive": {"fanouts": [4, 3, 2], "inductive": True},
    "pyg": {"fanouts": [4, 3, 2], "sampler": "pyg"},
    "dgl": {"fanouts": [4, 3, 2], "sampler": "dgl"},
}


def sampled_mini_batches() -> Named:
    """Every pair of model and sampler; other settings vary so that each meets each."""
    pairs = ((name, sampler) for name in MODELS for sampler in SAMPLERS)
    for place, (name, sampler) in enumerate(pairs):
        form = ("fused", "pyg", "dgl")[(place + place // 4) % 3]
        if (name, form) in LACKING:
            form = "fused"
        yield (
            f"sampled-{name}-{sampler}",
            SAMPLED
            | {
                "model": MODELS[name] | {"layers": 3, "implementation": form},
                "data": {"name": "synthetic-citation", "nodes": 150, "edges": 700, "features": 12},
                "batch_size": 7,
                "sampling": SAMPLERS[sampler] | {"workers": place // 2 % 3},
                "layout": ("seq", "dp2", "dp3")[place % 3],
                "microbatches": (1, 3)[place // 3 % 2],
                "activation_checkpointing": ("never", "always")[place // 7 % 2],
            },
        )


def links_and_small_graphs() -> Named:
    for layout in ("seq", "dp2", "pp2", "dp2-pp2"):
        way: Cell = {"layout": layout, "microbatches": 2}
        for name in ("sage", "gcn", "gat"):
            yield f"links-{name}-{layout}", LINKED | model(name, layers=2) | way
        for name in ("gin", "gcn", "sage-max", "graphconv"):
            small = MODELS[name] | {"hidden": 16, "layers": 2}
            yield f"graphs-{name}-{layout}", GRAPHS | {"model": small} | way


CELLS = SETTINGS | dict(pipelines()) | dict(implementations())
CELLS |= dict(sampled_mini_batches()) | dict(links_and_small_graphs())


def skip_without_libraries(cell: Cell) -> None:
    sampling = cell.get("sampling", {})
    sampler = sampling.get("sampler", "ours")
    if sampling and not sample.is_here():
        pytest.skip("needs a C++ compiler")
    if "dgl" in (cell["model"].get("implementation"), sampler):
        needs_dgl()
    if sampler == "pyg":
        needs_pyg_sampler()


@pytest.mark.quick(
    *("gat-pp2-1f1b-native", "vig-dp2-pp2-gpipe-native", "gat-pp2-gpipe-pipelining"),
    *("zbv-gat", "torchgpipe-replicas", "contiguous", "gcn-pyg-dp2-pp2", "resgcn-fused-dp2-pp2"),
    *("sampled-gcn-ours", "sampled-gatv2-ours-once", "links-sage-dp2-pp2", "graphs-gin-dp2-pp2"),
)
@pytest.mark.parametrize("name", CELLS)
def test_a_cell_agrees(name: str) -> None:
    skip_without_libraries(CELLS[name])
    verdict = checked(CELLS[name])
    assert verdict.verdict == "ok", verdict.detail
    assert max(verdict.values["worst"].values()) < 1e-9


@pytest.mark.parametrize("cell", [IMAGES | PP2, NODES | {"layout": "dp2"}], ids=["vig", "gat"])
def test_steps_after_the_first_agree(cell: Cell) -> None:
    """As at the end of a run: neither dropout nor the order of samples begins anew."""
    verdict = checked(cell, first=cell["train_steps"])
    assert verdict.verdict == "ok", verdict.detail
    assert "initial values" not in verdict.values["worst"]


def few_edges_at_once() -> None:
    """Evaluate the whole graph layer by layer, as one with many edges."""
    evaluations.EDGES_AT_ONCE = 200


@pytest.mark.parametrize("layout", ["seq", "dp2", "dp2-pp2"])
def test_a_layer_wise_evaluation_agrees(layout: str) -> None:
    skip_without_libraries(SAMPLED)
    cell = SAMPLED | {"layout": layout, "microbatches": 2, "batch_size": 8}
    check = checked(cell, few_edges_at_once)
    assert check.verdict == "ok", check.detail
