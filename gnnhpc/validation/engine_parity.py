"""Engine parity: small steps of all ranks in float64 agree with one process to 1e-9.

All ranks build separate parts of the same experiment in float64, on the same mesh and with the same
engine, loaders and schedule, load what the run holds, and train and evaluate a slice of the data.
Rank 0 computes the same from the reference. Nothing of the run is touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from gnnhpc.batches.batch import BatchPlan
from gnnhpc.batches.build_batches import build_batches
from gnnhpc.batches.image_batches import ImageBatches
from gnnhpc.data.cifar10_images import Images
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.graph_set import GraphSet
from gnnhpc.kernels.dispatch import plain_torch
from gnnhpc.models.custom_model import CustomModel
from gnnhpc.models.seeding import fork_generators
from gnnhpc.records.schema import Check
from gnnhpc.training.loop import NotFiniteError, TrainingLoop
from gnnhpc.training.setup import TrainingParts, set_up
from gnnhpc.validation.reference.batches import Batches, image_batches
from gnnhpc.validation.reference.fresh_layers import FreshLayers, check_comparable, set_buffer
from gnnhpc.validation.reference.graph_batches import GraphData, GraphSetData, Rows
from gnnhpc.validation.reference.sampling_rule import CapturedEdges
from gnnhpc.validation.steps.captured_steps import Capture, CapturesSteps
from gnnhpc.validation.steps.compare_with_reference import Disagreement, StepComparison
from gnnhpc.validation.steps.parity_slice import ParitySlice
from gnnhpc.validation.verdicts import CheckError, on_all_ranks, why_failed

NAME = "engine-parity"


def check_engine(
    experiment: Experiment, parts: TrainingParts, mesh: Mesh, root: Path | None, part: ParitySlice
) -> list[Check]:
    """The check on rank 0, an empty list on the others; a collective.

    A slice that begins with step 0 also compares initial values with those of the seed. The values
    have the largest relative difference of each kind of quantity, and of each layer's outputs and
    gradient. Raises what running the separate parts raises.
    """
    with fork_generators():
        try:
            on_all_ranks(mesh, lambda: _check_comparable(part, root) if mesh.rank == 0 else None)
            # Building gathers once, so that a rank that fails alone ends the run.
            separate: list[TrainingParts] = []
            on_all_ranks(mesh, lambda: separate.append(_build(part, parts, mesh, root)))
            captures = CapturesSteps(part.experiment, separate[0], mesh)
            TrainingLoop(separate[0], [captures]).run(part.first)
        except (CheckError, NotFiniteError) as error:
            # All ranks know of a loss that is not finite.
            return [Check(NAME, "inconclusive", str(error))] if mesh.rank == 0 else []
        ranks = mesh.gather_on_first(captures.found)
        if mesh.rank != 0:
            return []
        try:
            with one_thread(), plain_torch():
                return [_compare(part, getattr(torch, experiment.dtype), ranks, root)]
        # The other ranks go on: rank 0 computes the reference alone.
        except Exception as error:
            return [Check(NAME, "inconclusive", why_failed(error))]


def _check_comparable(part: ParitySlice, root: Path | None) -> None:
    """Raises CheckError for a custom model that cannot be compared."""
    if not isinstance(part.experiment.model, CustomModel):
        return
    if part.experiment.sampling is not None and part.experiment.sampling.sampler != "ours":
        part = dataclasses.replace(part, experiment=part.experiment.whole_graph)
    batches = reference_batches(part, root, None, "run")
    model = FreshLayers(part.experiment, part.layer_specs)
    check_comparable(model, batches("train", part.first)[0])


def _build(part: ParitySlice, parts: TrainingParts, mesh: Mesh, root: Path | None) -> TrainingParts:
    """Separate parts in float64 that hold what the run holds."""
    plan = BatchPlan(part.experiment, part.layer_specs, mesh, root)
    data: Any = part.graph(root)
    if isinstance(parts.batches, ImageBatches):
        kept = slice(part.side)
        data = {
            split: Images(tuple(p[:, :, kept, kept] for p in i.parts), i.labels, i.classes)
            for split, i in parts.batches.images.items()
        }
    separate = set_up(
        part.experiment,
        mesh,
        root,
        planned=parts.plan.cut,
        layer_specs=part.layer_specs,
        batches=build_batches(plan, data),
    )
    load_state(parts, separate)
    return separate


@torch.no_grad()
def load_state(run: TrainingParts, separate: TrainingParts) -> None:
    """Copy the run's parameters, buffers and optimizer state, in float64, into separate parts.

    Raises KeyError where the run holds other layers than planned.
    """
    held = dict(run.stage.named_parameters())
    for name, parameter in separate.stage.named_parameters():
        parameter.copy_(held[name])
    for name, buffer in run.stage.named_buffers(remove_duplicate=False):
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
    part: ParitySlice, dtype: torch.dtype, ranks: Sequence[Capture], root: Path | None
) -> Check:
    captured, model = Capture.of_all(ranks), FreshLayers(part.experiment, part.layer_specs)
    custom = isinstance(part.experiment.model, CustomModel)
    rows: Rows = "graph"
    if custom:
        rows = "run" if model.has_batchnorm() else "own"
    batches = reference_batches(part, root, captured.edges or None, rows)
    comparison = StepComparison(part, captured, model, batches)
    values = {"worst": comparison.worst, "layers": comparison.by_layer}
    extent = f" on {part.extent}" if part.extent else ""
    try:
        comparison.run(dtype)
    except Disagreement as cause:
        return Check(NAME, "invalid", f"{cause}{extent}", values)
    except CheckError as why:
        return Check(NAME, "inconclusive", str(why), values)
    steps = f"{part.steps} step{'s' if part.steps > 1 else ''}"
    steps += " and an evaluation" if part.experiment.test_steps else ""
    detail = f"{steps}{extent} agree with one process in float64"
    if custom:
        detail += "; the arithmetic of a custom layer is compared with itself"
    return Check(NAME, "ok", detail, values)


def reference_batches(
    part: ParitySlice, root: Path | None, edges: CapturedEdges | None, rows: Rows
) -> Batches:
    """The reference's own micro-batches; of one graph they have these `rows`."""
    experiment, specs = part.experiment, part.layer_specs
    match part.graph(root):
        case GraphSet() as graphs:
            return GraphSetData(experiment, specs, graphs).batches
        case Graph() as graph:
            return GraphData(experiment, specs, graph, edges, rows).batches
    return image_batches(experiment, part.side, root)


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
