"""Layers of ViG one after the other in one call: the C++ kernel's, of a training micro-batch.

After them the readout may be a part of it. Between two layers nothing is done in Python: in a
micro-batch of few images, whose activations push Python's own memory out of the caches, that takes
longer than it does by itself.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gnnhpc.kernels import calls, vig, vig_readout
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
    """Of `n` layers, and of the readout after them where there is one."""

    out: Tensor
    """[images, nodes, 3], or logits [images, classes]"""
    saved: Tensor
    """What backward needs, in bytes."""
    ended_s: list[float]
    """When each had ended, by `time.perf_counter`."""


class _Room(NamedTuple):
    """Where numbers begin in what a forward leaves for its backward, in bytes: after the layers'
    states, which are float64, all are float32."""

    updates: int
    """Before each layer's second BatchNorm, [n, images, nodes, 3]."""
    between: int
    """Outputs of all that is not the last, [..., images, nodes, 3]."""
    pooled: int
    """The readout's, [images, 3]."""
    length: int


class Gradients:
    """Where those of the weights are added, of all layers and of the readout."""

    def __init__(
        self, tensors: Sequence[Weights], readout: vig_readout.Weights | None = None
    ) -> None:
        self.tensors = list(tensors)
        self.readout = readout
        self.addresses = _all_addresses(self.tensors)
        self.readout_addresses = None if readout is None else vig.pointers(readout)


class Layers:
    """Calls that are prepared once for all micro-batches of a step."""

    def __init__(self, layers: Sequence[Layer], readout: vig_readout.Weights | None = None) -> None:
        self._layers, self._readout = list(layers), readout
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
        self._rooms: dict[torch.Size, _Room] = {}
        self._weights = _all_addresses([each.weights for each in layers])
        self._eps = _doubles([eps for each in layers for eps in each.eps])
        self._moved = _all_addresses([each.moved.statistics for each in layers])
        self._batches = _all_addresses([each.moved.batches for each in layers])
        self._momentum = _doubles([step for each in layers for step in each.moved.momentum])
        self._state_length = sum(
            vig.state_length(hidden, conv=each.weights.root is not None)
            for each, hidden in zip(layers, self._hidden, strict=True)
        )
        self._readout_shape = None if readout is None else _integers(readout.w2.shape[::-1])
        """Hidden units and classes."""
        self._readout_weights = None if readout is None else vig.pointers(readout)
        self._kernel = vig.library()
        self._ended = (ctypes.c_double * (self._count + (readout is not None)))()

    def forward(self, x: Tensor, *, moves: bool) -> Forward:
        """x `[images, nodes, 3]`; running statistics are moved if the micro-batch `moves` them."""
        images, nodes, _ = x.shape
        room = self._room_for(x.shape)
        readout = self._readout
        out = torch.empty_like(x) if readout is None else x.new_empty(images, readout.w2.shape[0])
        # One tensor, as each takes some microseconds; of bytes, so that nobody rounds its numbers.
        saved = torch.empty(room.length, dtype=torch.uint8)
        at = saved.data_ptr()
        self._count_calls("vig_forward", vig_readout.FORWARD)
        self._kernel.vig_layers_forward(
            *(self._count, images, torch.get_num_threads(), self._shapes_of(nodes)),
            *(vig.pointer(x), self._weights, self._eps),
            *((self._moved, self._batches, self._momentum) if moves else (None, None, None)),
            *(at + room.updates, at + room.between, out.data_ptr(), at),
            *(self._readout_shape, self._readout_weights, at + room.pooled, self._ended),
        )
        return Forward(out, saved, list(self._ended))

    def between(self, x: Tensor, saved: Tensor) -> Tensor:
        """Outputs of all that is not the last, [..., images, nodes, 3], as a forward of x has left
        them."""
        images, nodes, channels = x.shape
        room, one = self._room_for(x.shape), images * nodes * channels
        shape = (room.pooled - room.between) // (4 * one), *x.shape
        strides = one, nodes * channels, channels, 1
        return saved.view(torch.float32).as_strided(shape, strides, room.between // 4)

    def backward(
        self, x: Tensor, saved: Tensor, g: Tensor, into: Gradients, *, wants_x: bool
    ) -> tuple[Tensor | None, list[float]]:
        """Gradient of x, from that of the forward's output, and when each backward had ended."""
        images, nodes, _ = x.shape
        room = self._room_for(x.shape)
        d_x = torch.empty_like(x) if wants_x else None
        at = vig.pointer(saved)
        self._count_calls("vig_backward", vig_readout.BACKWARD)
        self._kernel.vig_layers_backward(
            *(self._count, images, torch.get_num_threads(), self._shapes_of(nodes)),
            *(vig.pointer(x), at + room.updates, at + room.between, vig.pointer(g)),
            *(self._weights, self._eps, at, None if d_x is None else d_x.data_ptr()),
            *(into.addresses, self._readout_shape, self._readout_weights, at + room.pooled),
            *(into.readout_addresses, self._ended),
        )
        return d_x, list(self._ended)

    def _count_calls(self, of_layers: str, of_readout: str) -> None:
        calls.count_compiled(self._kernel, of_layers, self._count)
        if self._readout is not None:
            calls.count_compiled(self._kernel, of_readout)

    def _room_for(self, shape: torch.Size) -> _Room:
        """For images of this shape, as the input and each layer's output have it."""
        if shape not in self._rooms:
            images, nodes, channels = shape
            one, count = 4 * images * nodes * channels, self._count
            has_readout = self._readout is not None
            updates = 8 * self._state_length
            between = updates + count * one
            pooled = between + (count if has_readout else count - 1) * one
            length = pooled + (4 * images * channels if has_readout else 0)
            self._rooms[shape] = _Room(updates, between, pooled, length)
        return self._rooms[shape]

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
