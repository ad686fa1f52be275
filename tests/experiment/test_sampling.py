"""Bad settings of sampled mini-batches: each is one line that says what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from gnnhpc.core.errors import InputError
from gnnhpc.core.settings import MOST_SEED
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.flags import build_experiment
from gnnhpc.experiment.stage_cut import outline
from tests.tools.cells import SAMPLED, VIG


def drawn(**changes: Any) -> dict[str, Any]:
    """With other settings of the sampler."""
    return SAMPLED | {"sampling": SAMPLED["sampling"] | changes}


MISTAKES: dict[str, dict[str, Any]] = {
    "sampling.fanouts: found nothing; allowed: a value, this key is required": SAMPLED
    | {"sampling": {}},
    "sampling.fanouts: found []; allowed: at least 1 of them": drawn(fanouts=[]),
    "sampling.fanouts.1: found 0; allowed: at least 1": drawn(fanouts=[4, 0]),
    "sampling.semantics: found 'resample'; allowed: once for sampler pyg": drawn(
        sampler="pyg", semantics="resample"
    ),
    "sampling.semantics: found 'once'; allowed: resample for sampler dgl": drawn(
        sampler="dgl", semantics="once"
    ),
    "sampling.trim: found false; allowed: true, or sampler pyg": drawn(trim=False),
    "sampling.fused: found false; allowed: true, or sampler dgl": drawn(
        sampler="pyg", semantics="once", fused=False
    ),
    "sampling.evaluation: found 'sampled'; allowed: whole for sampler dgl": drawn(
        sampler="dgl", evaluation="sampled"
    ),
    "sampling.fanouts: found [4, 3]; allowed: the same number for all layers with semantics once "
    "of sampler ours": drawn(semantics="once"),
    "seed: found 18446744073709551616; allowed: at most 18446744073709551615": SAMPLED
    | {"seed": MOST_SEED + 1},
    "batch_size: found none; allowed: nodes a mini-batch and replica": SAMPLED
    | {"batch_size": None},
    "batch_size: found 36 x 1 replicas; allowed: at most the 35 nodes to train on of "
    "synthetic-citation": SAMPLED | {"batch_size": 36},
    "microbatches: found 25; allowed: at most batch_size 24, a node of each": SAMPLED
    | {"microbatches": 25},
    "layout: found 'pp2'; allowed: seq or dp<R> with sampling, and stages with sampler ours, "
    "engine native, device cpu: every stage draws what the others draw": drawn(sampler="dgl")
    | {"layout": "pp2"},
    "chunks: found 'halo'; allowed: none with sampling, which chooses edges itself": SAMPLED
    | {"chunks": "halo"},
    "rebuild: found 'layer'; allowed: none with sampling, which chooses edges itself": SAMPLED
    | {"rebuild": "layer"},
    "sampling: found a mapping; allowed: none for images": VIG | {"sampling": {"fanouts": [4]}},
}


@pytest.mark.parametrize(("line", "raw"), MISTAKES.items(), ids=range(len(MISTAKES)))
def test_a_mistake_is_one_line(line: str, raw: dict[str, Any]) -> None:
    with pytest.raises(InputError) as refused:
        build_experiment(raw, "sweep.yaml")
    assert str(refused.value) == f"sweep.yaml: {line}"


@pytest.mark.parametrize("fanouts", [[4], [4, 3, 2]])
def test_fan_outs_of_another_number_than_layers(fanouts: list[int]) -> None:
    experiment = Experiment.model_validate(drawn(fanouts=fanouts))
    with pytest.raises(InputError) as refused:
        outline(experiment, "sweep.yaml")
    assert str(refused.value) == (
        f"sweep.yaml: sampling.fanouts: found {fanouts}; allowed: 2 numbers, one for each layer "
        "that uses neighbours"
    )
