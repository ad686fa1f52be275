"""BatchNorm's running statistics, averaged over replicas before an evaluation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gnnhpc.distributed.mesh import Mesh


@torch.no_grad()
def average_running_statistics(stage: nn.Module, mesh: Mesh) -> None:
    """Average them over the replicas of a stage, so that all evaluate one model; a collective."""
    if mesh.replicas is None:
        return
    buffers = [
        buffer
        for name, buffer in stage.named_buffers()
        if name.endswith(("running_mean", "running_var"))
    ]
    if not buffers:
        return
    here = [b.flatten().to(mesh.device) for b in buffers]
    flat: Tensor = torch.cat(here) / mesh.layout.replicas
    mesh.sum_over_replicas(flat)
    for buffer, mean in zip(buffers, flat.split([b.numel() for b in buffers]), strict=True):
        buffer.copy_(mean.view_as(buffer))
