"""What sampling, small graphs and links cannot have: each is one line that says what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from gnnhpc.core.errors import InputError
from gnnhpc.core.settings import MOST_SEED
from gnnhpc.data.registry import parse_data
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.flags import build_experiment
from gnnhpc.experiment.stage_cut import outline
from tests.tools.cells import GAT, GRAPHS, LINKED, SAMPLED, VIG, graphs, linked, sampled


def drawn(**changes: Any) -> dict[str, Any]:
    """With other settings of the sampler."""
    return SAMPLED | {"sampling": SAMPLED["sampling"] | changes}


def links(**changes: Any) -> dict[str, Any]:
    return LINKED | {"sampling": LINKED["sampling"] | changes}


MISTAKES: dict[str, dict[str, Any]] = {
    # Sampling.
    "sampling.fanouts: found nothing; allowed: a value, this": SAMPLED | {"sampling": {}},
    "sampling.fanouts: found []; allowed: at least 1 of them": drawn(fanouts=[]),
    "sampling.fanouts.1: found 0; allowed: at least 1": drawn(fanouts=[4, 0]),
    "sampling.fanouts: found [4]; allowed: 2 numbers, one for each layer": drawn(fanouts=[4]),
    "sampling.semantics: found 'resample'; allowed: once for sampler pyg": drawn(
        sampler="pyg", semantics="resample"
    ),
    "sampling.trim: found false; allowed: true, or sampler pyg": drawn(trim=False),
    "sampling.evaluation: found 'sampled'; allowed: whole for sampler dgl": drawn(
        sampler="dgl", evaluation="sampled"
    ),
    "sampling.fanouts: found [4, 3]; allowed: the same number for all": drawn(semantics="once"),
    "seed: found 18446744073709551616; allowed: at most": SAMPLED | {"seed": MOST_SEED + 1},
    "batch_size: found none; allowed: nodes a mini-batch": SAMPLED | {"batch_size": None},
    "batch_size: found 36 x 1 replicas; allowed: at most the 35 n": SAMPLED | {"batch_size": 36},
    "microbatches: found 25; allowed: at most batch_size 24, a n": SAMPLED | {"microbatches": 25},
    "layout: found 'pp2'; allowed: seq or dp<R> with sampling, and stages with sampler ours": drawn(
        sampler="dgl"
    )
    | {"layout": "pp2"},
    "chunks: found 'halo'; allowed: none with sampling": SAMPLED | {"chunks": "halo"},
    "rebuild: found 'layer'; allowed: none with sampling": SAMPLED | {"rebuild": "layer"},
    "sampling: found a mapping; allowed: none for images": VIG | {"sampling": {"fanouts": [4]}},
    # What torch can compile.
    "compile: found 'default' for implementation fused; allowed: off, as torch cannot": GAT
    | {"compile": "default"},
    "compile: found 'default' for implementation dgl; allowed: off, as torch cannot": GAT
    | {"model": {"name": "gat", "implementation": "dgl"}, "compile": "default"},
    # Many small graphs.
    "batch_size: found none; allowed: graphs a mini-batch": GRAPHS | {"batch_size": None},
    "batch_size: found 33 x 2 replicas; allowed: at most the 64 graphs": GRAPHS
    | {"batch_size": 33, "layout": "dp2"},
    "microbatches: found 25; allowed: at most batch_size 24, a g": GRAPHS | {"microbatches": 25},
    "sampling: found a mapping; allowed: none for many": GRAPHS | {"sampling": {"fanouts": [2]}},
    "chunks: found 'halo'; allowed: none for many small": GRAPHS | {"chunks": "halo"},
    "rebuild: found 'layer'; allowed: 'once' for graphs": GRAPHS | {"rebuild": "layer"},
    "layout: found 'pp2'; allowed: seq or dp<R> with many small": GRAPHS
    | {"layout": "pp2", "engine": "pipelining"},
    "data: found 'synthetic-graphs'; allowed: graph data": GRAPHS | {"model": {"name": "gat"}},
    "model.pooling: found 'sum'; allowed: none where": GAT
    | {"model": {"name": "gcn", "pooling": "sum"}},
    # Links.
    "task: found 'links' and no sampling": LINKED | {"sampling": None, "batch_size": None},
    "task: found 'links' and sampler dgl; allowed: sampling with sampler ours": links(
        sampler="dgl"
    ),
    "sampling.inductive: found true": links(inductive=True),
    "sampling.evaluation: found 'sampled'; allowed: whole with task": links(evaluation="sampled"),
    "task.test_share: found 0.5 beside val_share": LINKED
    | {"task": {"val_share": 0.5, "test_share": 0.5}},
    "task.negatives: found 0; allowed: at least 1": LINKED | {"task": {"negatives": 0}},
}


@pytest.mark.parametrize(("line", "raw"), MISTAKES.items(), ids=range(len(MISTAKES)))
def test_a_mistake_is_one_line(line: str, raw: dict[str, Any]) -> None:
    with pytest.raises(InputError) as refused:
        build_experiment(raw, "sweep.yaml")
    assert str(refused.value).startswith(f"sweep.yaml: {line}")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"name": "reddit10k", "features": "stored"}, "one-hot, degree or constant"),
        ({"name": "mutag", "degrees": 10}, "degrees: found 10; allowed: none for stored"),
        ({"name": "synthetic-graphs", "split": -1}, "split: found -1"),
    ],
)
def test_inputs_that_nodes_do_not_have(data: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="(?s)" + words):
        parse_data(data)


def test_a_cell_has_one_id_whether_a_default_is_written_or_not() -> None:
    written = {"name": "reddit10k", "features": "one-hot"}
    assert graphs(data=written).id == graphs(data={"name": "reddit10k"}).id
    assert sampled().id == sampled(task=None).id != linked().id
    defaults = linked(task={"name": "links"})
    assert defaults.content()["task"] == {"name": "links"}
    assert Experiment.model_validate(defaults.content()) == defaults


@pytest.mark.parametrize("model", ["sage", "gat"])
def test_a_models_last_layer_gives_embeddings_and_no_logarithms(model: str) -> None:
    last = outline(linked(model={"name": model, "layers": 2}))[-1]
    assert last.shape == (8,)
    assert last.kind != "log_softmax"
    assert outline(Experiment.model_validate(GAT))[-1].kind == "log_softmax"
