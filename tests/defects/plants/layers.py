"""What graph layers compute, forward and backward, evenly on all ranks."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

from torch import Tensor

from gnnhpc.kernels.neighbour_weights import NeighbourWeights
from gnnhpc.models.convolutions import fused, neighbours
from gnnhpc.models.deep import fused as deep
from gnnhpc.models.deep.ends import NormReadout
from gnnhpc.models.gatv2 import fused as gatv2
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import around, replace

KIND = "graph layers"
defect = functools.partial(planted, kind=KIND)


@defect("GCN's weights by the target's degree alone", setting=settings.graph_of("gcn"))
def one_sided() -> None:
    def mean(true: Any, degree: Tensor, rows_out: int) -> NeighbourWeights:
        weights: NeighbourWeights = true(degree, rows_out)
        assert weights.target is not None
        return dataclasses.replace(weights, source=None, target=weights.target**2)

    around(NeighbourWeights, "normalised", mean)


@defect("GraphSAGE's mean counts the node itself", setting=settings.graph_of("sage"))
def own_in_mean() -> None:
    def smaller(true: Any, degree: Tensor, rows_out: int) -> NeighbourWeights:
        weights: NeighbourWeights = true(degree + 1, rows_out)
        return weights

    around(NeighbourWeights, "mean", smaller)


@defect("a maximum's gradient for every neighbour", setting=settings.graph_of("sage", "max"))
def gradient_for_all() -> None:
    """Each neighbour gets what only the largest should."""

    def to_all(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        block = ctx.block
        grad = upstream.new_zeros(block.rows_in, upstream.shape[1])
        source, target = block.neighbours
        return grad.index_add_(0, source, upstream[target]), None

    replace(neighbours._Largest, "backward", staticmethod(to_all))


@defect("GraphSAGE's pooling without its ReLU", setting=settings.graph_of("sage", "pool"))
def pooled_raw() -> None:
    def without(self: Any, x: Any, context: Any) -> Tensor:
        block = context.chunk.blocks[self.hop]
        given = fused.project(x, self.lin.weight) + self.lin.bias
        own = fused.project(x, self.lin_r.weight)[: block.rows_out]
        out: Tensor = self.lin_l(fused.largest(given, block))
        return out + own

    replace(fused.MaxSageLayer, "forward", without)


@defect("GIN without the node itself", setting=settings.graph_of("gin"))
def without_own() -> None:
    around(
        fused, "weighted_sum",
        lambda true, x, block, weights, *rest, **options: true(
            x, block, dataclasses.replace(weights, own=0.0), *rest, **options
        ),
    )  # fmt: skip


@defect("dropout's scale left out backward", setting=settings.graph_of("graphconv"))
def unscaled_backward() -> None:
    def unscaled(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        (out,) = ctx.saved_tensors
        return upstream * (out != 0), None, None

    replace(neighbours._ReluDropout, "backward", staticmethod(unscaled))


@defect("GATv2's leaky ReLU with half its slope", setting=settings.graph_of("gatv2"))
def other_slope() -> None:
    replace(gatv2, "SLOPE", gatv2.SLOPE / 2)


@defect("GCNII's weights of the layer after", setting=settings.graph_of("gcnii"))
def other_beta() -> None:
    def numbered(true: Any, self: Any, *args: Any, theta: float, **options: Any) -> None:
        true(self, *args, theta=theta, **options)
        self.beta = math.log(theta / (self.hop + 2) + 1.0)

    around(deep.GcniiLayer, "__init__", numbered)


@defect("a residual GCN that forgets its last norm", setting=settings.graph_of("resgcn"))
def without_norm() -> None:
    def unnormed(self: Any, x: Tensor, context: Any) -> Tensor:
        out: Tensor = self.lin(self.activation(x, context))
        return out + 0 * self.norm(x).sum()

    replace(NormReadout, "forward", unnormed)
