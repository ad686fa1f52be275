"""Calls the compiled sampler of neighbours; `sample_neighbors.cpp` says what it computes."""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gnnhpc.kernels.compile import load_kernel
from gnnhpc.kernels.dispatch import Backend, call, index_of

KERNEL = "sample_neighbors"


class Memory(Protocol):
    """Allocates tensors for a kernel to fill."""

    def empty(self, count: int, dtype: torch.dtype) -> Tensor:
        """[count], not initialized."""
        ...


class FreshMemory:
    """Each tensor has memory of its own, from torch."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = device

    def empty(self, count: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(count, dtype=dtype, device=self._device)


FRESH = FreshMemory()


def is_here() -> bool:
    """Whether the kernel can be compiled and loaded."""
    return load_kernel(KERNEL) is not None


def compute_alone() -> None:
    """From now on the calling thread computes by itself, in the kernels and in torch."""
    # Torch gives a thread its default on first use, which would undo the next line.
    torch.get_num_threads()
    call(KERNEL, "set_own_threads", 1)


@dataclass(frozen=True)
class Layer:
    """What one layer of a mini-batch draws, and by which numbers."""

    fanout: int
    """Neighbours of a node, or as many as it has where that is fewer."""
    seed: int
    """64 bits."""
    step: int
    layer: int


@dataclass(frozen=True)
class Drawn:
    """The edges of one layer by target, the edge of a row to itself last in each.

    `indptr` [rows + 1]; `source` [edges], local rows that enter the layer; `target` [edges], the
    rows that they lead to; `edge` [edges], numbers in the graph, E + n for the edge of node n to
    itself: int32 all four, or all int64 where that could not hold them. `rows_in` is how many rows
    enter.
    """

    indptr: Tensor
    source: Tensor
    target: Tensor
    edge: Tensor
    rows_in: int


class Sampler:
    """Draws the layers of one mini-batch after the other, from the output's to the input's.

    `indptr` int64 [nodes + 1] and `columns` int32 [edges] are the graph by target, `columns`
    ascending in each row, without edges of nodes to themselves. It takes as many threads as
    torch, and a sample does not depend on their number. One thread at a time may call it.
    Nodes are fewer than 2^31, edges as many as there may be.
    """

    code: Backend = "c++"

    def __init__(self, indptr: Tensor, columns: Tensor) -> None:
        self.indptr, self.columns = indptr, columns
        self.count = len(indptr) - 1
        self._nodes = torch.empty(self.count, dtype=torch.int64)
        self._rows = 0
        self._handle = ctypes.c_void_p(
            call(KERNEL, "sampler_create", self.count, result=ctypes.c_void_p)
        )
        weakref.finalize(self, call, KERNEL, "sampler_destroy", self._handle)

    @property
    def nodes(self) -> Tensor:
        """int64 [rows]: of each local row, the node; seeds first."""
        return self._nodes[: self._rows]

    def another(self) -> Sampler:
        """One that draws the same, for another thread; the graph is shared."""
        return Sampler(self.indptr, self.columns)

    def begin(self, seeds: Tensor, without: Tensor | None = None) -> None:
        """A new mini-batch of these nodes, int64 [batch] ascending.

        It is drawn as from a graph without the edges of the numbers `without`, int64 [n] ascending.
        """
        seeds = seeds.contiguous()
        self._rows = len(seeds)
        left = seeds.new_empty(0) if without is None else without
        into = torch.searchsorted(self.indptr, left, right=True) - 1
        args = (seeds, len(seeds), self._nodes, left, into, len(left))
        call(KERNEL, "sampler_begin", self._handle, *args)

    def draw(self, layer: Layer, memory: Memory = FRESH) -> Drawn:
        """The edges into all rows of the layers before, in this memory."""
        graph = (self.indptr.data_ptr(), self.columns.data_ptr(), len(self.columns))
        numbers = (layer.fanout, layer.seed, layer.step, layer.layer, None)
        drawing = ctypes.byref(_Drawing(*graph, *numbers))
        index = index_type(self.columns, self.count)
        indptr = memory.empty(self._rows + 1, index)
        rows = (self._handle, drawing, self._nodes, self._rows, indptr)
        call(KERNEL, "sampler_count", *rows, index=index)
        edges = int(indptr[-1])
        source, edge = memory.empty(edges, index), memory.empty(edges, index)
        args = (*rows, source, edge)
        self._rows = call(KERNEL, "sampler_draw", *args, index=index, result=ctypes.c_int64)
        target = memory.empty(edges, index)
        call(KERNEL, "targets", indptr, len(indptr) - 1, target, index=index)
        return Drawn(indptr, source, target, edge, self._rows)


def index_type(columns: Tensor, nodes: int) -> torch.dtype:
    """The type of sampled edges: int32 unless the number of one of them could be beyond."""
    return torch.int32 if len(columns) + nodes < 1 << 31 else torch.int64


def by_source(drawn: Drawn, memory: Memory = FRESH) -> tuple[Tensor, Tensor, Tensor]:
    """The same edges by source: `indptr` [rows_in + 1], the edges' places, their targets."""
    edges, index = len(drawn.source), index_of(drawn.indptr, drawn.source)
    indptr = memory.empty(drawn.rows_in + 1, index)
    order, target = memory.empty(edges, index), memory.empty(edges, index)
    edges_by_target = (drawn.indptr, drawn.source, len(drawn.indptr) - 1, drawn.rows_in)
    call(KERNEL, "by_source", *edges_by_target, indptr, order, target, index=index)
    return indptr, order, target


def negatives(
    graph: tuple[Tensor, Tensor], seed: int, step: int, kept: Tensor, numbers: Tensor, count: int
) -> Tensor:
    """int64 [links, count]: for links of these `numbers`, int64 [links], whose first ends are
    `kept`, nodes that are neither these nor joined to them in the graph, `indptr` and `columns`."""
    kept, numbers = kept.contiguous(), numbers.contiguous()
    found = torch.empty((len(kept), count), dtype=torch.int64)
    drawing = (len(graph[0]) - 1, ctypes.c_uint64(seed), ctypes.c_uint32(step))
    call(KERNEL, "negatives", *graph, *drawing, kept, numbers, len(kept), count, found)
    return found


class _Drawing(ctypes.Structure):
    _fields_ = (
        ("indptr", ctypes.c_void_p),
        ("columns", ctypes.c_void_p),
        ("edges", ctypes.c_int64),
        ("fanout", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
        ("step", ctypes.c_uint32),
        ("layer", ctypes.c_uint32),
        ("left", ctypes.c_void_p),
    )
