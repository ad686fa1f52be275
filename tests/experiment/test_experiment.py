"""Experiments: each mistake is one line, and an id follows from what is computed alone."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gnnhpc.core.errors import InputError
from gnnhpc.data.registry import allowed_data
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.flags import build_experiment

VIG: dict[str, Any] = {
    "model": {"name": "vig"},
    "data": {"name": "synthetic-cifar10"},
    "batch_size": 100,
}
GAT: dict[str, Any] = {"model": {"name": "gat"}, "data": {"name": "cora"}}
NOTHING = object()


def vig(**changes: Any) -> dict[str, Any]:
    return {k: v for k, v in (VIG | changes).items() if v is not NOTHING}


def gat(**changes: Any) -> dict[str, Any]:
    return GAT | changes


LAYOUTS = "seq, pp<S>, dp<R> or dp<R>-pp<S>, such as pp2, pp4, dp2-pp2"
MODELS = (
    "gat, gatv2, gcn, gcnii, gin, graphconv, resgcn, sage, vig, or a custom model as module:Class"
)
MISTAKES: dict[str, dict[str, Any]] = {
    # Missing and unknown keys.
    "model: found nothing; allowed: a value, this key is required": vig(model=NOTHING),
    "batch_size: found none; allowed: images a mini-batch and replica": vig(batch_size=NOTHING),
    f"model.name: found nothing; allowed: {MODELS}": vig(model={"blocks": 2}),
    "model.block: found an unknown key (is blocks meant?); allowed: blocks, ffn_width, "
    "grapher_width, implementation, name, readout_width": vig(model={"name": "vig", "block": 2}),
    "data.size: found an unknown key; allowed: classes, image_size, name, test, train": vig(
        data={"name": "synthetic-cifar10", "size": 16}
    ),
    "optimizer.rate: found an unknown key; allowed: clip_norm, lr, lr_schedule, name, "
    "weight_decay": vig(optimizer={"rate": 1}),
    # Wrong kinds of value.
    "microbatches: found 2.5; allowed: a whole number": vig(microbatches=2.5),
    "batch_size: found True; allowed: a whole number": vig(batch_size=True),
    "optimizer.lr: found inf; allowed: a finite number": vig(optimizer={"lr": float("inf")}),
    "spans: found 'maybe'; allowed: true or false": vig(spans="maybe"),
    # Names that are none of the choices.
    f"model.name: found 'vit'; allowed: {MODELS}": vig(model={"name": "vit"}),
    f"data.name: found 'mnist'; allowed: {allowed_data()}": vig(data={"name": "mnist"}),
    f"layout: found 'pp3x'; allowed: {LAYOUTS}": vig(layout="pp3x"),
    "schedule: found 'zb'; allowed: 'gpipe', '1f1b', 'interleaved', 'zero-bubble' or 'zbv'": vig(
        schedule="zb"
    ),
    "schedule: found 'zero-bubble'; allowed: gpipe for engine torchgpipe on cpu, zero-bubble for "
    "engines native and pipelining on cpu": vig(
        layout="pp2", engine="torchgpipe", schedule="zero-bubble"
    ),
    "schedule: found 'zbv'; allowed: gpipe for engine native on gpu, zbv for engines native and "
    "pipelining on cpu": vig(layout="pp2", device="gpu", schedule="zbv"),
    "layout: found 'dp2-pp2'; allowed: pp<S> for schedule zero-bubble of engine pipelining": vig(
        layout="dp2-pp2", engine="pipelining", schedule="zero-bubble"
    ),
    "microbatches: found 5; allowed: a multiple of 2, the stages of pp2, or fewer than 4, for "
    "schedule zero-bubble of engine pipelining": vig(
        layout="pp2", engine="pipelining", schedule="zero-bubble", microbatches=5
    ),
    "virtual_stages: found 3; allowed: 2 for schedule zbv": vig(
        layout="pp2", schedule="zbv", virtual_stages=3
    ),
    "virtual_stages: found 2; allowed: 1 for a single stage": vig(schedule="zbv", virtual_stages=2),
    "activation_checkpointing: found 'often'; allowed: never, all (or always), or except_last": vig(
        activation_checkpointing="often"
    ),
    "bucket_mib: found 0.5; allowed: none for engine torchgpipe": vig(
        layout="dp2-pp2", engine="torchgpipe", bucket_mib=0.5
    ),
    "bucket_mib: found 0.5; allowed: none on gpu": vig(layout="dp2", device="gpu", bucket_mib=0.5),
    "activation_checkpointing: found 'always'; allowed: never for engine pipelining": vig(
        layout="pp2", engine="pipelining", activation_checkpointing="all"
    ),
    "schedule: found '1f1b'; allowed: gpipe for engine torchgpipe": vig(
        layout="pp2", engine="torchgpipe", schedule="1f1b"
    ),
    "balance: found 'even'; allowed: a list or 'cost' or 'profile'": vig(balance="even"),
    # Out of range.
    "balance.0: found 0; allowed: at least 1": vig(layout="pp2", balance=[0, 17]),
    # Values that do not fit each other.
    "data: found 'cora'; allowed: images data for model vig": vig(data={"name": "cora"}),
    "microbatches: found 7; allowed: a divisor of batch_size 100": vig(microbatches=7),
    "batch_size: found 300 x 2 replicas; allowed: at most the 400 images of synthetic-cifar10": vig(
        batch_size=300, layout="dp2"
    ),
    "microbatches: found 2; allowed: at least 4, one a stage of dp2-pp4, for schedule 1f1b of "
    "engine pipelining": vig(
        layout="dp2-pp4", schedule="1f1b", microbatches=2, engine="pipelining"
    ),
    "balance: found [8, 9]; allowed: one count for each of the 1 stages of seq": vig(
        balance=[8, 9]
    ),
    "balance: found [8, 8]; allowed: counts that add up to 17": vig(layout="pp2", balance=[8, 8]),
    "rebuild: found 'layer'; allowed: 'once' for chunks: halo": gat(rebuild="layer", chunks="halo"),
    "layout: found pp18; allowed: at most 17 stages, one a layer": vig(layout="pp18"),
}


@pytest.mark.parametrize(("line", "raw"), MISTAKES.items(), ids=range(len(MISTAKES)))
def test_a_mistake_is_one_line(line: str, raw: dict[str, Any]) -> None:
    with pytest.raises(InputError) as refused:
        build_experiment(raw, "sweep.yaml")
    assert str(refused.value) == f"sweep.yaml: {line}"


def test_what_is_no_mapping_at_all() -> None:
    with pytest.raises(InputError, match=r"^sweep.yaml: found 'vig'; allowed: a mapping of keys"):
        build_experiment("vig", "sweep.yaml")  # type: ignore[arg-type]


def test_numbers_that_yaml_reads_as_text_are_numbers() -> None:
    """YAML 1.1 takes `1e-3` for text, as it wants a point in it."""
    assert Experiment.model_validate(vig(optimizer={"lr": "1e-3"})).optimizer.lr == 1e-3


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"virtual_stages": 1}, "virtual_stages: found 1; allowed: at least 2 for schedule inter"),
        ({"schedule": "1f1b"}, "virtual_stages: found 2; allowed: 1 for schedule 1f1b"),
        ({"microbatches": 5}, "microbatches: found 5; allowed: a multiple of 2, the stages of"),
        ({"engine": "torchgpipe"}, "schedule: found 'interleaved'; allowed: gpipe for engine torc"),
        (
            {"engine": "pipelining", "layout": "dp2-pp2"},
            "layout: found 'dp2-pp2'; allowed: pp<S> f",
        ),
        ({"balance": [8, 9]}, "balance: found [8, 9]; allowed: one count for each of the 4 virt"),
    ],
)
def test_several_parts_a_stage_that_cannot_be_are_refused(
    changes: dict[str, Any], line: str
) -> None:
    good = vig(layout="pp2", schedule="interleaved", virtual_stages=2, microbatches=4)
    assert Experiment.model_validate(good).total_virtual_stages == 4
    with pytest.raises(ValidationError) as refused:
        Experiment.model_validate(good | changes)
    assert line in str(refused.value)


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
    plain = Experiment.model_validate(VIG)
    spelled = Experiment.model_validate(plain.model_dump(mode="json"))
    assert spelled == plain
    assert spelled.id == plain.id
    assert plain.content() == VIG


CHANGES: dict[str, list[Any]] = {
    "layout": ["seq", "pp2", "dp2-pp2", "dp3-pp4"],
    "schedule": ["gpipe", "1f1b"],
    "engine": ["native", "pipelining"],
    "model": [{"name": "vig"}, {"name": "vig", "blocks": 3}],
    "optimizer": [{}, {"lr": 0.01}, {"name": "sgd"}],
    "dtype": ["float32", "float64"],
    "seed": [0, 1],
    "repeat": [0, 1],
    "spans": [False, True],
    "test_every": [None, 2],
}
contents = st.fixed_dictionaries(
    {"microbatches": st.sampled_from([4, 5, 10])},
    optional={k: st.sampled_from(v) for k, v in CHANGES.items()},
)


@given(contents, contents)
def test_same_content_same_id_and_other_content_another(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    first, second = (Experiment.model_validate(vig(**changes)) for changes in (one, other))
    assert (first == second) == (first.id == second.id) == (first.content() == second.content())


@given(contents)
def test_an_id_is_a_folder_name_that_says_what_it_is(changes: dict[str, Any]) -> None:
    found = Experiment.model_validate(vig(**changes))
    assert re.fullmatch(r"[a-z0-9-]+", found.id)
    said = f"vig-synthetic-cifar10-{found.layout}-m{found.microbatches}-s{found.seed}"
    assert found.id.startswith(f"{said}-r{found.repeat}-")
