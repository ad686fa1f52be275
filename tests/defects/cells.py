"""The cells that defects are planted into: tiny, a few milliseconds a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gnnhpc.experiment.experiment import Experiment


@dataclass(frozen=True)
class Cell:
    """Settings of an experiment."""

    settings: dict[str, Any]

    def but(self, **changes: Any) -> Cell:
        """The same cell with other settings; those of a mapping are replaced one by one."""
        merged = {
            name: {**self.settings[name], **value}
            if isinstance(value, dict) and isinstance(self.settings.get(name), dict)
            else value
            for name, value in changes.items()
        }
        return Cell(self.settings | merged)

    def experiment(self, **changes: Any) -> Experiment:
        return Experiment.model_validate(self.settings | changes)


_WIDTHS = {"grapher_width": 8, "ffn_width": 16, "readout_width": 16}
_STEPS = {"train_steps": 10, "test_steps": 2, "test_every": 5, "warmup_steps": 2}

VIG = Cell(
    {
        "model": {"name": "vig", "blocks": 2, **_WIDTHS},
        # Four mini-batches are an epoch, so ten steps see three orders of the images.
        "data": {"name": "synthetic-cifar10", "image_size": 8, "train": 32, "test": 32},
        "batch_size": 8,
        "microbatches": 4,
        "layout": "pp2",
        **_STEPS,
    }
)
VIG_SEQ = VIG.but(layout="seq")
VIG_REPLICAS = VIG.but(layout="dp2", batch_size=4, microbatches=2)
VIG_BUCKETS = VIG_REPLICAS.but(bucket_mib=1e-4)
VIG_TORCH = VIG.but(engine="pipelining")
VIG_VIRTUAL = VIG.but(schedule="interleaved", virtual_stages=2)
SGD = {"name": "sgd", "lr": 1e-4, "weight_decay": 0.01}

GAT = Cell(
    {
        "model": {"name": "gat"},
        "data": {"name": "synthetic-citation", "nodes": 150, "edges": 600, "features": 32},
        "microbatches": 3,
        "chunks": "halo",
        "layout": "pp2",
        **_STEPS,
    }
)
GAT_REPLICAS = GAT.but(layout="dp2", microbatches=2)
GAT_ZERO_BUBBLE = GAT.but(schedule="zero-bubble", microbatches=4)
GAT_GPIPE = GAT.but(engine="torchgpipe", activation_checkpointing="always")
GCN = GAT.but(model={"name": "gcn"})
LARGE = Cell(
    {
        "model": {"name": "gcn", "layers": 2, "hidden": 512},
        "data": {"name": "synthetic-citation", "nodes": 9_000, "edges": 27_000, "features": 32},
        "train_steps": 4,
        "test_steps": 1,
        "warmup_steps": 1,
    }
)
"""Tensors of more rows and elements than any slice for a parity check has."""

SAMPLED = Cell(
    {
        "model": {"name": "sage", "layers": 2},
        # Three mini-batches are an epoch, of which the last is smaller.
        "data": {"name": "synthetic-citation", "nodes": 200, "edges": 2_400, "features": 32},
        "sampling": {"fanouts": [4, 3]},
        "batch_size": 16,
        **_STEPS,
    }
)
SAMPLED_DGL = SAMPLED.but(sampling={"sampler": "dgl"})
LINKS = SAMPLED.but(
    task={"name": "links", "embedding": 8, "hits": 3}, batch_size=150, data={"edges": 1_200}
)
GRAPHS = Cell(
    {
        "model": {"name": "gin", "layers": 2, "hidden": 16},
        "data": {"name": "synthetic-graphs", "graphs": 50, "nodes": 8},
        "batch_size": 16,
        **_STEPS,
    }
)
GRAPHS_REPLICAS = GRAPHS.but(layout="dp2", batch_size=8)
