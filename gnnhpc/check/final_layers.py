"""The final check of a graph too large for the twin: few rows of each layer, one layer at a time.

Every rank computes its own layers again, each from what it was given in the last evaluation. What
the first was given is held against the data, and what crosses from stage to stage is compared bit
for bit, by the watches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from gnnhpc.check.capture import Array, array_of
from gnnhpc.check.check_slice import CheckSlice
from gnnhpc.check.compare_gradients import TOLERANCE
from gnnhpc.check.evaluated_again import EvaluatedPiece
from gnnhpc.check.process_state import one_thread
from gnnhpc.check.self_check import twin_of
from gnnhpc.check.twin.pieces import Piece
from gnnhpc.check.twin.plain_model import PlainModel
from gnnhpc.check.twin.scene import TwinGraph
from gnnhpc.check.watches.layer_rows import LayerRows
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.schema import Check


@dataclass(frozen=True)
class _Differences:
    """Of one rank's layers."""

    layers: int
    rows: int
    worst: float
    wrong: list[str]
    """Layers whose difference rounding does not explain."""
    seconds: float


def check_layers(
    experiment: Experiment, mesh: Mesh, state: Mapping[str, Array], kept: Sequence[LayerRows]
) -> Check | None:
    """The check on rank 0; a collective. `state` are this rank's parameters and buffers."""
    with one_thread():
        found = _compare(experiment, mesh.replica, state, kept)
    everyone = mesh.gather_objects(found)
    if mesh.rank != 0:
        return None
    if any(each is None for each in everyone):
        edges = experiment.data.facts().edges
        detail = f"what few nodes depend on may be all {edges} edges: too many for a model of yours"
        return Check("final-check", "unknown", detail, {"edges": edges})
    wrong = [f"{name} on rank {rank}" for rank, each in enumerate(everyone) for name in each.wrong]
    worst = max((each.worst for each in everyone), key=lambda x: math.inf if math.isnan(x) else x)
    detail = (
        f"the last evaluation's outputs in {sum(each.rows for each in everyone)} rows of "
        f"{sum(each.layers for each in everyone)} layers, each computed again from what it was "
        f"given, differ by {worst:.1e}{': ' if wrong else ''}{', '.join(wrong)}"
    )
    seconds = round(max(each.seconds for each in everyone), 3)
    values = {"worst": worst, "seconds": seconds}
    return Check("final-check", "invalid" if wrong else "ok", detail, values)


def _compare(
    experiment: Experiment, replica: int, state: Mapping[str, Array], kept: Sequence[LayerRows]
) -> _Differences | None:
    """None for a model that has no form in plain torch: its layers may need rows together."""
    began, worst, wrong = time.perf_counter(), 0.0, []
    for layer in kept:
        twin, single = twin_of(CheckSlice(experiment, (layer.outline,)))
        if not isinstance(twin, PlainModel):
            return None
        for model in (twin, single):
            if model is not None:
                model.restore(replica, state, {})
        piece = EvaluatedPiece(_piece(layer), layer.rows, state, experiment.test_steps - 1)
        tolerance = TOLERANCE[experiment.dtype]
        found = array_of(layer.outputs)
        relative, allowed = piece.difference(found, twin, single, tolerance)
        # One that is no number is the worst.
        worst = max(worst, math.inf if math.isnan(relative) else relative)
        if not relative <= allowed:
            wrong.append(f"{layer.outline.name} in micro-batch {layer.microbatch}")
    rows = sum(len(layer.rows) for layer in kept)
    layers = len({layer.outline.name for layer in kept})
    return _Differences(layers, rows, worst, wrong, time.perf_counter() - began)


def _piece(layer: LayerRows) -> Piece:
    """What the layer's output in few rows follows from."""
    edges = layer.asked
    graph = TwinGraph(
        len(edges.nodes),
        torch.from_numpy(edges.source),
        torch.from_numpy(edges.target),
        torch.from_numpy(edges.number),
        torch.from_numpy(edges.left_out),
    )
    return Piece(layer.inputs, {}, ids=torch.from_numpy(layer.nodes), graph=graph)
