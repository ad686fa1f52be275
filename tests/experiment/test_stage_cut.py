"""Where models are cut into stages: by cost, by a profile, by counts."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.stage_cut import balance_layers, cut, stage_slices


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
    counted = experiment(layout="pp2", balance=[8, 9])
    assert cut(counted, costs=costs) == [range(8), range(8, 17)]


whole_costs = st.lists(st.integers(0, 50), min_size=1, max_size=8)


def all_deals(layers: int, stages: int) -> list[list[int]]:
    """Every way of cutting `layers` into `stages` parts, none empty."""
    deals = combinations(range(1, layers), stages - 1)
    return [[b - a for a, b in pairwise((0, *cuts, layers))] for cuts in deals]


def loads(costs: list[int], counts: list[int], transfer: list[int]) -> list[int]:
    """What each stage bears: its layers, and the transfer at each of its two ends."""
    borne = []
    for part in stage_slices(counts):
        before = transfer[part.start - 1] if part.start else 0
        after = transfer[part.stop - 1] if part.stop < len(costs) else 0
        borne.append(sum(costs[i] for i in part) + before + after)
    return borne


def badness(borne: list[int]) -> tuple[int, int]:
    return max(borne), sum(load**2 for load in borne)


@given(whole_costs, st.data())
def test_no_cut_is_better(costs: list[int], data: st.DataObject) -> None:
    """The slowest stage first; among equals, the smallest sum of squares."""
    stages = data.draw(st.integers(1, len(costs)))
    row = st.lists(st.integers(0, 30), min_size=len(costs), max_size=len(costs))
    transfer = data.draw(st.none() | row)
    counts = balance_layers(costs, stages, transfer)
    assert len(counts) == stages
    assert sum(counts) == len(costs)
    paid = transfer or [0] * len(costs)
    best = min(badness(loads(costs, other, paid)) for other in all_deals(len(costs), stages))
    assert badness(loads(costs, counts, paid)) == best
