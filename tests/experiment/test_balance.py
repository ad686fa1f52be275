"""Dealing layers: exact against every possible cut, ties spread out, transfers paid for."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.experiment.stage_cut import balance_layers, stage_slices

whole_costs = st.lists(st.integers(0, 50), min_size=1, max_size=8)


def all_deals(layers: int, stages: int) -> list[list[int]]:
    """Every way of cutting `layers` into `stages` parts, none empty."""
    deals = []
    for cuts in combinations(range(1, layers), stages - 1):
        edges = [0, *cuts, layers]
        deals.append([b - a for a, b in pairwise(edges)])
    return deals


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
