"""Sets up one rank: its data, its stage, the engine, the optimizer."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import UninitializedParameter

from gnnhpc.batches.batch import Batches, BatchPlan
from gnnhpc.batches.build_batches import build_batches
from gnnhpc.core.errors import InputError
from gnnhpc.core.layer_specs import LayerSpecs
from gnnhpc.core.schedules import (
    place_of_virtual_stage,
    recomputed_microbatches,
    virtual_stage_number,
)
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines import Engine, build_engine
from gnnhpc.engines.activation_checkpointing import buffers_of, exchanged_buffers
from gnnhpc.engines.engine import StagePlan, VirtualStagePlan, parameters_of
from gnnhpc.engines.gradient_sync import dense_strides
from gnnhpc.engines.layer_profile import measure_layers
from gnnhpc.engines.stage import Stage, build_stage
from gnnhpc.engines.step_timer import StepTimer
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.stage_cut import cut, outline
from gnnhpc.models.seeding import fork_generators
from gnnhpc.training.loss_and_metrics import Classification, LinkPrediction, MeanLoss, Task


@dataclass(frozen=True)
class TrainingParts:
    """All that one rank needs to take steps."""

    layer_specs: LayerSpecs
    plan: StagePlan
    batches: Batches
    task: Task
    stage: Stage
    engine: Engine
    optimizer: torch.optim.Optimizer | None
    timer: StepTimer
    implementation: str
    """Which code computes the layers here: not every machine can compile the kernels."""


def set_up(
    experiment: Experiment,
    mesh: Mesh,
    root: Path | None,
    *,
    planned: Sequence[range] | None = None,
    layer_specs: LayerSpecs | None = None,
    batches: Batches | None = None,
) -> TrainingParts:
    """Load the data, build this rank's stage and the engine that runs it.

    `planned` replaces the cut that costs give, `layer_specs` and `batches` those of the whole data.
    Raises InputError for data that are missing or damaged, for a cut that does not fit the model,
    and for a library that is not here or does not compute on this device.
    """
    experiment.model.check_here(on_gpu=mesh.device.type == "cuda")
    layer_specs = layer_specs or outline(experiment)
    timer = StepTimer(*mesh.devices)
    # Classification, unless the experiment asks for link prediction.
    splits, outputs = experiment.kind != "images", experiment.model.loaded.outputs
    task = (
        LinkPrediction(experiment.task.hits) if experiment.task else Classification(outputs, splits)
    )
    loss = MeanLoss(task, mesh.layout.replicas)
    batches = batches or build_batches(BatchPlan(experiment, layer_specs, mesh, root))
    planned = planned or _planned_cut(experiment, layer_specs, mesh, batches, loss)
    # A process that holds several stages holds all, and computes them one after the other.
    mine = [range(len(layer_specs))]
    if mesh.layout.stages > 1:
        places = range(len(planned) // mesh.layout.stages)
        of_stage = experiment.schedule, mesh.stage, mesh.layout.stages
        mine = [planned[virtual_stage_number(*of_stage, place)] for place in places]
    stage = build_stage(experiment, layer_specs, mine, timer).to(mesh.device)
    _check_parameters(experiment, stage)
    for each in stage.virtual_stages:
        each.recomputed = recomputed_microbatches(
            experiment.activation_checkpointing, experiment.microbatches
        )
    plan = StagePlan(
        experiment=experiment,
        stage=stage,
        mesh=mesh,
        timer=timer,
        loss=loss,
        virtual_stages=tuple(_virtual_stage_plans(stage, mine, experiment, mesh, batches)),
        fixed_rows=batches.fixed_rows,
        cut=planned,
    )
    note = experiment.model.loaded.implementation_note(plan.dtype, mesh.device)
    compiled = experiment.compile
    return TrainingParts(
        layer_specs=layer_specs,
        plan=plan,
        batches=batches,
        task=task,
        stage=stage,
        engine=build_engine(experiment.engine, plan),
        optimizer=build_optimizer(experiment, stage),
        timer=timer,
        implementation=note if compiled == "off" else f"{note}, compiled ({compiled})",
    )


def compile_layers(experiment: Experiment, parts: TrainingParts) -> None:
    """Compile this rank's layers by steps and an evaluation without effect; a collective.

    Raises InputError where torch would find no C++ compiler.
    """
    if parts.plan.mesh.device.type == "cpu" and not shutil.which(os.environ.get("CXX", "g++")):
        found, allowed = f"{experiment.compile!r} without a C++ compiler", "off, or g++ or $CXX"
        raise InputError(f"cell {experiment.id}", "compile", found, allowed)
    engine, stage, batches = parts.engine, parts.stage, parts.batches
    # A profiled step is not captured as a CUDA graph.
    parts.timer.start(profiled=True)
    with fork_generators(), exchanged_buffers(stage, buffers_of(stage)):
        stage.train()
        # A custom layer is compiled in its second call.
        for _ in range(2):
            with batches.open("train", 0, 1) as opened:
                engine.train_step(next(opened))
        stage.eval()
        if experiment.test_steps:
            with batches.open("test", 0, 1) as opened:
                engine.evaluate(next(opened))
        stage.train()
    parts.timer.stop()


def _virtual_stage_plans(
    stage: Stage, mine: Sequence[range], experiment: Experiment, mesh: Mesh, batches: Batches
) -> Iterator[VirtualStagePlan]:
    """Plans of this rank's virtual stages, whose layers are in `mine`; a collective."""
    stages, schedule = mesh.layout.stages, experiment.schedule
    trains = mesh.gather_objects([bool(parameters_of(part)) for part in stage.virtual_stages])
    by_number = []
    for number in range(stages * len(mine)):
        holder, place = place_of_virtual_stage(schedule, number, stages)
        by_number.append(trains[mesh.layout.rank_of(mesh.replica, holder)][place])
    for place, (part, layers) in enumerate(zip(stage.virtual_stages, mine, strict=True)):
        number = virtual_stage_number(schedule, mesh.stage, stages, place)
        yield VirtualStagePlan(
            stage=part,
            number=number,
            place=place,
            is_first=number == 0,
            is_last=number == len(by_number) - 1,
            input_shape=batches.shape_after(layers.start - 1),
            output_shape=batches.shape_after(layers.stop - 1),
            upstream_trains=any(by_number[:number]),
        )


