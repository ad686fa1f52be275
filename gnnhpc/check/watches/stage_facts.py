"""What of a stage decides which parts its steps have."""

from __future__ import annotations

from gnnhpc.check.watches.part_faults import StageFacts
from gnnhpc.engines.base import parameters_of
from gnnhpc.ranks.mesh import Mesh
from gnnhpc.train.setup import TrainingParts


def stage_facts(mesh: Mesh, parts: TrainingParts) -> StageFacts:
    """Groups of its layers, and whether its replicas have gradients to average."""
    several = len(mesh.devices) > 1
    return StageFacts(
        {} if several else {each.name: each.group for each in parts.stage.outlines},
        mesh.layout.replicas > 1 and bool(parameters_of(parts.stage)),
        mesh.is_last,
        several,
    )
