"""Engines, schedules, layouts, models, chunks, samplers and tasks agree with one process."""

from __future__ import annotations

from typing import Any

import pytest

from gnnhpc.kernels import sample_neighbors as sample
from tests.tools.backends import needs_dgl, needs_pyg_sampler
from tests.tools.cells import GAT, GRAPHS, LINKED, SAMPLED, VIG
from tests.validation.parity import checked

pytestmark = pytest.mark.distributed

Cell = dict[str, Any]
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
SMALL_NODES = {"name": "synthetic-citation", "nodes": 61, "edges": 250, "features": 12}


def agree(cell: Cell) -> None:
    verdict = checked(cell)
    assert verdict.verdict == "ok", verdict.detail
    assert max(verdict.values["worst"].values()) < 1e-9


PIPELINES = [
    pytest.param(cell | {"layout": layout, "schedule": schedule, "engine": engine, **more}, id=name)
    for model, cell in (("vig", IMAGES), ("gat", NODES))
    for layout in ("seq", "pp2", "pp4", "dp2-pp2", "dp3-pp2")
    for schedule in ("gpipe", "1f1b")
    for engine in ("native", "pipelining")
    if layout != "seq" or (schedule, engine) == ("gpipe", "native")
    for more in ({"microbatches": 4} if layout == "pp4" else {},)
    for name in (f"{model}-{layout}-{schedule}-{engine}",)
]


@pytest.mark.quick("gat-pp2-1f1b-native", "vig-dp2-pp2-gpipe-native", "gat-pp2-gpipe-pipelining")
@pytest.mark.parametrize("cell", PIPELINES)
def test_layouts_schedules_and_engines(cell: Cell) -> None:
    agree(cell)


SCHEDULES: list[tuple[str, Cell]] = [
    ("interleaved-2", IMAGES | {"layout": "pp2", "virtual_stages": 2, "microbatches": 4}),
    ("interleaved-3", IMAGES | {"layout": "pp2", "virtual_stages": 3, "microbatches": 2}),
    (
        "interleaved-gat",
        NODES | {"layout": "pp3", "virtual_stages": 3, "activation_checkpointing": "always"},
    ),
    (
        "interleaved-replicas",
        IMAGES
        | {
            "layout": "dp2-pp3",
            "virtual_stages": 2,
            "batchnorm": "deferred",
            "balance": [1, 1, 2, 1, 1, 1],
        },
    ),
    (
        "interleaved-pipelining",
        IMAGES
        | {"layout": "dp2-pp2", "virtual_stages": 3, "microbatches": 4, "engine": "pipelining"},
    ),
    ("zero-bubble", IMAGES | {"layout": "pp2"}),
    (
        "zero-bubble-gcn",
        NODES
        | {
            "model": {"name": "gcn"},
            "layout": "dp2-pp2",
            "activation_checkpointing": "except_last",
        },
    ),
    ("zero-bubble-gatv2", NODES | {"model": {"name": "gatv2"}, "layout": "pp4", "microbatches": 2}),
    ("zero-bubble-resgcn", NODES | {"model": {"name": "resgcn"}, "layout": "pp3"}),
    ("zero-bubble-pipelining", IMAGES | {"layout": "pp3", "engine": "pipelining"}),
    ("zero-bubble-pipelining-replicas", IMAGES | {"layout": "dp2-pp2", "engine": "pipelining"}),
    ("zbv", IMAGES | {"layout": "pp2"}),
    ("zbv-gat", NODES | {"layout": "dp2-pp2", "activation_checkpointing": "except_last"}),
    ("zbv-sage", NODES | {"model": {"name": "sage"}, "layout": "pp2", "microbatches": 1}),
    ("zbv-deferred", IMAGES | {"layout": "dp2-pp2", "batchnorm": "deferred"}),
    ("zbv-pipelining", IMAGES | {"layout": "pp3", "engine": "pipelining"}),
    ("zbv-pipelining-replicas", IMAGES | {"layout": "dp2-pp2", "engine": "pipelining"}),
]


FIRST_WORDS = {
    "interleaved": {"schedule": "interleaved"},
    "zero": {"schedule": "zero-bubble"},
    "zbv": {"schedule": "zbv"},
    "torchgpipe": {"engine": "torchgpipe"},
}
OTHERS: list[tuple[str, Cell]] = [
    ("torchgpipe", IMAGES | {"layout": "pp4", "activation_checkpointing": "except_last"}),
    ("torchgpipe-replicas", NODES | {"layout": "dp2-pp2", "activation_checkpointing": "always"}),
    ("recomputed", IMAGES | {"layout": "dp2-pp2", "activation_checkpointing": "always"}),
    ("recomputed-gat", NODES | {"activation_checkpointing": "except_last"}),
    ("buckets", IMAGES | {"layout": "dp2-pp2", "bucket_mib": 0.001}),
    ("deferred-profile", IMAGES | {"layout": "pp2", "batchnorm": "deferred", "balance": "profile"}),
    ("stages-of-dropout", GAT | {"layout": "pp4", "balance": [1, 2, 1, 2]}),
    ("contiguous", NODES | {"layout": "dp2", "chunks": "contiguous"}),
    ("clustered", NODES | {"layout": "pp2", "chunks": "clustered"}),
    ("rebuilt", NODES | {"layout": "pp2", "chunks": "contiguous", "rebuild": "layer"}),
    # Of which the slice has a corner.
    ("images-of-32-pixels", LARGE_IMAGES),
    ("images-of-32-pixels-pp2", LARGE_IMAGES | {"layout": "pp2"}),
    ("no-evaluation", IMAGES | {"test_steps": 0}),
    ("float64", NODES | {"dtype": "float64", "layout": "pp2"}),
    ("sgd", NODES | {"optimizer": {"name": "sgd", "lr": 0.1, "weight_decay": 0.01}}),
    ("adam", IMAGES | {"optimizer": {"lr": 0.01, "weight_decay": 0.1}, "layout": "pp2"}),
]


