"""The check at the end of every run: some evaluated outputs, computed again in one process.

From the final parameters and statistics, gathered from the ranks, by the twin and from its own
reading of the data. What an evaluation gave is compared, so it is the last evaluation of the run
that is checked, and with it all that training left behind.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnhpc.check.capture import Array, Ids, array_of
from gnnhpc.check.check_slice import CheckSlice
from gnnhpc.check.compare_gradients import TOLERANCE
from gnnhpc.check.evaluated_again import EvaluatedPiece
from gnnhpc.check.final_layers import check_layers
from gnnhpc.check.outputs_apart import relative_difference
from gnnhpc.check.process_state import one_thread
from gnnhpc.check.self_check import twin_of
from gnnhpc.check.twin.closure import closure_of
from gnnhpc.check.twin.data import TwinGraphData, TwinImages, sliced_graph
from gnnhpc.check.twin.graph_sets import TwinGraphSet, sliced_graph_set
from gnnhpc.check.twin.own_model import OwnModelTwin
from gnnhpc.check.twin.pieces import Piece
from gnnhpc.check.twin.plain_model import PlainModel
from gnnhpc.check.twin.sampled import evaluated_piece
from gnnhpc.check.watches.layer_rows import LayerRows
from gnnhpc.core.layer_specs import hops
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.graph import Graph
from gnnhpc.models.context import Context
from gnnhpc.models.custom_model import CustomModel
from gnnhpc.models.set_buffers import all_buffers
from gnnhpc.records.schema import Check, Phase
from gnnhpc.train.setup import TrainingParts

MOST_EDGES = 8_000_000
"""Of a graph, that the twin computes one by one: each takes some kilobytes."""
TRAINING_NAME = "training outputs"
IMAGES = 16
"""How many drawn images are computed again, of as many micro-batches as there are."""
NODES = 32
"""Of a replica, how many pieces of its nodes one is drawn of, two of a micro-batch at least, whose
outputs are computed again with all that they depend on; of many graphs, these."""


@dataclasses.dataclass(frozen=True)
class _Seen:
    """What one rank holds at the end, and what its last evaluation gave of some rows."""

    replica: int
    state: dict[str, Array]
    outputs: list[_Outputs]
    values: dict[str, Any]
    """Plain attributes of a user's layers, before that evaluation."""
    kinds: dict[str, torch.dtype]
    """Of buffers, what kind of number."""


class _Outputs(NamedTuple):
    microbatch: int
    rows: Ids
    """Of an image micro-batch; of a graph, nodes; of many graphs, these."""
    values: Array


def final_check(
    experiment: Experiment,
    parts: TrainingParts,
    mesh: Mesh,
    root: Path | None,
    contexts: Sequence[Context],
    outputs: Sequence[Tensor],
    values: Mapping[str, Any],
    layers: Sequence[LayerRows] = (),
) -> Check | None:
    """The check on rank 0; a collective. `outputs` are this rank's of the last test mini-batch, of
    whose micro-batches `contexts` are, `values` the plain attributes of a user's layers before that
    evaluation, `layers` what was kept of an evaluation layer by layer."""
    began = time.perf_counter()
    stage = parts.stage
    buffers = all_buffers(stage)
    state = dict(stage.named_parameters()) | buffers
    arrays = {name: np.array(array_of(t)) for name, t in state.items()}
    if layers:
        return check_layers(experiment, mesh, arrays, layers)
    if not _is_affordable(experiment):
        edges = experiment.data.facts().edges
        detail = f"what few nodes depend on may be all {edges} edges: too many for the twin"
        return Check("final-check", "unknown", detail, {"edges": edges})
    chosen = _chosen(experiment, mesh, contexts, outputs) if mesh.has_loss else []
    kinds = {name: buffer.dtype for name, buffer in buffers.items()}
    everyone = mesh.gather_on_first(_Seen(mesh.replica, arrays, chosen, dict(values), kinds))
    found = None
    if mesh.rank == 0:
        with parts.timer.storage("reading the twin's data"), one_thread():
            found = _compare(experiment, parts, everyone, root, began, "test")
    mesh.barrier()
    return found


