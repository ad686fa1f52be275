"""Where models are cut into stages: by cost, by a profile, by counts, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from gnnhpc.core.errors import InputError
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.stage_cut import cut


def experiment(model: str = "vig", **changes: Any) -> Experiment:
    raw: dict[str, Any] = {"model": {"name": model}, "data": {"name": "cora"}}
    if model == "vig":
        raw |= {"data": {"name": "cifar10"}, "batch_size": 100}
    return Experiment.model_validate(raw | changes)


def test_four_stages_of_gat_as_published() -> None:
    parts = cut(experiment("gat", layout="pp4", balance=[1, 2, 1, 2]))
    assert parts == [range(1), range(1, 3), range(3, 4), range(4, 6)]


def test_several_parts_a_stage_are_cut_as_so_many_stages() -> None:
    several = {"schedule": "interleaved", "microbatches": 4}
    parts = cut(experiment(layout="pp2", virtual_stages=2, **several))
    assert parts == cut(experiment(layout="pp2", schedule="zbv", microbatches=4))
    assert parts == cut(experiment(layout="pp4", microbatches=4))
    assert len(cut(experiment(layout="pp2", virtual_stages=8, **several))) == 16


def test_measured_costs_replace_the_outlines_and_a_balance_beats_both() -> None:
    costs = [10.0] + [1.0] * 16
    assert cut(experiment(layout="pp2"), costs=costs) == [range(4), range(4, 17)]
    given_balance = experiment(layout="pp2", balance=[8, 9])
    assert cut(given_balance, costs=costs) == [range(8), range(8, 17)]


@pytest.mark.parametrize(
    ("model", "changes", "line"),
    [
        ("gat", {"layout": "dp2-pp7"}, "layout: found dp2-pp7; allowed: at most 6 stages, "),
        (
            "vig",
            {"layout": "pp4", "schedule": "interleaved", "virtual_stages": 5, "microbatches": 4},
            "virtual_stages: found 5; allowed: at most 4 a stage of pp4: 17 layers",
        ),
        (
            "gat",
            {"layout": "pp4", "schedule": "zbv", "microbatches": 4},
            "virtual_stages: found 2; allowed: at most 1 a stage of pp4: 6 layers",
        ),
    ],
)
def test_cuts_that_cannot_be_are_refused(model: str, changes: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as refused:
        cut(experiment(model, **changes), where="sweep.yaml")
    assert str(refused.value).startswith(f"sweep.yaml: {line}")
