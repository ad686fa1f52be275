"""The audit: checks of all ranks' observations, one for each defect of the published studies."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from gnnhpc.check.audits import data, gradients, machine, model, times, told
from gnnhpc.check.audits.watched import watched_checks
from gnnhpc.check.observations import RankObservations
from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.core.layout import Layout
from gnnhpc.records.schema import Check


def audit(
    observations: Sequence[RankObservations],
    outlines: Sequence[LayerSpec],
    layout: Layout,
    planned: Sequence[range],
    held_by: Sequence[int],
    graph: dict[str, Any],
    dead: Collection[str] = (),
) -> list[Check]:
    """All checks, from observations in rank order; `planned` are the layers of each part of the
    model and `held_by` the stages that hold them, `dead` are layers that have no gradient in the
    twin either."""
    checks = [
        model.parameters(observations, outlines, layout),
        model.cut(observations, outlines, layout, planned, held_by),
        data.labels(observations),
        data.samples(observations),
        gradients.replicas(observations, layout),
        gradients.gradients(observations, outlines, dead),
        gradients.loss(observations),
        times.times(observations, layout),
        times.spans(observations, layout),
        gradients.reductions(observations, layout),
        machine.kernels(observations),
        machine.threads(observations),
        machine.threads_used(observations),
        machine.affinity(observations),
        machine.memory(observations),
        told.slowed(observations),
        times.between(observations),
        times.noise(observations),
        times.drift(observations),
        times.cost(observations),
    ]
    if any(each.drawn_s for each in observations):
        checks.append(times.draws(observations))
    if observations[0].gpu is not None:
        checks.append(machine.gpus(observations))
    checks += watched_checks(observations, layout, held_by, graph)
    if graph:
        checks.append(data.edges(graph))
    return checks
