"""How many bytes each rank sends in a training step, from the shapes of tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.core.layer_specs import LayerSpec, hops
from gnnhpc.core.schedules import place_of_virtual_stage
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.stage_cut import outline
from gnnhpc.records.result_file import Result

_ITEM_BYTES = {"float32": 4, "float64": 8}


def bytes_sent(
    experiment: Experiment, result: Result, headers: Sequence[Mapping[str, Any]]
) -> list[float] | None:
    """Bytes that each rank sends in a training step; None where shapes do not decide it.

    A stage sends its outputs to the next one, and their gradients to the one before. Replicas
    average gradients around a ring: each sends 2 (R - 1) / R of its parameters' size. Chunks count
    as the largest one does. Sampled mini-batches and sets of graphs differ from step to step, so
    pipelines of these are None.
    """
    layout = experiment.layout
    item = _ITEM_BYTES[experiment.dtype]
    parameters = {int(header["rank"]): int(header["parameters"]) for header in headers}
    if len(parameters) != layout.world_size or experiment.process_layout != layout:
        return None
    share = 2 * (layout.replicas - 1) / layout.replicas
    sent = [share * parameters[rank] * item for rank in range(layout.world_size)]
    if layout.stages == 1:
        return sent
    try:
        layers = outline(experiment)
    except GnnhpcError:
        return None
    number = 0
    for virtual, count in enumerate(result.layout["balance"][:-1]):
        number += int(count)
        rows = _rows_after(experiment, result, layers[:number])
        if rows is None:
            return None
        message = rows * math.prod(layers[number - 1].shape) * item
        places = [
            place_of_virtual_stage(experiment.schedule, each, layout.stages)[0]
            for each in (virtual, virtual + 1)
        ]
        if places[0] != places[1]:
            for rank in range(layout.world_size):
                if layout.stage_of(rank) in places:
                    sent[rank] += message
    return sent


def _rows_after(
    experiment: Experiment, result: Result, layers: Sequence[LayerSpec]
) -> float | None:
    """Rows of a replica's mini-batch after these layers."""
    facts = experiment.facts
    if facts.kind == "images":
        return experiment.batch_size
    if facts.kind != "graph" or experiment.sampling is not None:
        return None
    rows = result.graph.get("rows") or []
    done = hops(layers)
    return experiment.microbatches * rows[done] if done < len(rows) else None
