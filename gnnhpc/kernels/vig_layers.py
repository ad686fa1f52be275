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


class _Spare(NamedTuple):
    """Tensors for inputs of this shape, that are still to be used."""

    shape: torch.Size
    outs: list[Tensor]
    saved: list[Tensor]
    gradients: list[Tensor]


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
        self._at_a_time = 1
        self._spare = _Spare(torch.Size(), [], [], [])
        self._forwards = self._backwards = 0
        """Calls that are still to be counted."""
        self._ended = (ctypes.c_double * (self._count + (readout is not None)))()

    def forward(self, x: Tensor, *, moves: bool) -> Forward:
        """x `[images, nodes, 3]`; running statistics are moved if the micro-batch `moves` them."""
        shape = x.shape
        images, nodes, _ = shape
        room = self._room_for(shape)
        spare = self._spare_for(shape)
        if not spare.outs:
            spare.outs.extend(self._new_out(x) for _ in range(self._at_a_time))
        if not spare.saved:
            spare.saved.extend(_bytes(room.length) for _ in range(self._at_a_time))
        out, saved = spare.outs.pop(), spare.saved.pop()
        at = saved.data_ptr()
        self._forwards += 1
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
        shape = x.shape
        images, nodes, _ = shape
        room = self._room_for(shape)
        d_x = None
        if wants_x:
            spare = self._spare_for(shape)
            if not spare.gradients:
                spare.gradients.extend(torch.empty_like(x) for _ in range(self._at_a_time))
            d_x = spare.gradients.pop()
        at = vig.pointer(saved)
        self._backwards += 1
        self._kernel.vig_layers_backward(
            *(self._count, images, torch.get_num_threads(), self._shapes_of(nodes)),
            *(vig.pointer(x), at + room.updates, at + room.between, vig.pointer(g)),
            *(self._weights, self._eps, at, None if d_x is None else d_x.data_ptr()),
            *(into.addresses, self._readout_shape, self._readout_weights, at + room.pooled),
            *(into.readout_addresses, self._ended),
        )
        return d_x, list(self._ended)

    def count(self) -> None:
        """Of what was called since the last count, after the step: each micro-batch's by itself
        would take as long as an image."""
        for times, of_layers, of_readout in (
            (self._forwards, "vig_forward", vig_readout.FORWARD),
            (self._backwards, "vig_backward", vig_readout.BACKWARD),
        ):
            if times:
                calls.count_compiled(self._kernel, of_layers, times * self._count)
            if times and self._readout is not None:
                calls.count_compiled(self._kernel, of_readout, times)
        self._forwards = self._backwards = 0

    def make_room(self, count: int) -> None:
        """Make tensors for so many micro-batches at a time, where one would be made: each by itself
        takes longer than all the others then."""
        self._at_a_time = count

    def give_back(self, x: Tensor, saved: Tensor) -> None:
        """What a forward of x has left, which nobody has any more, may be used for another."""
        self._spare_for(x.shape).saved.append(saved)

    def _spare_for(self, shape: torch.Size) -> _Spare:
        if self._spare.shape != shape:
            self._spare = _Spare(shape, [], [], [])
        return self._spare

    def _new_out(self, x: Tensor) -> Tensor:
        readout = self._readout
        if readout is None:
            return torch.empty_like(x)
        return x.new_empty(x.shape[0], readout.w2.shape[0])

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


def _bytes(length: int) -> Tensor:
    """One tensor for all that is saved, of bytes, so that nobody rounds its numbers."""
    return torch.empty(length, dtype=torch.uint8)


def _all_addresses(
    of_layers: Sequence[Sequence[Tensor | None]],
) -> ctypes.Array[ctypes.c_void_p]:
    return vig.pointers(list(itertools.chain.from_iterable(of_layers)))


def _integers(numbers: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(numbers))(*numbers)


def _doubles(numbers: Sequence[float]) -> ctypes.Array[ctypes.c_double]:
    return (ctypes.c_double * len(numbers))(*numbers)
