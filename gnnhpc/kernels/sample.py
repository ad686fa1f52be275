"""Calls the compiled sampler of neighbours; `sample.cpp` says what it computes."""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnnhpc.kernels.arguments import pointers, size
from gnnhpc.kernels.build import load_kernel


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

    `indptr` int64 [rows + 1]; `source` int64 [edges], local rows that enter the layer; `edge`
    int64 [edges], numbers in the graph, E + n for the edge of node n to itself; `rows_in` how many
    rows enter.
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
        library.sampler_draw.restype = ctypes.c_int64
        self._handle = ctypes.c_void_p(library.sampler_create(size(self.count)))
        weakref.finalize(self, library.sampler_destroy, self._handle)

    @property
    def nodes(self) -> Tensor:
        """int64 [rows]: of each local row, the node; seeds first."""
        return self._nodes[: self._rows]

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

    def draw(self, layer: Layer) -> Drawn:
        """The edges into all rows that there are so far."""
        rows = self._rows
        drawing = ctypes.byref(_Drawing(
            *pointers(self.indptr, self.columns), len(self.columns), layer.fanout,
            layer.seed, layer.step, layer.layer, layer.replace, None,
        ))  # fmt: skip
        indptr = torch.empty(rows + 1, dtype=torch.int64)
        self._call("sampler_count", drawing, *pointers(self._nodes), size(rows), *pointers(indptr))
        edges = int(indptr[-1])
        source = torch.empty(edges, dtype=torch.int64)
        edge = torch.empty_like(source)
        out = pointers(indptr, source, edge)
        self._rows = self._call(
            "sampler_draw",
            drawing,
            *pointers(self._nodes),
            size(rows),
            *out,
            _parts(self.threads),
        )
        return Drawn(indptr, source, edge, self._rows)

    def _call(self, name: str, *args: Any) -> Any:
        return getattr(self._library, name)(self._handle, *args)


def targets(drawn: Drawn, threads: int | None = None) -> Tensor:
    """int64 [edges]: of each edge, the row that it leads to."""
    library: Any = load_kernel("sample")
    target = torch.empty_like(drawn.source)
    rows = size(len(drawn.indptr) - 1)
    library.targets(*pointers(drawn.indptr), rows, *pointers(target), _parts(threads))
    return target


def by_source(drawn: Drawn, threads: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The same edges by source: `indptr` [rows_in + 1], the edges' places, their targets."""
    assert len(drawn.source) < 1 << 31
    library: Any = load_kernel("sample")
    indptr = torch.empty(drawn.rows_in + 1, dtype=torch.int64)
    order, target = torch.empty_like(drawn.source), torch.empty_like(drawn.source)
    library.by_source(
        *pointers(drawn.indptr, drawn.source),
        size(len(drawn.indptr) - 1),
        size(drawn.rows_in),
        *pointers(indptr, order, target),
        _parts(threads),
    )
    return indptr, order, target


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
