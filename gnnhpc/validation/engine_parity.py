"""Engine parity: small steps of all ranks in float64 agree with one process to 1e-9.

All ranks build separate parts of the same experiment in float64, on the same mesh and with the same
engine, loaders and schedule, load what the run holds, and train and evaluate a slice of the data.
Rank 0 computes the same from the reference. Nothing of the run is touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gnnhpc.batches.batch import Batches, BatchPlan
from gnnhpc.batches.chunk_batches import ChunkBatches
from gnnhpc.batches.graph_set_batches import GraphSetBatches
from gnnhpc.batches.image_batches import ImageBatches
from gnnhpc.batches.sampled.sampled_batches import SampledBatches
from gnnhpc.data.images import Images
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.kernels.dispatch import plain_torch
from gnnhpc.models.custom_model import CustomModel
from gnnhpc.models.seeding import fork_generators
from gnnhpc.records.schema import Check
from gnnhpc.training.loop import NotFiniteError, TrainingLoop
from gnnhpc.training.setup import TrainingParts, set_up
from gnnhpc.validation.reference.batches import GraphSetData, ImageData, ReferenceData
from gnnhpc.validation.reference.fresh_layers import (
    FreshLayers,
    build_layers,
    parameters_of,
    set_buffer,
)
from gnnhpc.validation.reference.graph_batches import GraphData, Rows
from gnnhpc.validation.reference.sampling_rule import CapturedEdges
from gnnhpc.validation.steps.captured_steps import Capture, CapturesSteps, buffers_of
from gnnhpc.validation.steps.comparable_layers import check_comparable
from gnnhpc.validation.steps.parity_slice import ParitySlice, parity_slice
from gnnhpc.validation.steps.step_comparison import Disagreement, StepComparison
from gnnhpc.validation.verdicts import CheckError, on_all_ranks, why_failed

NAME = "engine-parity"


@dataclass(frozen=True)
class Parity:
    """What an engine parity check found, on rank 0."""

    part: ParitySlice
    seconds: float
    cause: str | None = None
    """The first difference, in words."""
    not_comparable: CheckError | None = None
    """Why nothing could be compared."""
    compared: StepComparison | None = None
    """The largest differences, as far as steps were compared."""

    @property
    def check(self) -> Check:
        extent = f" on {self.part.extent}" if self.part.extent else ""
        worst = self.compared.worst if self.compared else {}
        values: dict[str, Any] = {"seconds": round(self.seconds, 3), "worst": worst}
        if self.cause is not None:
            return Check(NAME, "invalid", f"{self.cause}{extent}", values)
        if self.not_comparable is not None:
            return Check(NAME, "inconclusive", str(self.not_comparable), values)
        steps = f"{self.part.steps} step{'s' if self.part.steps > 1 else ''}"
        steps += " and an evaluation" if self.part.experiment.test_steps else ""
        detail = f"{steps}{extent} agree with one process in float64"
        if isinstance(self.part.experiment.model, CustomModel):
            detail += "; the arithmetic of a custom layer is compared with itself"
        return Check(NAME, "ok", detail, values)


def check_engine(
    experiment: Experiment,
    parts: TrainingParts,
    mesh: Mesh,
    root: Path | None,
    *,
    first: int = 0,
) -> list[Check]:
    """The check on rank 0, an empty list on the others; a collective.

    `first` is the number of the next training step: 0 also compares initial values with those of
    the seed. Raises what building and running the separate parts raises.
    """
    part = parity_slice(experiment, first=first)
    parity = compare_engine(experiment, parts, mesh, root, part)
    return [] if mesh.rank != 0 or parity is None else [parity.check]


def compare_engine(
    experiment: Experiment,
    parts: TrainingParts,
    mesh: Mesh,
    root: Path | None,
    part: ParitySlice,
) -> Parity | None:
    """Like `check_engine`, with each layer's differences."""
    began = time.perf_counter()
    with fork_generators():
        try:
            on_all_ranks(mesh, lambda: _check_comparable(part, root) if mesh.rank == 0 else None)
            # Building gathers once, so that a rank that fails alone ends the run.
            separate: list[TrainingParts] = []
            on_all_ranks(mesh, lambda: separate.append(_build(part, parts, mesh, root)))
            capture = _take_steps(part, separate[0], mesh)
        except CheckError as error:
            refusal = Parity(part, time.perf_counter() - began, not_comparable=error)
            return refusal if mesh.rank == 0 else None
        ranks = mesh.gather_on_first(capture)
        if mesh.rank != 0:
            return None
        try:
            with one_thread(), plain_torch():
                captured = Capture.of_all(ranks)
                return _compare(part, experiment.dtype, captured, root, began)
        # The other ranks go on: rank 0 computes the reference alone.
        except Exception as error:
            failed = CheckError(why_failed(error))
            return Parity(part, time.perf_counter() - began, not_comparable=failed)


