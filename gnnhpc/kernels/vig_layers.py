"""Layers of ViG one after the other in one call: the C++ kernel's, of a training micro-batch.

Between two layers nothing is done in Python. Of a micro-batch of few images, whose activations
push Python's own memory out of the caches, that takes longer than it does by itself.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gnnhpc.kernels import calls, vig
from gnnhpc.kernels.vig_torch import Grid, Moved, Weights


def tells_time() -> bool:
    """Whether the kernel's clock is the one of `time.perf_counter`."""
    return time.get_clock_info("perf_counter").implementation == "clock_gettime(CLOCK_MONOTONIC)"


class Layer(NamedTuple):
    """What does not change from one of a step's micro-batches to the next."""

    grid: Grid | None
    """None for an FFN: whatever the images are."""
    weights: Weights
    eps: tuple[float, float]
    moved: Moved


class Forward(NamedTuple):
    """Of `n` layers."""

    out: Tensor
    """[images, nodes, 3]"""
    between: Tensor
    """Outputs of all but the last layer, [n-1, images, nodes, 3]."""
    updates: Tensor
    """Before each layer's second BatchNorm, [n, images, nodes, 3]."""
    states: Tensor
    """What else backward needs, float64 [...]."""
    ended_s: list[float]
    """When each layer had ended, by `time.perf_counter`."""


@dataclass
class Gradients:
    """Where those of the weights are added, of all layers."""

    tensors: list[Weights]

    def __post_init__(self) -> None:
        self.addresses = _all_addresses(self.tensors)


class Layers:
    """Calls that are prepared once for all micro-batches of a step."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = list(layers)
        """Held, as the kernel is given addresses."""
        self._count = len(layers)
        self._hidden = [each.weights.b1.shape[0] for each in layers]
        self._grids = [each.grid for each in layers]
        nodes = {each[0] * each[1] for each in self._grids if each is not None}
        if len(nodes) > 1:
            raise ValueError(f"layers of images of {sorted(nodes)} nodes cannot follow each other")
        self.nodes = nodes.pop() if nodes else None
        """Of an image; None if any will do."""
        self._shapes: dict[int, ctypes.Array[ctypes.c_int64]] = {}
        self._weights = _all_addresses([each.weights for each in layers])
        self._eps = _doubles([eps for each in layers for eps in each.eps])
        self._moved = _all_addresses([each.moved.statistics for each in layers])
        self._batches = _all_addresses([each.moved.batches for each in layers])
        self._momentum = _doubles([step for each in layers for step in each.moved.momentum])
        self._state_length = sum(
            vig.state_length(hidden, conv=each.weights.root is not None)
            for each, hidden in zip(layers, self._hidden, strict=True)
        )

    def forward(self, x: Tensor, *, moves: bool) -> Forward:
        """x `[images, nodes, 3]`; running statistics are moved if the micro-batch `moves` them."""
        count, (images, nodes, channels) = self._count, x.shape
        out, between = torch.empty_like(x), x.new_empty(count - 1, images, nodes, channels)
        updates = x.new_empty(count, images, nodes, channels)
        states = torch.empty(self._state_length, dtype=torch.float64)
        ended = (ctypes.c_double * count)()
        kernel = vig.library()
        calls.count_compiled(kernel, "vig_forward", count)
        kernel.vig_layers_forward(
            *(count, images, torch.get_num_threads(), self._shapes_of(nodes)),
            *(vig.pointer(x), self._weights, self._eps),
            *((self._moved, self._batches, self._momentum) if moves else (None, None, None)),
            *(updates.data_ptr(), between.data_ptr(), out.data_ptr(), states.data_ptr()),
            ended,
        )
        return Forward(out, between, updates, states, list(ended))

    def backward(
        self, x: Tensor, of: Sequence[Tensor], g: Tensor, into: Gradients, *, wants_x: bool
    ) -> tuple[Tensor | None, list[float]]:
        """Gradient of x, and when each layer's backward had ended; `of` is the forward's outputs
        between layers, updates and states."""
        between, updates, states = of
        count, d_x = self._count, torch.empty_like(x) if wants_x else None
        ended = (ctypes.c_double * count)()
        kernel = vig.library()
        calls.count_compiled(kernel, "vig_backward", count)
        kernel.vig_layers_backward(
            *(count, x.shape[0], torch.get_num_threads(), self._shapes_of(x.shape[1])),
            *(vig.pointer(each) for each in (x, updates, between, g)),
            *(self._weights, self._eps, vig.pointer(states)),
            None if d_x is None else d_x.data_ptr(),
            *(into.addresses, ended),
        )
        return d_x, list(ended)

    def _shapes_of(self, nodes: int) -> ctypes.Array[ctypes.c_int64]:
        """Height, width and hidden units of each layer."""
        if nodes not in self._shapes:
            grids = [grid or (1, nodes) for grid in self._grids]
            shapes = [(*grid, hidden) for grid, hidden in zip(grids, self._hidden, strict=True)]
            self._shapes[nodes] = _integers([number for shape in shapes for number in shape])
        return self._shapes[nodes]


def _all_addresses(
    of_layers: Sequence[Sequence[Tensor | None]],
) -> ctypes.Array[ctypes.c_void_p]:
    return vig.pointers(list(itertools.chain.from_iterable(of_layers)))


def _integers(numbers: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(numbers))(*numbers)


def _doubles(numbers: Sequence[float]) -> ctypes.Array[ctypes.c_double]:
    return (ctypes.c_double * len(numbers))(*numbers)
