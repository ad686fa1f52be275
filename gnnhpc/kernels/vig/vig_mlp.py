"""ViG's layers in C++, for contiguous float32 tensors on a CPU.

A layer is a small network for each node (`gnnhpc.kernels.vig.vig_fold` says why), with the hidden
layer in registers. `torch_vig` computes the same in torch. Results do not depend on the number of
threads, which is torch's, to the bit.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gnnhpc.kernels.compile import load_kernel
from gnnhpc.kernels.dispatch import call
from gnnhpc.kernels.vig.torch_vig import Grid, Moved, Result, Statistics, Weights

KERNEL = "vig_mlp"
_VECTORS = {16: "avx512", 8: "avx2", 4: "portable"}


class StackLayer(NamedTuple):
    """One layer of a stack: its parameters, and running statistics if it moves them."""

    grid: Grid | None
    """Height and width of the images; None for an FFN, which takes any."""
    weights: Weights
    eps: tuple[float, float]
    moved: Moved | None


def available() -> bool:
    """Whether there is a kernel on this machine; the first call may compile it."""
    return load_kernel(KERNEL) is not None


def instructions() -> str:
    """Which vectors the kernel was built for."""
    return _VECTORS[call(KERNEL, "vig_lanes", result=ctypes.c_int64)]


class Stack:
    """Neighbouring layers that one call computes, for a training micro-batch.

    Nothing runs in Python between two layers: in a micro-batch of few images that takes a twentieth
    of the step, as the activations push Python's own memory out of the caches.
    """

    def __init__(self, layers: Sequence[StackLayer]) -> None:
        self.layers = list(layers)
        self._hidden = [each.weights.b1.shape[0] for each in layers]
        self._weights = addresses([each.weights for each in layers])
        self._eps = _array(ctypes.c_double, *(eps for each in layers for eps in each.eps))
        moved = [each.moved for each in layers if each.moved is not None]
        self._moved = (
            addresses([each.statistics for each in moved]),
            addresses([each.batches for each in moved]),
            _array(ctypes.c_double, *(step for each in moved for step in each.momentum)),
        )
        self._states = 8 * sum(
            _state_length(hidden, conv=each.weights.root is not None)
            for each, hidden in zip(layers, self._hidden, strict=True)
        )
        """Bytes of the layers' states."""

    def forward(
        self, x: Tensor, *, moves: bool, running: Statistics | None = None
    ) -> tuple[Tensor, Tensor]:
        """The output of x `[images, nodes, 3]`, and what backward needs.

        A single layer's BatchNorms use `running`, else those of all layers use the batch's
        statistics; `moves` says whether to move running statistics by these. The second, uint8, has
        the layers' states in float64, which begin with the statistics, then, in float32, each
        layer's update before its second BatchNorm and the outputs of all layers but the last.
        """
        images, nodes, _ = x.shape
        count, size = len(self.layers), x.numel() * x.element_size()
        out = torch.empty_like(x)
        saved = torch.empty(self._states + (2 * count - 1) * size, dtype=torch.uint8)
        at = saved.data_ptr()
        updates = at + self._states
        call(
            KERNEL,
            "vig_forward",
            *(count, images, self._shapes(nodes), x, self._weights, self._eps),
            None if running is None else addresses([running]),
            *(self._moved if moves else (None, None, None)),
            *(updates, updates + count * size, out, at),
        )
        return out, saved

    def backward(
        self,
        x: Tensor,
        saved: Tensor,
        g: Tensor,
        gradients: Any,
        *,
        wants_x: bool,
    ) -> Tensor | None:
        """The gradient of x (None unless `wants_x`), from that of the output, g, of x's shape.

        Gradients of weights are added to `gradients`, the `addresses` of a Weights a layer. Forward
        has gone by the batch's statistics.
        """
        images, nodes, _ = x.shape
        count, size = len(self.layers), x.numel() * x.element_size()
        d_x = torch.empty_like(x) if wants_x else None
        at = saved.data_ptr()
        updates = at + self._states
        call(
            KERNEL,
            "vig_backward",
            *(count, images, self._shapes(nodes), x),
            *(updates, updates + count * size, g),
            *(self._weights, self._eps, at, d_x, gradients),
        )
        return d_x

    def _shapes(self, nodes: int) -> ctypes.Array[Any]:
        """Height, width and hidden units of each layer."""
        grids = [each.grid or (1, nodes) for each in self.layers]
        shapes = ((*grid, hidden) for grid, hidden in zip(grids, self._hidden, strict=True))
        return _array(ctypes.c_int64, *itertools.chain.from_iterable(shapes))


def forward(
    x: Tensor,
    grid: Grid,
    weights: Weights,
    running: Statistics | None,
    eps: tuple[float, float],
) -> Result:
    """As `torch_vig.forward`."""
    layer, hidden = Stack([StackLayer(grid, weights, eps, None)]), weights.b1.shape[0]
    images = x.view(-1, grid[0] * grid[1], 3)
    out, saved = layer.forward(images, moves=False, running=running)
    if running is not None:
        return Result(out.view_as(x), None, ())
    used = saved[: 8 * (2 * hidden + 6)].view(torch.float64)
    statistics = Statistics(*used.split((hidden, hidden, 3, 3)))
    return Result(out.view_as(x), statistics, (saved,))


def backward(
    x: Tensor,
    grid: Grid,
    weights: Weights,
    saved: tuple[Tensor, ...],
    g: Tensor,
    eps: tuple[float, float],
    *,
    wants_x: bool,
) -> tuple[Tensor | None, Weights]:
    """As `torch_vig.backward`."""
    layer, shape = Stack([StackLayer(grid, weights, eps, None)]), (-1, grid[0] * grid[1], 3)
    d_weights = Weights._make(None if w is None else torch.zeros_like(w) for w in weights)
    into = addresses([d_weights])
    d_x = layer.backward(x.view(shape), saved[0], g.view(shape), into, wants_x=wants_x)
    return None if d_x is None else d_x.view_as(x), d_weights


def addresses(tensors: Sequence[Sequence[Tensor | None]]) -> ctypes.Array[Any]:
    """Addresses of the tensors of some layers, one layer after the other; null for None.

    They are contiguous, as parameters and their gradients are.
    """
    # One line for all: forty tensors a layer and micro-batch.
    flat = itertools.chain.from_iterable(tensors)
    return _array(ctypes.c_void_p, *[None if t is None else t.data_ptr() for t in flat])


@functools.cache
def _state_length(hidden: int, *, conv: bool) -> int:
    """Size in float64 numbers of what a layer's forward keeps for its backward."""
    length: int = call(KERNEL, "vig_state_length", hidden, int(conv), result=ctypes.c_int64)
    return length


@functools.lru_cache(maxsize=4096)
def _array(kind: Any, *numbers: float | None) -> ctypes.Array[Any]:
    return (kind * len(numbers))(*numbers)  # type: ignore[no-any-return]