def training_check(
    experiment: Experiment,
    parts: TrainingParts,
    mesh: Mesh,
    root: Path | None,
    contexts: Sequence[Context],
    outputs: Sequence[Tensor],
) -> Check | None:
    """Likewise of a training step at the final parameters, of a graph in its chunks or of many
    graphs. None where few rows do not follow from few."""
    is_image = experiment.data.facts().kind == "images"
    if is_image or experiment.sampling is not None or not _is_affordable(experiment):
        return None
    arrays = {name: np.array(array_of(t)) for name, t in parts.stage.named_parameters()}
    chosen = _chosen(experiment, mesh, contexts, outputs) if mesh.has_loss else []
    # As of BatchNorm, which lets each row depend on all.
    has_buffers = any(mesh.gather_objects(len(list(parts.stage.buffers())) > 0))
    everyone = mesh.gather_on_first(_Seen(mesh.replica, arrays, chosen, {}, {}))
    found = None
    if mesh.rank == 0 and not has_buffers:
        with parts.timer.storage("reading the twin's data"), one_thread():
            found = _compare(experiment, parts, everyone, root, time.perf_counter(), "train")
    mesh.barrier()
    return found


def _is_affordable(experiment: Experiment) -> bool:
    """Whether the twin can hold all edges that outputs depend on."""
    facts = experiment.data.facts()
    return facts.kind == "graphs" or facts.edges <= MOST_EDGES


