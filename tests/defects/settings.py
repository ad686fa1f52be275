"""The cells that defects are planted into: tiny, of both models, engines and kinds of layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gnnhpc.experiment.experiment import Experiment

_STEPS = {"train_steps": 10, "test_steps": 2, "test_every": 5, "warmup_steps": 2}
_VIG: dict[str, Any] = {
    "model": {"name": "vig", "blocks": 2, "grapher_width": 8, "ffn_width": 16, "readout_width": 16},
    # Four mini-batches an epoch: ten steps see three orders of the data.
    "data": {"name": "synthetic-cifar10", "image_size": 8, "train": 32, "test": 32},
    "batch_size": 8,
    "microbatches": 4,
    "layout": "pp2",
    **_STEPS,
}
_GAT: dict[str, Any] = {
    "model": {"name": "gat"},
    "data": {"name": "synthetic-citation", "nodes": 150, "edges": 600, "features": 32},
    "microbatches": 3,
    "chunks": "halo",
    "layout": "pp2",
    **_STEPS,
}
_REPLICAS = {"layout": "dp2", "batch_size": 4, "microbatches": 2}
_SGD = {"optimizer": {"name": "sgd", "lr": 1e-4, "weight_decay": 0.01}}


@dataclass(frozen=True)
class Setting:
    """A cell, and the environment it runs in."""

    name: str
    raw: Mapping[str, Any]
    env: Mapping[str, str] = field(default_factory=dict)

    def experiment(self) -> Experiment:
        return Experiment.model_validate(dict(self.raw))


VIG = Setting("vig pp2", _VIG)
VIG_BY_GLOO = Setting("vig pp2, by gloo", _VIG, {"GNNHPC_SHARED_MEMORY": "0"})
VIG_SGD = Setting("vig pp2, sgd", _VIG | _SGD)
VIG_TORCH = Setting("vig pp2 of torch", _VIG | {"engine": "pipelining"})
VIG_1F1B = Setting("vig pp2, 1f1b", _VIG | {"schedule": "1f1b"})
_PARTS = {"schedule": "interleaved", "virtual_stages": 2}
VIG_PARTS = Setting("vig pp2, 2 parts a stage", _VIG | _PARTS)
VIG_PARTS_AGAIN = Setting(
    "vig pp2, 2 parts a stage, computed again but for the last",
    _VIG | _PARTS | {"activation_checkpointing": "except_last"},
)
VIG_PARTS_TORCH = Setting(
    "vig pp2 of torch, 2 parts a stage", _VIG | _PARTS | {"engine": "pipelining"}
)
VIG_PARTS_REPLICAS = Setting(
    "vig dp2-pp2, 2 parts a stage", _VIG | _PARTS | _REPLICAS | {"layout": "dp2-pp2"}
)
GAT_WEIGHTS = Setting("gat pp2, zero-bubble", _GAT | {"schedule": "zero-bubble", "microbatches": 4})
GCN_WEIGHTS = Setting(
    "gcn dp2-pp2, zero-bubble",
    _GAT | {"model": {"name": "gcn"}, "schedule": "zero-bubble", "layout": "dp2-pp2"},
)
_ZBV = {"model": {"name": "gcn", "layers": 4}, "schedule": "zbv", "microbatches": 4}
VIG_ZBV = Setting("vig pp2, zbv", _VIG | {"schedule": "zbv"})
GCN_ZBV = Setting("gcn pp2, zbv", _GAT | _ZBV)
GCN_ZBV_REPLICAS = Setting("gcn dp2-pp2, zbv", _GAT | _ZBV | {"layout": "dp2-pp2"})
GCN_ZBV_TORCH = Setting("gcn pp2 of torch, zbv", _GAT | _ZBV | {"engine": "pipelining"})
GIN_WEIGHTS = Setting(
    "gin pp2, zero-bubble, some milliseconds a backward",
    _GAT
    | {"model": {"name": "gin", "layers": 4, "hidden": 64}, "schedule": "zero-bubble"}
    | {"data": {**_GAT["data"], "nodes": 3_000, "edges": 12_000}},
)
VIG_REPLICAS = Setting("vig dp2", _VIG | _REPLICAS)
_BUCKETS = {"bucket_mib": 1e-4}
VIG_BUCKETS = Setting("vig dp2, a bucket a layer", _VIG | _REPLICAS | _BUCKETS)
GCN_BUCKETS = Setting(
    "gcn dp2, a bucket a layer",
    _GAT | _BUCKETS | {"model": {"name": "gcn", "layers": 4}, "layout": "dp2"},
)
GCN_BUCKETS_PARTS = Setting(
    "gcn dp2-pp2, zbv, a bucket a layer", _GAT | _ZBV | _BUCKETS | {"layout": "dp2-pp2"}
)
VIG_REPLICAS_SGD = Setting("vig dp2, sgd", _VIG | _REPLICAS | _SGD)
VIG_SEQUENTIAL = Setting("vig seq", _VIG | {"layout": "seq"})
VIG_MANY_IMAGES = Setting(
    "vig seq, 4 images a micro-batch", _VIG | {"layout": "seq", "batch_size": 16}
)
VIG_LONG_EPOCH = Setting(
    "vig seq, 8 steps an epoch",
    _VIG
    | {"layout": "seq", "data": {**_VIG["data"], "train": 64}}
    | {"train_steps": 16, "test_every": 16},
)
VIG_DOUBLE = Setting("vig pp2, double", _VIG | {"dtype": "float64"})
VIG_TORCH_REPLICAS = Setting(
    "vig dp2-pp2 of torch", _VIG | _REPLICAS | {"layout": "dp2-pp2", "engine": "pipelining"}
)
VIG_TWO_THREADS = Setting("vig pp2, 2 threads", _VIG, {"GNNHPC_THREADS": "2"})
GAT = Setting("gat pp2", _GAT)
GAT_PARTS = Setting("gat pp2, 2 parts a stage", _GAT | _PARTS | {"microbatches": 4})


def graph_of(name: str, aggregator: str | None = None) -> Setting:
    """Two stages of another graph model on the same data."""
    model = {"name": name, **({"layers": 4} if name in ("resgcn", "gcnii") else {})}
    model |= {"aggregator": aggregator} if aggregator else {}
    return Setting(" ".join([name, *filter(None, [aggregator]), "pp2"]), _GAT | {"model": model})


GAT_CONTIGUOUS = Setting("gat pp2, contiguous", _GAT | {"chunks": "contiguous"})
GAT_REBUILT = Setting(
    "gat pp2, rebuilt in each layer", _GAT | {"chunks": "contiguous", "rebuild": "layer"}
)
VIG_REFERENCE = Setting(
    "vig seq, reference",
    _VIG | {"layout": "seq", "model": {**_VIG["model"], "implementation": "reference"}},
)
VIG_CHECKPOINTS = Setting("vig pp2, checkpoints", _VIG | {"save_every": 3})
VIG_SPANS = Setting("vig pp2, spans", _VIG | {"spans": True})
GPIPE = Setting(
    "vig pp2 of torchgpipe, computed again",
    _VIG | {"engine": "torchgpipe", "activation_checkpointing": "always"},
)
GPIPE_REPLICAS = Setting(
    "vig dp2-pp2 of torchgpipe", _VIG | _REPLICAS | {"layout": "dp2-pp2", "engine": "torchgpipe"}
)
GAT_GPIPE = Setting(
    "gat pp2 of torchgpipe, computed again",
    _GAT | {"engine": "torchgpipe", "activation_checkpointing": "always"},
)
# Forwards that take longer than a clock's tolerance.
VIG_AGAIN = Setting(
    "vig pp2, computed again",
    _VIG
    | {
        "model": _VIG["model"] | {"grapher_width": 32, "ffn_width": 64},
        "data": _VIG["data"] | {"image_size": 32},
        "activation_checkpointing": "always",
    },
)
GAT_AGAIN = Setting("gat pp2, computed again", _GAT | {"activation_checkpointing": "always"})
_SAMPLED: dict[str, Any] = {
    "model": {"name": "sage", "layers": 2},
    # Three mini-batches an epoch, the last one smaller: ten steps see four orders of the nodes.
    "data": {"name": "synthetic-citation", "nodes": 200, "edges": 2_400, "features": 32},
    "sampling": {"fanouts": [4, 3]},
    "batch_size": 16,
    **_STEPS,
}
SAMPLED = Setting("sage seq, sampled", _SAMPLED)
SAMPLED_SLOW = Setting(
    "sage seq, sampled in the step", _SAMPLED | {"sampling": {"fanouts": [4, 3], "workers": 0}}
)
SAMPLED_PARTS = Setting("sage seq, sampled, 2 micro-batches", _SAMPLED | {"microbatches": 2})
SAMPLED_GCN = Setting("gcn seq, sampled", _SAMPLED | {"model": {"name": "gcn", "layers": 2}})
SAMPLED_REPLICAS = Setting("sage dp2, sampled", _SAMPLED | {"layout": "dp2", "batch_size": 8})
SAMPLED_LARGE = Setting(
    "sage dp2, sampled, evaluated layer by layer",
    _SAMPLED
    | {
        "layout": "dp2",
        "batch_size": 8,
        "data": {"name": "synthetic-citation", "nodes": 400, "edges": 4_000, "features": 32},
    },
)
SAMPLED_LARGE_PARTS = Setting(
    "sage seq, sampled, 2 micro-batches, evaluated layer by layer",
    {**SAMPLED_LARGE.raw, "layout": "seq", "batch_size": 24, "microbatches": 2},
)
LARGE = Setting(
    "gcn seq, more nodes than a self-check takes",
    {
        "model": {"name": "gcn", "layers": 3, "hidden": 512},
        "data": {"name": "synthetic-citation", "nodes": 9_000, "edges": 27_000, "features": 32},
        "train_steps": 4,
        "test_steps": 1,
        "warmup_steps": 1,
    },
)
SAMPLED_INDUCTIVE = Setting(
    "gcn seq, sampled, inductive",
    _SAMPLED
    | {
        "model": {"name": "gcn", "layers": 2},
        "sampling": {"fanouts": [4, 3], "inductive": True},
    },
)
SAMPLED_EVALUATION = Setting(
    "sage seq, evaluation sampled",
    _SAMPLED | {"sampling": {"fanouts": [4, 3], "inductive": True, "evaluation": "sampled"}},
)
_DENSE = {"name": "reddit-shaped", "nodes": 200, "edges": 2_400, "features": 32, "classes": 5}
SAMPLED_DENSE = Setting("sage seq, sampled, dense features", _SAMPLED | {"data": _DENSE})
SAMPLED_HALVES = Setting(
    "gat seq, sampled, features in half precision",
    _SAMPLED | {"model": {"name": "gat"}, "data": _DENSE | {"storage": "float16"}},
)
# Four mini-batches an epoch, the last one smaller.
_LINKS = _SAMPLED | {"task": {"name": "links", "embedding": 8, "hits": 3}, "batch_size": 150}
_LINKS |= {"data": {"name": "synthetic-citation", "nodes": 200, "edges": 1_200, "features": 32}}
LINKS = Setting("sage seq, links", _LINKS)
LINKS_REPLICAS = Setting("sage dp2, links", _LINKS | {"layout": "dp2", "batch_size": 75})
_GRAPHS: dict[str, Any] = {
    "model": {"name": "gin", "layers": 2, "hidden": 16},
    # Three mini-batches an epoch, the last one smaller: ten steps see four orders of the graphs.
    "data": {"name": "synthetic-graphs", "graphs": 50, "nodes": 8},
    "batch_size": 16,
    **_STEPS,
}
GRAPHS = Setting("gin seq, many graphs", _GRAPHS)
GRAPHS_REPLICAS = Setting("gin dp2, many graphs", _GRAPHS | {"layout": "dp2", "batch_size": 8})
GRAPHS_PIPELINE = Setting("gin pp2, many graphs", _GRAPHS | {"layout": "pp2", "microbatches": 3})
GAT_REPLICAS = Setting("gat dp2", _GAT | {"layout": "dp2", "microbatches": 2})

SETTINGS = (
    *(GAT_WEIGHTS, GCN_WEIGHTS, GIN_WEIGHTS),
    *(VIG_ZBV, GCN_ZBV, GCN_ZBV_REPLICAS, GCN_ZBV_TORCH),
    *(VIG_BUCKETS, GCN_BUCKETS, GCN_BUCKETS_PARTS),
    *(VIG_PARTS, GAT_PARTS, VIG_PARTS_AGAIN, VIG_PARTS_TORCH, VIG_PARTS_REPLICAS),
    VIG_BY_GLOO,
    *(VIG, VIG_SGD, VIG_TORCH, VIG_1F1B, VIG_REPLICAS, VIG_REPLICAS_SGD, VIG_TWO_THREADS),
    *(GAT, GAT_REPLICAS, VIG_DOUBLE, VIG_TORCH_REPLICAS, SAMPLED, SAMPLED_REPLICAS, SAMPLED_SLOW),
    *(LARGE, SAMPLED_PARTS, SAMPLED_GCN, SAMPLED_INDUCTIVE, SAMPLED_EVALUATION),
    *(SAMPLED_DENSE, SAMPLED_HALVES, LINKS, LINKS_REPLICAS),
    *(GRAPHS, GRAPHS_REPLICAS, GRAPHS_PIPELINE),
    *(GPIPE, GPIPE_REPLICAS, GAT_GPIPE, VIG_AGAIN, GAT_AGAIN),
    *(VIG_SEQUENTIAL, VIG_MANY_IMAGES, VIG_LONG_EPOCH, VIG_SPANS, VIG_REFERENCE, VIG_CHECKPOINTS),
)