def _check_parameters(experiment: Experiment, stage: Stage) -> None:
    """Raises InputError for a layer with other parameters than its outline counts, with one that
    has no shape yet, that another layer has too, or that is to train and not of the experiment's
    precision."""
    where = f"model {experiment.model.name}"
    owners: dict[int, str] = {}
    for layer, module in zip(stage.specs, stage.layers, strict=True):
        for name, parameter in module.named_parameters():
            key = f"layer {layer.name}, {name}"
            owner = owners.setdefault(id(parameter), layer.name)
            if owner != layer.name:
                own = "parameters of its own, as layers may lie on several stages"
                raise InputError(where, key, f"one of layer {owner}", own)
            if isinstance(parameter, UninitializedParameter):
                raise InputError(where, key, "no shape yet", "a shape by `build`")
            if parameter.requires_grad and parameter.dtype != getattr(torch, experiment.dtype):
                found = str(parameter.dtype).removeprefix("torch.")
                raise InputError(where, key, found, f"the experiment's {experiment.dtype}")
        built = sum(p.numel() for p in module.parameters())
        if layer.parameters not in (None, built):
            key, found = f"parameters of {layer.name}", f"{layer.parameters} in its outline"
            raise InputError(where, key, found, f"{built}, as it is built, or None")


def _planned_cut(
    experiment: Experiment, layer_specs: LayerSpecs, mesh: Mesh, batches: Batches, loss: MeanLoss
) -> list[range]:
    """The layers of each stage: by the outline's costs, or by a profile that rank 0 measures."""
    if experiment.layout.stages == 1 or experiment.balance != "profile":
        return cut(experiment, layer_specs)
    costs: list[tuple[float, float]] = []
    if mesh.rank == 0:
        costs = measure_layers(experiment, layer_specs, batches.example(), loss, mesh.device)
    costs = mesh.gather_objects(costs)[0]
    return cut(experiment, layer_specs, [c for c, _ in costs], [t for _, t in costs])


def build_optimizer(experiment: Experiment, stage: Stage) -> torch.optim.Optimizer | None:
    """None for a stage without parameters, such as one that holds only a dropout layer."""
    parameters = list(stage.parameters())
    if not parameters:
        return None
    # The fused form goes through memory, and past the elements of a slice of something larger.
    fused = all(p.stride() == dense_strides(p) for p in parameters)
    return experiment.optimizer.build(parameters, fused=fused)
