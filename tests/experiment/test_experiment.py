"""Experiments: each mistake is one line, and an id follows from what is computed alone."""

from __future__ import annotations

from typing import Any

import pytest

from gnnhpc.core.errors import InputError
from gnnhpc.experiment.command_line_flags import build_experiment
from gnnhpc.experiment.experiment import Experiment
from tests.tools.cells import GRAPHS, LINKED, SAMPLED, graphs, linked, sampled

VIG: dict[str, Any] = {
    "model": {"name": "vig"},
    "data": {"name": "synthetic-cifar10"},
    "batch_size": 100,
}
GAT: dict[str, Any] = {"model": {"name": "gat"}, "data": {"name": "cora"}}
PP2: dict[str, Any] = VIG | {"layout": "pp2"}
INTERLEAVED = PP2 | {"schedule": "interleaved", "virtual_stages": 2, "microbatches": 4}
PIPELINING = PP2 | {"engine": "pipelining"}


def vig(**changes: Any) -> dict[str, Any]:
    return VIG | changes


def gat(**changes: Any) -> dict[str, Any]:
    return GAT | changes


def drawn(**changes: Any) -> dict[str, Any]:
    """With other settings of the sampler."""
    return SAMPLED | {"sampling": SAMPLED["sampling"] | changes}


def links(**changes: Any) -> dict[str, Any]:
    return LINKED | {"sampling": LINKED["sampling"] | changes}


MISTAKES: list[tuple[dict[str, Any], str]] = [
    # A missing or unknown key, another kind of value, a name that is none of the choices.
    (VIG | {"model": {"blocks": 2}}, "model.name: found nothing; allowed: gat, gatv2, gcn"),
    (vig(model={"name": "vig", "block": 2}), "model.block: found an unknown key (is blocks meant?"),
    (vig(microbatches=2.5), "microbatches: found 2.5; allowed: a whole number"),
    (vig(optimizer={"lr": float("inf")}), "optimizer.lr: found inf; allowed: a finite number"),
    (vig(model={"name": "vit"}), "model.name: found 'vit'; allowed: gat, gatv2, gcn"),
    (vig(layout="pp3x"), "layout: found 'pp3x'; allowed: seq, pp<S>, dp<R> or dp<R>-pp<S>"),
    (vig(balance="even"), "balance: found 'even'; allowed: a list or 'cost' or 'profile'"),
    # Data and mini-batches.
    (vig(data={"name": "cora"}), "data: found 'cora'; allowed: images data for model vig"),
    (vig(sampling={"fanouts": [4]}), "sampling: found a mapping; allowed: none for images"),
    (SAMPLED | {"chunks": "halo"}, "chunks: found 'halo'; allowed: none with sampling"),
    (vig(batch_size=None), "batch_size: found none; allowed: images a mini-batch"),
    (gat(batch_size=3), "batch_size: found 3; allowed: none, as a graph is one mini-batch"),
    (vig(microbatches=7), "microbatches: found 7; allowed: a divisor of batch_size 100"),
    (vig(batch_size=300, layout="dp2"), "batch_size: found 300 x 2 replicas; allowed: at most the"),
    (gat(model={"name": "gcn", "pooling": "sum"}), "model.pooling: found 'sum'; allowed: none"),
    # Sampling and links.
    (SAMPLED | {"sampling": {}}, "sampling.fanouts: found nothing; allowed: a value, this"),
    (drawn(fanout=[4]), "sampling.fanout: found an unknown key (is fanouts meant?); allowed: eval"),
    (drawn(fanouts=[4, 0]), "sampling.fanouts.1: found 0; allowed: at least 1"),
    (drawn(fanouts=[4]), "sampling.fanouts: found [4]; allowed: 2 numbers, one for each layer"),
    (drawn(sampler="pyg", semantics="resample"), "sampling.semantics: found 'resample'; allowed:"),
    (LINKED | {"sampling": None, "batch_size": None}, "task: found 'links'; allowed: none, or"),
    (links(sampler="dgl"), "task: found 'links'; allowed: none, or links with sampling by"),
    (LINKED | {"task": {"val_share": 0.9}}, "task.test_share: found 0.1 beside val_share 0.9;"),
    # Stages.
    (PP2 | {"engine": "torchgpipe", "schedule": "1f1b"}, "schedule: found '1f1b'; allowed: gpipe"),
    (PP2 | {"device": "gpu", "schedule": "zero-bubble"}, "schedule: found 'zero-bubble'; allowed"),
    (INTERLEAVED | {"schedule": "zbv", "virtual_stages": 3}, "virtual_stages: found 3; allowed: 2"),
    (INTERLEAVED | {"microbatches": 5}, "microbatches: found 5; allowed: a multiple of 2, the st"),
    (PIPELINING | {"schedule": "zero-bubble", "microbatches": 5}, "microbatches: found 5; allowed"),
    (PIPELINING | {"schedule": "1f1b"}, "microbatches: found 1; allowed: at least 2, one a stage"),
    (drawn(sampler="dgl") | {"layout": "pp2"}, "layout: found 'pp2'; allowed: seq or dp<R>, since"),
    (GRAPHS | {"layout": "pp2", "engine": "pipelining"}, "layout: found 'pp2'; allowed: seq or"),
    (PIPELINING | {"activation_checkpointing": "always"}, "activation_checkpointing: found 'a"),
    (GAT | {"compile": "default"}, "compile: found 'default'; allowed: off but for"),
    (PIPELINING | {"layout": "dp2-pp2", "bucket_mib": 0.5}, "bucket_mib: found 0.5; allowed: none"),
    (INTERLEAVED | {"balance": [8, 9]}, "balance: found [8, 9]; allowed: one count for each of"),
    (PP2 | {"layout": "pp18"}, "layout: found pp18; allowed: at most 17 stages, one a layer"),
    (INTERLEAVED | {"virtual_stages": 9}, "virtual_stages: found 9; allowed: at most 8 a stage of"),
]


@pytest.mark.parametrize(("raw", "line"), MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_is_one_line(raw: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as refused:
        build_experiment(raw, "sweep.yaml")
    assert str(refused.value).startswith(f"sweep.yaml: {line}")
    assert "\n" not in str(refused.value)


# Ids stand in the run folders of users. If one of these changes, old runs are no longer found.
GOLDEN: dict[str, dict[str, Any]] = {
    "vig-synthetic-cifar10-seq-m1-s0-r0-6be19e4b6b": VIG,
    "vig-synthetic-cifar10-dp2-pp2-m5-s3-r2-a52d03133f": vig(
        layout="dp2-pp2", microbatches=5, model={"name": "vig", "blocks": 4}, seed=3, repeat=2
    ),
    "gat-cora-seq-m1-s0-r0-ad4529fa21": GAT,
    "gat-cora-pp4-m4-s0-r0-4e8e1aead1": gat(
        layout="pp4", microbatches=4, chunks="halo", balance=[1, 2, 1, 2], schedule="1f1b"
    ),
}


@pytest.mark.parametrize(("golden", "raw"), GOLDEN.items())
def test_ids_never_change(golden: str, raw: dict[str, Any]) -> None:
    assert Experiment.model_validate(raw).id == golden


def test_a_default_spelled_out_changes_nothing() -> None:
    features = {"name": "reddit10k", "features": "one-hot"}
    assert graphs(data=features).id == graphs(data={"name": "reddit10k"}).id
    assert sampled().id == sampled(task=None).id != linked().id
    plain = Experiment.model_validate(VIG)
    spelled = Experiment.model_validate(plain.model_dump(mode="json"))
    assert spelled == plain
    assert spelled.id == plain.id
    assert plain.content() == VIG
