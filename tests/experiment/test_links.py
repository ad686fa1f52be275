"""What a run that learns links may be set to."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.stage_cut import outline
from tests.tools.cells import GAT, LINKED, linked, sampled


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"sampling": None, "batch_size": None}, "task: found 'links' and no sampling"),
        (
            {"sampling": {"fanouts": [4, 3], "sampler": "dgl"}},
            "task: found 'links' and sampler dgl; allowed: sampling with sampler ours",
        ),
        ({"task": {"val_share": 0.5, "test_share": 0.5}}, "test_share: found 0.5 beside val_share"),
        ({"sampling": {"fanouts": [4, 3], "inductive": True}}, "sampling.inductive: found true"),
        (
            {"sampling": {"fanouts": [4, 3], "evaluation": "sampled"}},
            "sampling.evaluation: found 'sampled'; allowed: whole with task links",
        ),
        ({"task": {"negatives": 0}}, "negatives"),
        ({"task": {"name": "edges"}}, "name"),
        ({"task": {"val_share": 0.0}}, "val_share"),
    ],
)
def test_a_mistake_is_named(changes: dict[str, Any], found: str) -> None:
    with pytest.raises(ValidationError, match=found.replace("(", r"\(")):
        Experiment.model_validate(LINKED | changes)


def test_an_experiment_without_a_task_keeps_its_id() -> None:
    assert "task" not in sampled().content()
    assert sampled().id == sampled(task=None).id != linked().id
    defaults = linked(task={"name": "links"})
    assert defaults.content()["task"] == {"name": "links"}
    assert Experiment.model_validate(defaults.content()) == defaults


@pytest.mark.parametrize("model", ["sage", "gat", "gcnii"])
def test_a_models_last_layer_gives_embeddings_and_no_logarithms(model: str) -> None:
    depth = {} if model == "gat" else {"layers": 2}
    experiment = linked(model={"name": model, **depth})
    last = outline(experiment)[-1]
    assert last.shape == (8,)
    assert last.kind != "log_softmax"
    assert outline(Experiment.model_validate(GAT))[-1].kind == "log_softmax"