def _check_comparable(part: ParitySlice, root: Path | None) -> None:
    """Raises CheckError for a custom model that cannot be compared."""
    if not isinstance(part.experiment.model, CustomModel):
        return
    if part.experiment.sampling is not None and part.experiment.sampling.sampler != "ours":
        part = dataclasses.replace(part, experiment=part.experiment.whole_graph)
    data = reference_data(part, root, None, "run")
    model = FreshLayers(part.experiment, part.layer_specs)
    check_comparable(model, data.batches("train", part.first)[0])


def _build(part: ParitySlice, parts: TrainingParts, mesh: Mesh, root: Path | None) -> TrainingParts:
    """Separate parts in float64 that hold what the run holds."""
    separate = set_up(
        part.experiment,
        mesh,
        root,
        planned=parts.plan.cut,
        layer_specs=part.layer_specs,
        batches=_batches(part, parts, mesh, root),
    )
    load_state(parts, separate)
    return separate


def _take_steps(part: ParitySlice, separate: TrainingParts, mesh: Mesh) -> Capture:
    """What this rank computes. Raises CheckError on all ranks for a loss that is not finite."""
    sampling, names = part.experiment.sampling, [spec.name for spec in part.layer_specs]
    by_library = sampling is not None and sampling.sampler != "ours"
    hops = [number for number, spec in enumerate(part.layer_specs) if spec.rows == "hop"]
    after_hop = names[hops[0] :] if hops else []
    captures = CapturesSteps(separate, mesh, after_hop, by_library=by_library)
    try:
        TrainingLoop(part.experiment, mesh, separate, [captures]).run(part.first)
    except NotFiniteError as error:
        raise CheckError(f"a step in float64 cannot be compared: {error}") from None
    return captures.found


def _batches(part: ParitySlice, parts: TrainingParts, mesh: Mesh, root: Path | None) -> Batches:
    plan = BatchPlan(part.experiment, part.layer_specs, mesh, root)
    if isinstance(parts.batches, ImageBatches):
        side = part.side
        images = {
            split: Images(tuple(p[:, :, :side, :side] for p in i.parts), i.labels, i.classes)
            for split, i in parts.batches.images.items()
        }
        return ImageBatches(plan, images)
    if part.experiment.data.facts().kind == "graphs":
        return GraphSetBatches(plan, part.graph_set(root))
    if part.experiment.sampling is not None:
        return SampledBatches(plan, part.graph(root))
    return ChunkBatches(plan, part.graph(root))


@torch.no_grad()
def load_state(run: TrainingParts, separate: TrainingParts) -> None:
    """Copy the run's parameters, buffers and optimizer state, in float64, into separate parts.

    Raises KeyError where the run holds other layers than planned.
    """
    held = dict(run.stage.named_parameters())
    for name, parameter in separate.stage.named_parameters():
        parameter.copy_(held[name])
    for name, buffer in buffers_of(run.stage):
        set_buffer(separate.stage, name, buffer)
    if run.optimizer is None or separate.optimizer is None:
        return
    # Not by load_state_dict, which keeps the run's own tensors and imports torch's compiler.
    for group, held_group in zip(
        separate.optimizer.param_groups, run.optimizer.param_groups, strict=True
    ):
        group |= {key: value for key, value in held_group.items() if key != "params"}
    for name, parameter in separate.stage.named_parameters():
        separate.optimizer.state[parameter] = {
            key: value.clone() if key == "step" else value.to(parameter.dtype, copy=True)
            for key, value in run.optimizer.state.get(held[name], {}).items()
        }


def _compare(
    part: ParitySlice, dtype: str, captured: Capture, root: Path | None, began: float
) -> Parity:
    model = FreshLayers(part.experiment, part.layer_specs)
    rows = _rows_for(model, part.experiment)
    data = reference_data(part, root, captured.edges or None, rows)
    layers = [spec.name for spec in part.layer_specs]
    comparison = StepComparison(part.experiment, layers, captured, model, data)
    cause = why = None
    try:
        if part.first == 0:
            built = build_layers(part.experiment, part.layer_specs, getattr(torch, dtype))
            comparison.initial_values(parameters_of(built))
        comparison.run(range(part.first, part.experiment.train_steps))
    except Disagreement as found:
        cause = str(found)
    except CheckError as found:
        why = found
    return Parity(part, time.perf_counter() - began, cause, why, comparison)


def reference_data(
    part: ParitySlice, root: Path | None, edges: CapturedEdges | None, rows: Rows
) -> ReferenceData:
    """The reference's own micro-batches; of one graph they have these `rows`."""
    experiment, specs = part.experiment, part.layer_specs
    match experiment.data.facts().kind:
        case "images":
            return ImageData(experiment, part.side, root)
        case "graphs":
            return GraphSetData(experiment, specs, part.graph_set(root))
    return GraphData(experiment, specs, part.graph(root), edges, rows)


def _rows_for(model: FreshLayers, experiment: Experiment) -> Rows:
    if not isinstance(experiment.model, CustomModel):
        return "graph"
    return "run" if model.has_batchnorm() else "own"


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread, since threads that wait for each other cost more on a busy
    machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
