"""Gradients that are reduced in buckets: too early, not all of them, otherwise than asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines import native, sequential
from gnnhpc.engines.engine import StagePlan
from gnnhpc.engines.gradient_sync import Gradients
from gnnhpc.engines.gradient_sync import OverlappedGradients
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import Steps, around, replace

KIND = "gradients in buckets"
defect = functools.partial(planted, kind=KIND)


def reduced_at_once(true: Any, mesh: Mesh, tensor: Tensor) -> Callable[[], None]:
    """Else what comes too early may still come in time."""
    true(mesh, tensor)()
    return lambda: None


@defect("a bucket reduced a layer too early", setting=settings.VIG_BUCKETS)
def a_layer_early() -> None:
    around(Mesh, "begin_sum_over_replicas", reduced_at_once)
    around(
        OverlappedGradients,
        "_reduce_after",
        lambda true, gradients, place, layer: true(gradients, place, layer - 1),
    )


@defect("buckets reduced before the last micro-batch", setting=settings.GCN_BUCKETS)
def a_micro_batch_early() -> None:
    def goes_backward(true: Any, gradients: OverlappedGradients, layer: str) -> None:
        gradients._ending = gradients._places[layer][0]
        true(gradients, layer)

    around(Mesh, "begin_sum_over_replicas", reduced_at_once)
    around(OverlappedGradients, "goes_backward", goes_backward)


@defect("one bucket not reduced, later in the run", setting=settings.VIG_BUCKETS)
def one_alone() -> None:
    steps = Steps()

    def begin(true: Any, mesh: Mesh, tensor: Tensor) -> Callable[[], None]:
        first = steps.late and tensor.numel() == min(sizes)
        return (lambda: None) if first else true(mesh, tensor)

    sizes: set[int] = set()

    def add(true: Any, gradients: OverlappedGradients, *args: Any) -> None:
        true(gradients, *args)
        sizes.update(flat.numel() for flat in gradients.flats)

    around(OverlappedGradients, "_add", add)
    around(Mesh, "begin_sum_over_replicas", begin)


@defect("one bucket summed, not averaged", setting=settings.GCN_BUCKETS_PARTS)
def summed() -> None:
    def reduce_after(true: Any, gradients: OverlappedGradients, *args: Any) -> None:
        before = set(gradients._begun)
        last = gradients.buckets[-1]
        if len(gradients.buckets) - 1 not in before:
            last.flat.mul_(gradients.mesh.layout.replicas)
        true(gradients, *args)
        if len(gradients.buckets) - 1 not in gradients._begun:
            last.flat.div_(gradients.mesh.layout.replicas)

    around(OverlappedGradients, "_reduce_after", reduce_after)


@defect("all gradients reduced at once where buckets were asked for", setting=settings.VIG_BUCKETS)
def at_once() -> None:
    def of(plan: StagePlan, _last: Sequence[int]) -> Gradients:
        return Gradients(plan.stage, plan.mesh, plan.timer)

    for engine in (native, sequential):
        replace(engine, "gradients_of", of)
