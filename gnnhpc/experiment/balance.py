"""How many layers each stage gets, so that the costliest stage costs as little as possible."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence


def balance_layers(
    costs: Sequence[float], stages: int, transfer: Sequence[float] | None = None
) -> list[int]:
    """How many neighbouring layers each stage gets, minimising the cost of the costliest stage.

    Exact, by dynamic programming over (layers assigned, stages used). `transfer[i]` is what a cut
    after layer i costs the stage before and the stage after. Among equal maxima the smallest sum
    of squared stage costs wins, so that equal costs give equal counts. That takes a second pass,
    since the best split of the first layers need not be part of the best split of all. Raises
    ValueError if there are more stages than layers.
    """
    layers = len(costs)
    if not 1 <= stages <= layers:
        raise ValueError(f"{layers} layers cannot fill {stages} stages")
    cut_cost = list(transfer) if transfer is not None else [0.0] * layers
    prefix = [0.0]
    for cost in costs:
        prefix.append(prefix[-1] + cost)

    def load(first: int, last: int) -> float:
        before = cut_cost[first - 1] if first > 0 else 0.0
        after = cut_cost[last - 1] if last < layers else 0.0
        return prefix[last] - prefix[first] + before + after

    peak, _ = _cheapest(layers, stages, load, max)

    def squared(first: int, last: int) -> float:
        cost = load(first, last)
        return cost**2 if cost <= peak else math.inf

    _, counts = _cheapest(layers, stages, squared, operator.add)
    return counts


def _cheapest(
    layers: int,
    stages: int,
    stage_cost: Callable[[int, int], float],
    combine: Callable[[float, float], float],
) -> tuple[float, list[int]]:
    """The cheapest split and its cost; `combine` adds a stage's cost to those before it."""
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for stage in range(1, stages + 1):
        row: dict[int, tuple[float, int]] = {}
        for last in range(stage, layers - (stages - stage) + 1):
            row[last] = min(
                (combine(before, stage_cost(first, last)), first)
                for first, (before, _) in best[-1].items()
                if first < last
            )
        best.append(row)
    counts: list[int] = []
    last = layers
    for stage in range(stages, 0, -1):
        first = best[stage][last][1]
        counts.append(last - first)
        last = first
    return best[-1][layers][0], counts[::-1]


def stage_slices(counts: Sequence[int]) -> list[range]:
    """The layer indices of each stage."""
    slices: list[range] = []
    first = 0
    for count in counts:
        slices.append(range(first, first + count))
        first += count
    return slices
