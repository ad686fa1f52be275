"""What of a stage decides which parts its steps have."""

from __future__ import annotations

from gnnhpc.check.watches.part_faults import StageFacts
from gnnhpc.check.watches.recomputed_forwards import recomputed_forwards
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.base import parameters_of
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.later_weights import leaves_weights
from gnnhpc.train.setup import TrainingParts


def stage_facts(experiment: Experiment, mesh: Mesh, parts: TrainingParts) -> StageFacts:
    """Groups of its layers, whether its replicas have gradients to average, and so on."""
    several = len(mesh.devices) > 1
    return StageFacts(
        {} if several else {each.name: each.group for each in parts.stage.outlines},
        mesh.layout.replicas > 1 and bool(parameters_of(parts.stage)),
        len(parts.stage.called) - 1 if mesh.has_loss else None,
        several,
        [n for n, part in enumerate(parts.stage.called) if not parameters_of(part)],
        [n for n, part in enumerate(parts.stage.called) if not leaves_weights(part)],
        recomputed_forwards(experiment, parts.stage, is_first=mesh.is_first),
    )
