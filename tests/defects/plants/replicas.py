"""Gradients that replicas do not share, or share too early."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.flat_gradients import Gradients
from gnnhpc.engines.overlapped_gradients import OverlappedGradients
from tests.defects import cells
from tests.defects.defect import around, planted, replace

defect = functools.partial(planted, kind="replicas", mechanism="engine-parity", words="gradient")


@defect("gradients not shared by the replicas", cell=cells.VIG_REPLICAS)
def not_shared() -> None:
    replace(Gradients, "average", lambda gradients: None)


@defect("buckets reduced before the last micro-batch", cell=cells.VIG_BUCKETS)
def a_micro_batch_early() -> None:
    def goes_backward(original: Any, gradients: OverlappedGradients, layer: str) -> None:
        gradients._ending = gradients._places[layer][0]
        original(gradients, layer)

    def at_once(original: Any, mesh: Mesh, tensor: Tensor) -> Callable[[], None]:
        original(mesh, tensor)()
        return lambda: None

    around(Mesh, "begin_sum_over_replicas", at_once)
    around(OverlappedGradients, "goes_backward", goes_backward)


@defect("one bucket not reduced", cell=cells.VIG_BUCKETS)
def one_alone() -> None:
    def begin(original: Any, gradients: OverlappedGradients, place: int, layer: int) -> None:
        last = len(gradients.buckets) - 1
        gradients._begun.setdefault(last, lambda: None)
        original(gradients, place, layer)

    around(OverlappedGradients, "_reduce_after", begin)
