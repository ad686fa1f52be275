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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gnnhpc.batches.batch import Batches
from gnnhpc.batches.chunk_batches import ChunkBatches
from gnnhpc.batches.graph_set_batches import GraphSetBatches
from gnnhpc.batches.image_batches import ImageBatches
from gnnhpc.batches.plan import BatchPlan
from gnnhpc.batches.sampled.sampled_batches import SampledBatches
from gnnhpc.data.images import Images
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.custom_model import CustomModel
from gnnhpc.models.seeding import fork_generators
from gnnhpc.records.schema import Check
from gnnhpc.training.loop import NotFiniteError, TrainingLoop
from gnnhpc.training.setup import TrainingParts, set_up
from gnnhpc.validation.captured_steps import CapturedSteps, RankCapture, buffers_of
from gnnhpc.validation.parity_slice import ParitySlice, parity_slice
from gnnhpc.validation.reference.custom_model import (
    CustomReference,
    set_buffer,
    why_not_comparable,
)
from gnnhpc.validation.reference.graph_data import CustomGraphData, GraphData
from gnnhpc.validation.reference.graph_set_data import GraphSetData
from gnnhpc.validation.reference.micro_batches import CapturedEdges, ImageData, ReferenceData
from gnnhpc.validation.reference.model import BuiltInModel, ReferenceModel, reference_layer
from gnnhpc.validation.step_comparison import Disagreement, NotComparable, StepComparison

NAME = "engine-parity"


@dataclass(frozen=True)
class Parity:
    """What an engine parity check found, on rank 0."""

    part: ParitySlice
    seconds: float
    cause: str | None = None
    """The first difference, in words."""
    not_comparable: str | None = None
    """Why nothing could be compared."""
    worst: dict[str, float] = field(default_factory=dict)
    """The largest relative difference of each kind of quantity."""
    outputs: dict[str, float] = field(default_factory=dict)
    """The same of each layer's outputs, by the layer's name."""
    gradients: dict[str, float] = field(default_factory=dict)

    @property
    def check(self) -> Check:
        extent = f" on {self.part.extent}" if self.part.extent else ""
        values: dict[str, Any] = {"seconds": round(self.seconds, 3), "worst": self.worst}
        if self.cause is not None:
            return Check(NAME, "invalid", f"{self.cause}{extent}", values)
        if self.not_comparable is not None:
            verdict: Any = "inconclusive"
            return Check(NAME, verdict, self.not_comparable, values)
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
    slice_: ParitySlice | None = None,
) -> Check | None:
    """The verdict on rank 0, None on the others; a collective.

    `first` is the number of the next training step: 0 also compares initial values with those of
    the seed. Raises what building and running the separate parts raises.
    """
    part = slice_ or parity_slice(experiment, first=first)
    parity = compare_engine(experiment, parts, mesh, root, part)
    return None if parity is None else parity.check


def compare_engine(
    experiment: Experiment,
    parts: TrainingParts,
    mesh: Mesh,
    root: Path | None,
    part: ParitySlice,
) -> Parity | None:
    """As `check_engine`, with each layer's differences."""
    began = time.perf_counter()
    with fork_generators():
        refused = _why_not_comparable(part, root) if mesh.rank == 0 else None
        refused = mesh.gather_objects(refused)[0]
        if refused is not None:
            return Parity(part, time.perf_counter() - began, not_comparable=refused)
        capture, not_finite = _take_steps(part, parts, mesh, root)
        ranks = mesh.gather_on_first(capture)
        if mesh.rank != 0:
            return None
        with one_thread():
            return _compare(part, experiment.dtype, ranks, root, not_finite, began)


def _why_not_comparable(part: ParitySlice, root: Path | None) -> str | None:
    """The reason in one sentence; None for a model whose reference can be computed."""
    model = reference_model(part)
    if not isinstance(model, CustomReference):
        return None
    try:
        by_rows = model.has_batchnorm()
    # A user's code may fail in any way, which the comparison names.
    except Exception:
        by_rows = True
    if part.experiment.sampling is not None and part.experiment.sampling.sampler != "ours":
        whole = part.experiment.whole_graph
        data = reference_data(dataclasses.replace(part, experiment=whole), root, None, by_rows)
    else:
        data = reference_data(part, root, None, by_rows)
    return why_not_comparable(model, data.batches("train", part.first)[0])


def _take_steps(
    part: ParitySlice, parts: TrainingParts, mesh: Mesh, root: Path | None
) -> tuple[RankCapture, str]:
    """What this rank computes, and the message of a loss that is not finite."""
    experiment, sampling = part.experiment, part.experiment.sampling
    separate = set_up(
        experiment,
        mesh,
        root,
        planned=parts.planned,
        layer_specs=part.layer_specs,
        batches=_batches(part, parts, mesh, root),
    )
    load_state(parts, separate)
    by_library = sampling is not None and sampling.sampler != "ours"
    capture = CapturedSteps(
        *(separate.stage, separate.optimizer, mesh.replica, mesh.stage), keeps_edges=by_library
    )
    try:
        TrainingLoop(experiment, mesh, separate, [capture]).run(part.first)
    # It is the same on all ranks.
    except NotFiniteError as error:
        return capture.rank, str(error)
    return capture.rank, ""


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
    part: ParitySlice,
    dtype: str,
    ranks: list[RankCapture],
    root: Path | None,
    not_finite: str,
    began: float,
) -> Parity:
    model = reference_model(part)
    by_rows = isinstance(model, CustomReference) and model.has_batchnorm()
    captured = {
        (each.step, each.replica, each.microbatch): each for rank in ranks for each in rank.edges
    }
    comparison = StepComparison(
        part.experiment,
        [spec.name for spec in part.layer_specs],
        ranks,
        model,
        reference_data(part, root, captured or None, by_rows),
    )
    cause = why = None
    try:
        if part.first == 0:
            comparison.initial_values(dtype)
        comparison.run(range(part.first, part.experiment.train_steps))
    except Disagreement as found:
        cause = str(found)
    except NotComparable as found:
        why = str(found)
    return Parity(
        part,
        time.perf_counter() - began,
        cause or (f"loss: {not_finite}" if not_finite and why is None else None),
        why,
        comparison.worst,
        comparison.outputs,
        comparison.gradients,
    )


def reference_model(part: ParitySlice) -> ReferenceModel:
    """The reference of a built-in model, or of a custom one."""
    layers = [reference_layer(part.experiment.model, spec) for spec in part.layer_specs]
    built_in = [layer for layer in layers if layer is not None]
    if len(built_in) < len(layers):
        return CustomReference(part.experiment, part.layer_specs)
    return BuiltInModel(part.experiment, part.layer_specs, built_in)


def reference_data(
    part: ParitySlice, root: Path | None, edges: CapturedEdges | None, by_rows: bool
) -> ReferenceData:
    """The reference's own micro-batches; `by_rows` as `CustomGraphData` has it."""
    experiment, specs = part.experiment, part.layer_specs
    custom = isinstance(experiment.model, CustomModel)
    match experiment.data.facts().kind:
        case "images":
            return ImageData(experiment, part.side, root)
        case "graphs":
            return GraphSetData(experiment, specs, part.graph_set(root), custom=custom)
    if custom:
        return CustomGraphData(experiment, specs, part.graph(root), edges, by_rows=by_rows)
    return GraphData(experiment, part.graph(root), edges)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """For many small products: threads that wait for each other cost more on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
