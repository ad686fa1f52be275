"""Gradients that replicas do not share, or share too early."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.gradient_sync import BucketedGradients, FlatGradients
from tests.defects import cells
from tests.defects.defect import around, planted, replace

defect = functools.partial(
    planted, kind="replicas", mechanism="invariants", words="differ between replicas 0 and 1"
)


@defect(
    "gradients not shared by the replicas",
    cell=cells.VIG_REPLICAS,
    words="0 all-reduces in 10 steps",
)
def not_shared() -> None:
    replace(FlatGradients, "average", lambda gradients: None)


@defect("buckets reduced before the last micro-batch", cell=cells.VIG_BUCKETS)
def a_micro_batch_early() -> None:
    """As soon as their gradients of the first micro-batch are there."""

    def of_the_first(
        original: Any, gradients: BucketedGradients, plan: Any, mib: float, last: int
    ) -> None:
        original(gradients, plan, mib, 1 - last)

    def at_once(original: Any, mesh: Mesh, tensor: Tensor) -> Callable[[], None]:
        original(mesh, tensor)()
        return lambda: None

    def whenever(gradients: BucketedGradients, place: int, layer: int) -> Callable[[], None]:
        return lambda: gradients._reduce_after(place, layer)

    around(BucketedGradients, "_add", of_the_first)
    replace(BucketedGradients, "_reduce_when", whenever)
    around(Mesh, "begin_sum_over_replicas", at_once)


@defect("one bucket not reduced", cell=cells.VIG_BUCKETS)
def one_alone() -> None:
    def begin(original: Any, gradients: BucketedGradients, place: int, layer: int) -> None:
        last = len(gradients.buckets) - 1
        gradients._begun.setdefault(last, lambda: None)
        original(gradients, place, layer)

    around(BucketedGradients, "_reduce_after", begin)