def _chosen(
    experiment: Experiment, mesh: Mesh, contexts: Sequence[Context], outputs: Sequence[Tensor]
) -> list[_Outputs]:
    """The first image, the last, and some of each of some micro-batches; of each micro-batch some
    of its own nodes, or graphs."""
    if experiment.data.facts().kind == "images":
        rule = random.Random(f"{experiment.seed}/{experiment.repeat}/final-check")
        images = _images(rule, len(outputs), len(outputs[0]))
        return [_Outputs(m, rows, array_of(outputs[m][rows])) for m, rows in images.items()]
    rule = random.Random(f"{experiment.seed}/{experiment.repeat}/{mesh.replica}/final-check")
    found = []
    for m, (context, output) in enumerate(zip(contexts, outputs, strict=True)):
        chunk = context.chunk
        rows = chunk.nodes[: chunk.own] if chunk.graphs is None else chunk.graphs
        if len(rows):
            places = _spread(len(rows), max(2, NODES // len(outputs)), rule)
            if chunk.graphs is not None and isinstance(experiment.model, CustomModel):
                # Its rows may depend on all graphs of a micro-batch.
                places = np.arange(len(rows))
            found.append(_Outputs(m, rows[places].cpu().numpy(), array_of(output[places])))
    return found


def _spread(rows: int, pieces: int, rule: random.Random) -> Ids:
    """The first of `rows`, the last, and one of each of so many equal pieces."""
    edges = np.linspace(0, rows, min(pieces, rows) + 1).astype(np.int64)
    drawn = [rule.randrange(start, stop) for start, stop in itertools.pairwise(edges.tolist())]
    return np.unique([0, *drawn, rows - 1])


def _images(rule: random.Random, microbatches: int, size: int) -> dict[int, Ids]:
    """Their places in each micro-batch, of all of few or else of some."""
    some = rule.sample(range(microbatches), min(IMAGES, microbatches))
    each = min(size, IMAGES // len(some))
    places = {m: {*rule.sample(range(size), each)} for m in some}
    places.setdefault(0, set()).add(0)
    places.setdefault(microbatches - 1, set()).add(size - 1)
    return {m: np.array(sorted(places[m])) for m in sorted(places)}


def _compare(
    experiment: Experiment,
    parts: TrainingParts,
    seen: Sequence[_Seen],
    root: Path | None,
    began: float,
    phase: Phase,
) -> Check | None:
    """None for a training step of a model that has no form in plain torch."""
    part = CheckSlice(experiment, parts.outlines)
    twin, single = twin_of(part)
    training = phase == "train"
    if training and not isinstance(twin, PlainModel):
        return None
    step = experiment.train_steps if training else experiment.test_steps - 1
    piece_of = _pieces(part, twin, root, phase, step)
    tolerance = TOLERANCE[experiment.dtype]
    worst, explained, count, where = 0.0, tolerance, 0, None
    failures: list[str] = []
    unplaced: list[str] = []
    for replica in range(experiment.layout.replicas):
        ranks = [each for each in seen if each.replica == replica]
        held = _held(ranks)
        for model in (twin, single):
            if model is not None:
                model.restore(replica, held.state, held.kinds)
        unplaced += twin.unplaced if isinstance(twin, OwnModelTwin) else []
        for ours in (o for each in ranks for o in each.outputs):
            piece, rows = piece_of(ours, replica)
            again = EvaluatedPiece(piece, rows, held.state, step, training)
            relative, allowed, failure = _difference(
                part, (twin, single), again, ours, replica, held, tolerance
            )
            if failure is not None:
                failures.append(failure)
                continue
            if training and not (
                math.isfinite(relative) or np.isfinite(again.outputs(single or twin)).all()
            ):
                detail = (
                    "the run diverges: one step more, outputs are no numbers in the twin either"
                )
                return Check(TRAINING_NAME, "unknown", detail, {})
            count += len(rows)
            # One that is no number is the worst.
            relative = math.inf if math.isnan(relative) else relative
            wrong = relative > allowed
            if wrong and (where is None or relative > worst):
                worst, where = relative, f" on replica {replica}"
            elif where is None:
                worst, explained = max(worst, relative), max(explained, allowed)
    passed = where is None
    if unplaced and not passed:
        return _unknown(f"have no place for {unplaced[0]}, which a forward makes")
    if passed and failures:
        return _unknown(f"do not compute: {failures[0]}")
    what = {"images": "images", "graph": "nodes", "graphs": "graphs"}[experiment.data.facts().kind]
    whose = "a training step's" if training else "the last evaluation's"
    detail = (
        f"{whose} outputs of {count} {what}, computed again in one process from the "
        f"final parameters, differ by {worst:.1e}{where or ''}"
    )
    if passed and worst > tolerance:
        detail += f", of which rounding explains up to {explained:.1e}"
    values = {"worst": worst, "seconds": round(time.perf_counter() - began, 3)}
    name = TRAINING_NAME if training else "final-check"
    return Check(name, "ok" if passed else "invalid", detail, values)


def _difference(
    part: CheckSlice,
    models: tuple[PlainModel | OwnModelTwin, PlainModel | None],
    again: EvaluatedPiece,
    ours: _Outputs,
    replica: int,
    held: _Held,
    tolerance: float,
) -> tuple[float, float, str | None]:
    """How far a run's outputs are from the twin's, how far they may be, and why a user's layers did
    not compute, if they did not."""
    twin, single = models
    relative, allowed, failure = math.nan, tolerance, None
    try:
        relative, allowed = again.difference(ours.values, twin, single, tolerance)
    # A user's layers may need what they have kept from training, and fail in any way.
    except Exception as error:
        if not isinstance(twin, OwnModelTwin):
            raise
        failure = _in_words(error)
    if held.values and not relative <= allowed:
        counted = _with_values(part, again, ours, replica, held)
        if counted is not None:
            return counted, allowed, None
    return relative, allowed, failure


def _unknown(why: str) -> Check:
    detail = f"layers that are built anew and have the run's parameters and buffers {why}"
    return Check("final-check", "unknown", detail, {})


def _in_words(error: Exception) -> str:
    (first, *_) = [*str(error).splitlines(), ""]
    return f"{type(error).__name__}: {first}"


class _Held(NamedTuple):
    """By one replica, by full name."""

    state: dict[str, Array]
    kinds: dict[str, torch.dtype]
    values: dict[str, Any]


def _held(ranks: Sequence[_Seen]) -> _Held:
    return _Held(
        {n: v for each in ranks for n, v in each.state.items()},
        {n: kind for each in ranks for n, kind in each.kinds.items()},
        {n: v for each in ranks for n, v in each.values.items()},
    )


def _with_values(
    part: CheckSlice, again: EvaluatedPiece, ours: _Outputs, replica: int, held: _Held
) -> float | None:
    """How far outputs are from those of a user's layers that have counted what the run's have; None
    where such values do not fit, as of a cache's that is not there."""
    for known in (False, True):
        twin, _ = twin_of(part)
        assert isinstance(twin, OwnModelTwin)
        twin.restore(replica, held.state, held.kinds)
        twin.take_values(replica, held.values, known=known)
        try:
            return relative_difference(ours.values, again.outputs(twin))
        except Exception:
            continue
    return None


def _pieces(
    part: CheckSlice, twin: PlainModel | OwnModelTwin, root: Path | None, phase: Phase, step: int
) -> Callable[[_Outputs, int], tuple[Piece, npt.NDArray[Any]]]:
    """What some rows of a replica's outputs depend on, and where in it they are."""
    # It sees whole graphs; a user's model is given the run's own chunks.
    whole = isinstance(twin, PlainModel)
    kind, reach = part.experiment.data.facts().kind, hops(part.outlines)
    if kind == "graphs":
        graphs = TwinGraphSet(part, sliced_graph_set(part, root), whole=whole)

        def of_graphs(ours: _Outputs, replica: int) -> tuple[Piece, npt.NDArray[Any]]:
            piece = graphs.piece(ours.rows, phase, step, replica, ours.microbatch)
            return piece, np.arange(len(ours.rows))

        return of_graphs
    if kind == "images":
        pieces = TwinImages(part, root).pieces(phase, step)
    else:
        graph = sliced_graph(part, root)
        if whole and part.experiment.evaluates_sampled:
            return lambda ours, replica: _sampled_piece(part.experiment, graph, ours)
        pieces = TwinGraphData(part, graph, whole=whole).pieces(phase, step)
    return lambda ours, replica: _piece_of(ours, replica, pieces, reach, whole=whole)


def _sampled_piece(
    experiment: Experiment, graph: Graph, ours: _Outputs
) -> tuple[Piece, npt.NDArray[Any]]:
    """What is drawn for these nodes alone, which is what is drawn for them among others."""
    piece = evaluated_piece(experiment, graph, torch.from_numpy(ours.rows))
    assert piece.ids is not None
    return piece, np.searchsorted(piece.ids.numpy(), ours.rows)


def _piece_of(
    ours: _Outputs, replica: int, pieces: Sequence[Piece], reach: int, *, whole: bool
) -> tuple[Piece, npt.NDArray[Any]]:
    """What the rows depend on, and where in it they are: of a model that is no user's, themselves
    where these are images."""
    if pieces[0].graph is not None:
        piece = closure_of(pieces[0], torch.from_numpy(ours.rows), reach)
        assert piece.ids is not None
        return piece, np.searchsorted(piece.ids.numpy(), ours.rows)
    places = [(piece.replica, piece.microbatch) for piece in pieces]
    piece = pieces[places.index((replica, ours.microbatch))]
    if piece.ids is not None:
        number = {int(node): place for place, node in enumerate(piece.ids) if node >= 0}
        return piece, np.array([number[int(node)] for node in ours.rows])
    if not whole:
        return piece, ours.rows
    assert isinstance(piece.inputs, Tensor)
    rows = torch.from_numpy(ours.rows)
    return dataclasses.replace(piece, inputs=piece.inputs[rows]), np.arange(len(rows))
