"""Dealing layers to stages: cut an ordered list of costs so that the slowest part is fastest."""

from __future__ import annotations

from collections.abc import Sequence


def deal(costs: Sequence[float], stages: int, transfer: Sequence[float] | None = None) -> list[int]:
    """How many neighbouring layers each stage gets, minimising the most loaded stage.

    Exact, by dynamic programming over (layers dealt, stages used). `transfer[i]` is what cutting
    after layer i costs the stage before and the stage after. Among equal maxima the one with the
    smallest sum of squared loads wins, so that ties do not pile layers up.
    Raises ValueError if there are more stages than layers.
    """
    layers = len(costs)
    if not 1 <= stages <= layers:
        raise ValueError(f"{layers} layers cannot fill {stages} stages")
    cut = list(transfer) if transfer is not None else [0.0] * layers
    prefix = [0.0]
    for cost in costs:
        prefix.append(prefix[-1] + cost)

    def load(first: int, last: int) -> float:
        before = cut[first - 1] if first > 0 else 0.0
        after = cut[last - 1] if last < layers else 0.0
        return prefix[last] - prefix[first] + before + after

    best: list[dict[int, tuple[float, float, int]]] = [{0: (0.0, 0.0, 0)}]
    for stage in range(1, stages + 1):
        row: dict[int, tuple[float, float, int]] = {}
        for last in range(stage, layers - (stages - stage) + 1):
            row[last] = min(
                (max(peak, load(first, last)), squares + load(first, last) ** 2, first)
                for first, (peak, squares, _) in best[-1].items()
                if first < last
            )
        best.append(row)
    counts: list[int] = []
    last = layers
    for stage in range(stages, 0, -1):
        first = best[stage][last][2]
        counts.append(last - first)
        last = first
    return counts[::-1]


def stage_slices(counts: Sequence[int]) -> list[range]:
    """The layer indices of each stage."""
    slices: list[range] = []
    first = 0
    for count in counts:
        slices.append(range(first, first + count))
        first += count
    return slices


def stage_loads(costs: Sequence[float], counts: Sequence[int]) -> list[float]:
    """The summed cost of each stage."""
    return [sum(costs[i] for i in part) for part in stage_slices(counts)]