@pytest.mark.quick("zbv-gat", "torchgpipe-replicas", "contiguous")
@pytest.mark.parametrize(("name", "cell"), SCHEDULES + OTHERS, ids=dict(SCHEDULES + OTHERS))
def test_other_schedules_and_settings(name: str, cell: Cell) -> None:
    agree(cell | FIRST_WORDS.get(name.split("-", maxsplit=1)[0], {}))


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
IMPLEMENTED = [
    (name, form, engine, layout)
    for name in MODELS
    for form in ("fused", "pyg", "dgl")
    if (name, form) not in LACKING
    for engine, layout in (
        ("native", "seq"),
        ("native", "dp2-pp2"),
        ("pipelining", "pp2"),
        ("torchgpipe", "pp2"),
    )
]


@pytest.mark.quick("gcn-pyg-native-dp2-pp2", "resgcn-fused-native-dp2-pp2")
@pytest.mark.parametrize(("name", "form", "engine", "layout"), IMPLEMENTED)
def test_models_and_implementations(name: str, form: str, engine: str, layout: str) -> None:
    """Of 61 nodes, which do not make equal chunks."""
    if form == "dgl":
        needs_dgl()
    agree(
        NODES
        | {
            "model": MODELS[name] | {"implementation": form},
            "data": SMALL_NODES,
            "chunks": "halo",
            "layout": layout,
            "engine": engine,
        }
    )


SAMPLERS: dict[str, Cell] = {
    "ours": {"fanouts": [4, 3, 2]},
    "ours-once": {"fanouts": [3, 3, 3], "semantics": "once"},
    "ours-sampled-evaluation": {"fanouts": [4, 3, 2], "evaluation": "sampled"},
    "ours-inductive": {"fanouts": [4, 3, 2], "inductive": True},
    "pyg": {"fanouts": [4, 3, 2], "sampler": "pyg"},
    "dgl": {"fanouts": [4, 3, 2], "sampler": "dgl"},
}
LAYERS_OF_THREE = {name: m | {"layers": 3} for name, m in MODELS.items()}


def sampled_cell(place: int, model: str, sampler: str) -> Any:
    """Every pair of model and sampler; other settings vary so that each meets each."""
    form = ("fused", "pyg", "dgl")[(place + place // 4) % 3]
    if (model, form) in LACKING:
        form = "fused"
    cell = SAMPLED | {
        "model": LAYERS_OF_THREE[model] | {"implementation": form},
        "data": {"name": "synthetic-citation", "nodes": 150, "edges": 700, "features": 12},
        "batch_size": 7,
        "sampling": SAMPLERS[sampler] | {"workers": place // 2 % 3},
        "layout": ("seq", "dp2", "dp3")[place % 3],
        "microbatches": (1, 3)[place // 3 % 2],
        "activation_checkpointing": ("never", "always")[place // 7 % 2],
    }
    return pytest.param(cell, form, sampler, id=f"{model}-{sampler}")


@pytest.mark.quick("gcn-ours", "gatv2-ours-once")
@pytest.mark.parametrize(
    ("cell", "form", "sampler"),
    [
        sampled_cell(place, model, sampler)
        for place, (model, sampler) in enumerate((m, s) for m in MODELS for s in SAMPLERS)
    ],
)
def test_sampled_mini_batches(cell: Cell, form: str, sampler: str) -> None:
    _needs(form, sampler)
    agree(cell)


def _needs(form: str, sampler: str) -> None:
    if not sample.is_here():
        pytest.skip("needs a C++ compiler")
    if "dgl" in (form, sampler):
        needs_dgl()
    if sampler == "pyg":
        needs_pyg_sampler()


@pytest.mark.quick("sage-dp2-pp2")
@pytest.mark.parametrize("layout", ["seq", "dp2", "pp2", "dp2-pp2"])
@pytest.mark.parametrize("name", ["sage", "gcn", "gat"])
def test_links(name: str, layout: str) -> None:
    _needs("fused", "ours")
    agree(LINKED | {"model": {"name": name, "layers": 2}, "layout": layout, "microbatches": 2})


@pytest.mark.quick("gin-dp2-pp2")
@pytest.mark.parametrize("layout", ["seq", "dp2", "pp2", "dp2-pp2"])
@pytest.mark.parametrize("name", ["gin", "gcn", "sage-max", "graphconv"])
def test_many_small_graphs(name: str, layout: str) -> None:
    model = MODELS[name] | {"hidden": 16, "layers": 2}
    agree(GRAPHS | {"model": model, "layout": layout, "microbatches": 2})


@pytest.mark.parametrize(
    "cell", [IMAGES | {"layout": "pp2"}, NODES | {"layout": "dp2"}], ids=["vig", "gat"]
)
def test_steps_after_the_first(cell: Cell) -> None:
    """As at the end of a run: neither dropout nor the order of samples begins anew."""
    verdict = checked(cell, first=cell["train_steps"])
    assert verdict.verdict == "ok", verdict.detail
    assert "initial values" not in verdict.values["worst"]
