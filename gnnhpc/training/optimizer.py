"""The optimizer of one rank's stage, and the clipping of gradients over all stages."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.engine import StageGradients
from gnnhpc.engines.gradient_sync import dense_strides
from gnnhpc.engines.stage import Stage
from gnnhpc.experiment.experiment import Experiment


def build_optimizer(experiment: Experiment, stage: Stage) -> torch.optim.Optimizer | None:
    """None for a stage without parameters, such as one that holds only a dropout layer."""
    parameters = list(stage.parameters())
    if not parameters:
        return None
    # The fused form goes through memory, and past the elements of a slice of something larger.
    fused = all(p.stride() == dense_strides(p) for p in parameters)
    return experiment.optimizer.build(parameters, fused=fused)


def clip_gradients(gradients: StageGradients, mesh: Mesh, clip_norm: float) -> None:
    """Scale gradients, averaged over replicas, so that their norm over all stages is no larger.

    A collective of the stages of a replica.
    """
    norm = gradients.norm() or 0.0
    if mesh.forward is not None:
        squares = torch.tensor(norm * norm, dtype=torch.float64)
        dist.all_reduce(squares, group=mesh.forward)
        norm = math.sqrt(float(squares))
    if norm > clip_norm:
        gradients.scale(clip_norm / norm)
