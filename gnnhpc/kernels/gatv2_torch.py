"""GATv2's attention over a block's edges in plain torch, edge by edge: any device, any precision.

The same function as `gnnhpc.kernels.gatv2`, which has it in C++ for a CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import functional

from gnnhpc.kernels import calls
from gnnhpc.kernels.edges_torch import largest, of_sources, of_targets, summed
from gnnhpc.kernels.mask import Mask, number_entries

if TYPE_CHECKING:
    from gnnhpc.graphs.blocks import Block


def attend(
    source: Tensor,
    target: Tensor,
    attention: Tensor,
    block: Block,
    mask: Mask | None,
    slope: float,
) -> Tensor:
    """Each target's sum of source [rows_in, H, C] over its edges, weighted: [rows_out, H, C].

    Weights are the softmax over a target's edges of attention . leaky_relu(source + target),
    masked; target is [rows_out, H, C], attention [1, H, C].
    """
    calls.count(calls.TORCH, "attend_forward")
    given, asking = of_sources(source, block), of_targets(target, block)
    scores = (functional.leaky_relu(given + asking, slope) * attention).sum(-1)
    raised = (scores - largest(scores, block)[block.target]).exp()
    share = raised / of_targets(summed(raised, block), block)
    if mask is not None:
        share = share * mask.weights(number_entries(block.edge, share.shape[1]), share.dtype)
    return summed(share[..., None] * given, block)
