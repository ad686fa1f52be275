"""Calls the compiled sampler of neighbours; `sample.cpp` says what it computes."""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnnhpc.kernels.arguments import index_of, index_suffix, pointers, size
from gnnhpc.kernels.build import load_kernel
from gnnhpc.kernels.memory import FRESH, Memory


def is_here() -> bool:
    """Whether the kernel can be compiled and loaded; numpy draws the same where it cannot."""
    return load_kernel("sample") is not None


def compute_alone() -> None:
    """From now on the calling thread computes by itself, in the kernels and in torch."""
    library: Any = load_kernel("sample")
    assert library is not None
    # Torch gives a thread its default on first use, which would undo the next line.
    torch.get_num_threads()
    library.set_own_threads(1)


@dataclass(frozen=True)
class Layer:
    """What one layer of a mini-batch draws, and by which numbers."""

    fanout: int
    """Neighbours of a node, or as many as it has where that is fewer."""
    seed: int
    """64 bits."""
    step: int
    layer: int
    replace: bool = False


@dataclass(frozen=True)
class Drawn:
    """The edges of one layer by target, the edge of a row to itself last in each.

    `indptr` [rows + 1]; `source` [edges], local rows that enter the layer; `edge` [edges], numbers
    in the graph, E + n for the edge of node n to itself: int32 all three, or all int64 where that
    could not hold them. `rows_in` is how many rows enter.
    """

    indptr: Tensor
    source: Tensor
    edge: Tensor
    rows_in: int


class Sampler:
    """Draws the layers of one mini-batch after the other, from the output's to the input's.

    `indptr` int64 [nodes + 1] and `columns` int32 [edges] are the graph by target, `columns`
    ascending in each row, without edges of nodes to themselves. A draw takes as many `threads` as
    torch, if not told; a sample does not depend on them. Any one thread at a time may call it.
    Nodes are fewer than 2^31, edges as many as there may be.
    """

    def __init__(self, indptr: Tensor, columns: Tensor, *, threads: int | None = None) -> None:
        self.indptr, self.columns, self.threads = indptr, columns, threads
        self.count = len(indptr) - 1
        self._nodes = torch.empty(self.count, dtype=torch.int64)
        self._rows = 0
        library = load_kernel("sample")
        assert library is not None
        self._library: Any = library
        library.sampler_create.restype = ctypes.c_void_p
        for index in (torch.int32, torch.int64):
            getattr(library, f"sampler_draw_{index_suffix(index)}").restype = ctypes.c_int64
        self._handle = ctypes.c_void_p(library.sampler_create(size(self.count)))
        weakref.finalize(self, library.sampler_destroy, self._handle)

    @property
    def nodes(self) -> Tensor:
        """int64 [rows]: of each local row, the node; seeds first."""
        return self._nodes[: self._rows]

    def another(self) -> Sampler:
        """One that draws the same, for another thread; the graph is shared."""
        return Sampler(self.indptr, self.columns, threads=self.threads)

    def begin(self, seeds: Tensor, without: Tensor | None = None) -> None:
        """A new mini-batch of these nodes, int64 [batch], none of them twice.

        It is drawn as from a graph without the edges of the numbers `without`, int64 [n] ascending.
        """
        seeds = seeds.contiguous()
        self._rows = len(seeds)
        left = seeds.new_empty(0) if without is None else without
        into = torch.searchsorted(self.indptr, left, right=True) - 1
        self._call(
            "sampler_begin",
            *pointers(seeds),
            size(self._rows),
            *pointers(self._nodes, left, into),
            size(len(left)),
            _parts(self.threads),
        )

    def draw(self, layer: Layer, memory: Memory = FRESH) -> Drawn:
        """The edges into all rows that there are so far, in this memory."""
        rows = self._rows
        drawing = ctypes.byref(_Drawing(
            *pointers(self.indptr, self.columns), len(self.columns), layer.fanout,
            layer.seed, layer.step, layer.layer, layer.replace, None,
        ))  # fmt: skip
        index = index_type(self.columns, self.count, rows, layer)
        suffix = index_suffix(index)
        indptr = memory.empty(rows + 1, index)
        count = (drawing, *pointers(self._nodes), size(rows), *pointers(indptr))
        self._call(f"sampler_count_{suffix}", *count)
        edges = int(indptr[-1])
        source, edge = memory.empty(edges, index), memory.empty(edges, index)
        out = pointers(indptr, source, edge)
        self._rows = self._call(
            f"sampler_draw_{suffix}",
            drawing,
            *pointers(self._nodes),
            size(rows),
            *out,
            _parts(self.threads),
        )
        return Drawn(indptr, source, edge, self._rows)

    def targets(self, drawn: Drawn, memory: Memory = FRESH) -> Tensor:
        """[edges], of the type of the others: of each edge, the row that it leads to."""
        return targets(drawn, self.threads, memory)

    def _call(self, name: str, *args: Any) -> Any:
        return getattr(self._library, name)(self._handle, *args)


def index_type(columns: Tensor, nodes: int, rows: int, layer: Layer) -> torch.dtype:
    """Of the edges of a layer into so many rows: int32 unless the number of one of them, or how
    many there are, could be beyond."""
    numbers = len(columns) + nodes
    # Without replacement no edge comes twice.
    edges = rows * (layer.fanout + 1) if layer.replace else numbers
    return torch.int32 if max(numbers, edges) < 1 << 31 else torch.int64


def targets(drawn: Drawn, threads: int | None = None, memory: Memory = FRESH) -> Tensor:
    """[edges], of the type of the others: of each edge, the row that it leads to."""
    library: Any = load_kernel("sample")
    target = memory.empty(len(drawn.source), drawn.source.dtype)
    rows = size(len(drawn.indptr) - 1)
    of_rows = getattr(library, f"targets_{_suffix(drawn)}")
    of_rows(*pointers(drawn.indptr), rows, *pointers(target), _parts(threads))
    return target


def by_source(
    drawn: Drawn, threads: int | None = None, memory: Memory = FRESH
) -> tuple[Tensor, Tensor, Tensor]:
    """The same edges by source: `indptr` [rows_in + 1], the edges' places, their targets."""
    library: Any = load_kernel("sample")
    edges, index = len(drawn.source), drawn.source.dtype
    indptr = memory.empty(drawn.rows_in + 1, index)
    order, target = memory.empty(edges, index), memory.empty(edges, index)
    sort = getattr(library, f"by_source_{_suffix(drawn)}")
    sort(
        *pointers(drawn.indptr, drawn.source),
        size(len(drawn.indptr) - 1),
        size(drawn.rows_in),
        *pointers(indptr, order, target),
        _parts(threads),
    )
    return indptr, order, target


def _suffix(drawn: Drawn) -> str:
    return index_suffix(index_of(drawn.indptr, drawn.source))


def _parts(threads: int | None) -> ctypes.c_int:
    return ctypes.c_int(threads or torch.get_num_threads())


class _Drawing(ctypes.Structure):
    _fields_ = (
        ("indptr", ctypes.c_void_p),
        ("columns", ctypes.c_void_p),
        ("edges", ctypes.c_int64),
        ("fanout", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
        ("step", ctypes.c_uint32),
        ("layer", ctypes.c_uint32),
        ("replace", ctypes.c_bool),
        ("left", ctypes.c_void_p),
    )
