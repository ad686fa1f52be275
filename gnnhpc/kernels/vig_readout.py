"""ViG's readout in C++, for contiguous float32 tensors on a CPU.

Both functions use torch's number of threads; the results do not depend on it, to the bit.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gnnhpc.kernels import calls, vig

FORWARD, BACKWARD = "vig_readout_forward", "vig_readout_backward"


class Weights(NamedTuple):
    """Parameters, or their gradients: of 3 -> hidden and hidden -> classes, as nn.Linear's."""

    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor


def forward(x: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
    """Logits `[images, classes]` of x `[images, nodes, 3]`, and what backward needs of x, `[images,
    3]`."""
    classes, hidden = weights.w2.shape
    images, nodes, _ = x.shape
    pooled, logits = x.new_empty(images, 3), x.new_empty(images, classes)
    kernel = vig.library()
    calls.count_compiled(kernel, FORWARD)
    kernel.vig_readout_forward(
        vig.sizes(images, nodes, hidden, classes, torch.get_num_threads()),
        *(vig.pointer(x), vig.pointers(weights), pooled.data_ptr(), logits.data_ptr()),
    )
    return logits, pooled


def backward(
    pooled: Tensor, nodes: int, weights: Weights, g: Tensor, *, wants_x: bool
) -> tuple[Tensor | None, Weights]:
    """Gradients of x (None unless `wants_x`) and of the weights, from that of the logits, g."""
    classes, hidden = weights.w2.shape
    images = len(pooled)
    d_x = pooled.new_empty(images, nodes, 3) if wants_x else None
    d_weights = Weights._make(map(torch.empty_like, weights))
    kernel = vig.library()
    calls.count_compiled(kernel, BACKWARD)
    kernel.vig_readout_backward(
        vig.sizes(images, nodes, hidden, classes, torch.get_num_threads()),
        *(vig.pointer(pooled), vig.pointer(g), vig.pointers(weights)),
        None if d_x is None else d_x.data_ptr(),
        vig.pointers(d_weights),
    )
    return d_x, d_weights
