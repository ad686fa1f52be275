"""Neighbouring layers of ViG in one call of the C++ kernel, for a training micro-batch.

Nothing runs in Python between two layers. In a micro-batch of few images that takes a twentieth of
the step, as the activations push Python's own memory out of the caches.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gnnhpc.kernels import calls, vig
from gnnhpc.kernels.vig_torch import Grid, Moved, Weights


class Layer(NamedTuple):
    """One layer's parameters and running statistics."""

    grid: Grid | None
    """Height and width of the images; None for an FFN, which takes any."""
    weights: Weights
    eps: tuple[float, float]
    moved: Moved


class Forward(NamedTuple):
    """What a forward returns."""

    out: Tensor
    """[images, nodes, 3]"""
    saved: Tensor
    """What backward needs, as uint8: the layers' states in float64, then, in float32, each layer's
    update before its second BatchNorm and the outputs of all layers but the last."""


class Gradients:
    """The tensors that gradients of weights are added to, layer by layer."""

    def __init__(self, tensors: Sequence[Weights]) -> None:
        self.tensors = list(tensors)
        self.addresses = _addresses(self.tensors)


class Layers:
    """The layers of one call, with their addresses; raises ValueError for images of two sizes."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = list(layers)
        nodes = {each.grid[0] * each.grid[1] for each in layers if each.grid is not None}
        if len(nodes) > 1:
            raise ValueError(f"layers of images of {sorted(nodes)} nodes cannot follow each other")
        self.nodes = nodes.pop() if nodes else None
        """Nodes of an image; None if any number will do."""
        self._hidden = [each.weights.b1.shape[0] for each in layers]
        self._weights = _addresses([each.weights for each in layers])
        self._eps = _doubles([eps for each in layers for eps in each.eps])
        self._moved = (
            _addresses([each.moved.statistics for each in layers]),
            _addresses([each.moved.batches for each in layers]),
            _doubles([step for each in layers for step in each.moved.momentum]),
        )
        self._states = 8 * sum(
            vig.state_length(hidden, conv=each.weights.root is not None)
            for each, hidden in zip(layers, self._hidden, strict=True)
        )
        """Bytes of the layers' states."""
        self._kernel = vig.library()

    def forward(self, x: Tensor, *, moves: bool) -> Forward:
        """Apply the layers to x `[images, nodes, 3]`; `moves` says to move running statistics."""
        images, nodes, _ = x.shape
        count, size = len(self.layers), x.numel() * x.element_size()
        out = torch.empty_like(x)
        saved = torch.empty(self._states + (2 * count - 1) * size, dtype=torch.uint8)
        at = saved.data_ptr()
        updates = at + self._states
        calls.count_compiled(self._kernel, "vig_forward", count)
        self._kernel.vig_layers_forward(
            *(count, images, torch.get_num_threads(), self._shapes(nodes)),
            *(vig.pointer(x), self._weights, self._eps),
            *(self._moved if moves else (None, None, None)),
            *(updates, updates + count * size, out.data_ptr(), at),
        )
        return Forward(out, saved)

    def backward(
        self, x: Tensor, saved: Tensor, g: Tensor, into: Gradients, *, wants_x: bool
    ) -> Tensor | None:
        """The gradient of x (None unless `wants_x`), from that of the output, g, of x's shape.

        Gradients of weights are added to `into`.
        """
        images, nodes, _ = x.shape
        count, size = len(self.layers), x.numel() * x.element_size()
        d_x = torch.empty_like(x) if wants_x else None
        at = vig.pointer(saved)
        updates = at + self._states
        calls.count_compiled(self._kernel, "vig_backward", count)
        self._kernel.vig_layers_backward(
            *(count, images, torch.get_num_threads(), self._shapes(nodes)),
            *(vig.pointer(x), updates, updates + count * size, vig.pointer(g)),
            *(self._weights, self._eps, at, None if d_x is None else d_x.data_ptr()),
            into.addresses,
        )
        return d_x

    def _shapes(self, nodes: int) -> ctypes.Array[ctypes.c_int64]:
        """Height, width and hidden units of each layer."""
        grids = [each.grid or (1, nodes) for each in self.layers]
        shapes = ((*grid, hidden) for grid, hidden in zip(grids, self._hidden, strict=True))
        return vig.sizes(*itertools.chain.from_iterable(shapes))


def _addresses(tensors: Sequence[Sequence[Tensor | None]]) -> ctypes.Array[ctypes.c_void_p]:
    return vig.pointers(list(itertools.chain.from_iterable(tensors)))


def _doubles(numbers: Sequence[float]) -> ctypes.Array[ctypes.c_double]:
    return (ctypes.c_double * len(numbers))(*numbers)
