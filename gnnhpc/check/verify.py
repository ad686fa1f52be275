"""Verifies that a layout computes the same as one process: real ranks against a sequential twin.

The twin runs in rank 0's process over the same micro-batches: replica after replica, one stage,
gradients accumulated. Its micro-batches are those of the layout because BatchNorm normalises by
micro-batch (Huang et al. 2019, section 2.3), so a single whole batch would be another function.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch
from gnnhpc.check.audit import audit
from gnnhpc.check.compare_gradients import Array, StepsTaken, Verdict, compare
from gnnhpc.check.observations import gather_observations
from gnnhpc.check.observer import RunObserver
from gnnhpc.core.layout import Layout
from gnnhpc.ranks.devices import choose_device
from gnnhpc.ranks.environment import Environment
from gnnhpc.ranks.mesh import Mesh, join, leave
from gnnhpc.spec.experiment import Experiment
from gnnhpc.train.setup import TrainingParts, set_up

STEPS = 3
"""Training steps after which parameters are compared; gradients are compared after the first."""


def twin_of(experiment: Experiment) -> Experiment:
    """The same mini-batch and micro-batches in one process."""
    replicas = experiment.layout.replicas
    changes: dict[str, Any] = {
        "layout": Layout(),
        "microbatches": experiment.microbatches * replicas,
        "balance": "cost",
    }
    if experiment.batch_size is not None:
        changes["batch_size"] = experiment.batch_size * replicas
    return experiment.model_copy(update=changes)


def verify_rank(
    experiment: Experiment, environment: Environment, root: Path | None, steps: int = STEPS
) -> Verdict | None:
    """Run as one rank of the layout; rank 0 returns the verdict, the others None.

    Raises InputError for an experiment that cannot be run here.
    """
    torch.set_num_threads(environment.cpus)
    mesh = join(environment, experiment.layout, choose_device(experiment.device, environment))
    parts = set_up(experiment, mesh, root)
    observer = RunObserver(mesh.layout, mesh.rank, parts.batches.total_samples)
    mine = _take_steps(experiment, mesh, parts, observer, steps)
    observations = gather_observations(mesh, parts, observer, environment)
    everyone = mesh.gather_objects(mine)
    verdict = None
    if mesh.rank == 0:
        checks = audit(
            observations, parts.outlines, mesh.layout, parts.planned, parts.batches.graph_facts()
        )
        verdict = compare(
            _merge(everyone, mesh.layout),
            _twin(experiment, mesh.device, root, steps),
            [layer.name for layer in parts.outlines],
            dtype=experiment.dtype,
            microbatches=experiment.microbatches,
            replicas=experiment.layout.replicas,
            stages={
                parts.outlines[i].name: stage
                for stage, part in enumerate(parts.planned)
                for i in part
            },
            invalid={c.name: c.detail for c in checks if c.verdict == "invalid"},
        )
    mesh.barrier()
    leave(mesh)
    return verdict


def _twin(
    experiment: Experiment, device: torch.device, root: Path | None, steps: int
) -> StepsTaken:
    twin = twin_of(experiment)
    mesh = Mesh(Layout(), 0, device)
    parts = set_up(twin, mesh, root)
    observer = RunObserver(mesh.layout, 0, parts.batches.total_samples)
    return _take_steps(twin, mesh, parts, observer, steps)


def _take_steps(
    experiment: Experiment,
    mesh: Mesh,
    parts: TrainingParts,
    observer: RunObserver,
    steps: int,
) -> StepsTaken:
    """Train a few steps; keep the first's loss and gradients and the last's parameters."""
    stage = parts.stage
    optimizer = parts.optimizer
    first: tuple[float, dict[str, Array], tuple[tuple[float, float], ...]] | None = None
    with parts.batches.open("train", 0, steps) as batches:
        for batch in batches:
            if optimizer is not None:
                optimizer.zero_grad(set_to_none=False)
            parts.timer.prepare()
            parts.timer.start()
            trained = parts.engine.train_step(batch)
            stage.end_minibatch()
            _observe_step(mesh, parts, batch, observer)
            if first is None:
                sums = _losses(parts, trained.outputs, batch) if mesh.is_last else ()
                loss = float(sum(trained.losses)) / experiment.layout.replicas
                first = (loss, _gradients(stage), sums)
            if optimizer is not None:
                optimizer.step()
    assert first is not None
    parameters = {name: _array(p) for name, p in stage.named_parameters()}
    return StepsTaken(first[0], first[1], parameters, first[2])


def _observe_step(mesh: Mesh, parts: TrainingParts, batch: Batch, observer: RunObserver) -> None:
    norm = parts.engine.gradients.norm()
    observer.observe_gradients(batch, norm)
    values = torch.tensor([float(batch.checksum), norm or 0.0], dtype=torch.float64)
    everyone = mesh.gather(values)
    observer.compare_ranks(everyone[:, 0].tolist(), everyone[:, 1].tolist())


def _losses(
    parts: TrainingParts, outputs: Sequence[Tensor], batch: Batch
) -> tuple[tuple[float, float], ...]:
    return tuple(
        (
            float(parts.task.summed_loss(output, microbatch.targets)),
            float(parts.task.labelled(microbatch.targets)),
        )
        for output, microbatch in zip(outputs, batch.microbatches, strict=True)
    )


def _gradients(stage: torch.nn.Module) -> dict[str, Array]:
    return {name: _array(p.grad) for name, p in stage.named_parameters() if p.grad is not None}


def _array(tensor: Tensor) -> Array:
    """A copy: in float64 the tensor's own memory would be overwritten by the next step."""
    return np.array(tensor.detach().cpu().to(torch.float64).numpy())


def _merge(everyone: Sequence[StepsTaken], layout: Layout) -> StepsTaken:
    """One model from its stages: replica 0's tensors, every replica's losses."""
    stages = [everyone[rank] for rank in layout.pipeline_ranks(0)]
    lasts = [everyone[rank] for rank in layout.replica_ranks(layout.stages - 1)]
    return StepsTaken(
        loss=sum(each.loss for each in lasts),
        gradients={k: v for s in stages for k, v in s.gradients.items()},
        parameters={k: v for s in stages for k, v in s.parameters.items()},
        microbatch_losses=tuple(
            itertools.chain.from_iterable(each.microbatch_losses for each in lasts)
        ),
    )
