"""An experiment's layers on paper, and which stage holds which of them.

Layers are balanced so that the costliest stage costs as little as possible.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence

from gnnhpc.core.errors import InputError
from gnnhpc.core.layer_specs import LayerSpec, LayerSpecs, check_outline, hops
from gnnhpc.experiment.experiment import Experiment


def outline(experiment: Experiment, where: object = "spec") -> LayerSpecs:
    """The layers of the model on the experiment's data; InputError where they do not fit.

    Embeddings are what goes into the log-softmax of a model that ends with one.
    """
    facts = experiment.facts
    layers = experiment.model.outline(facts)
    if experiment.outputs == "embeddings" and layers[-1].kind == "log_softmax":
        layers = layers[:-1]
    layers = check_outline(layers, facts, f"{where}: model {experiment.model.name}")
    if experiment.sampling is not None:
        found = list(experiment.sampling.fanouts)
        if len(found) != hops(layers):
            allowed = f"{hops(layers)} numbers, one for each layer that uses neighbours"
            raise InputError(where, "sampling.fanouts", found, allowed)
    return layers


def cut(
    experiment: Experiment,
    layers: Sequence[LayerSpec] | None = None,
    costs: Sequence[float] | None = None,
    transfer: Sequence[float] | None = None,
    where: object = "spec",
) -> list[range]:
    """Which layers each virtual stage of the model holds; a stage is one, or has several.

    The experiment's `balance` decides if it lists counts. Else layers are balanced by `costs` and
    `transfer` (of sending a layer's output on), in seconds of a profile, or without them by the
    costs in the outline. Raises InputError for more virtual stages than layers, or counts whose
    sum is not the number of layers.
    """
    if layers is None:
        layers = outline(experiment, where)
    layout, balance = experiment.layout, experiment.balance
    if layout.stages > len(layers):
        raise InputError(where, "layout", layout, f"at most {len(layers)} stages, one a layer")
    total = experiment.total_virtual_stages
    if total > len(layers):
        allowed = (
            f"at most {len(layers) // layout.stages} a stage of {layout}: {len(layers)} layers"
        )
        raise InputError(where, "virtual_stages", experiment.virtual_stages, allowed)
    if isinstance(balance, tuple):
        if sum(balance) != len(layers):
            allowed = f"counts that add up to {len(layers)}"
            raise InputError(where, "balance", list(balance), allowed)
        return stage_slices(balance)
    costs = costs or [layer.cost for layer in layers]
    return stage_slices(balance_layers(costs, total, transfer))


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
    prefix = list(itertools.accumulate(costs, initial=0.0))

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
    ends = itertools.accumulate(counts, initial=0)
    return [range(first, last) for first, last in itertools.pairwise(ends)]
