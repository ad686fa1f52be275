"""The features of some nodes as the first layer's input: dense, sparse or read in place."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from gnnhpc.graphs.csr import Ids, offsets, segments


def computed_dtype(features: Tensor) -> torch.dtype:
    """The precision in which features are computed with: single for those stored in half."""
    return torch.float32 if features.dtype == torch.float16 else features.dtype


def computed(features: Tensor) -> Tensor:
    """Features in the precision in which they are computed with."""
    return features.to(computed_dtype(features))


class ByColumn(NamedTuple):
    """The stored values again, in the order of their columns and in each of their rows: CSC."""

    indptr: Tensor
    """int64 [width + 1]."""
    row: Tensor
    """int64 [nonzeros]."""
    place: Tensor
    """The place of each value in CSR's order, int64 [nonzeros]."""


@dataclass(frozen=True)
class SparseRows:
    """Features as they are stored: CSR, [rows, width].

    `entries` int64 [nonzeros] is the position of each stored value in the whole graph's CSR store.
    A stored value may be zero, after dropout. Needs no gradient.
    """

    indptr: Tensor
    columns: Tensor
    values: Tensor
    entries: Tensor
    width: int
    positions_of: Self | None = dataclasses.field(default=None, repr=False)
    """The rows whose values these replace, at the same positions; None for the first."""
    dense: bool = False
    """Whether layers write them out as dense rows and compute with these. Dropout before it has the
    masks of stored values either way, so training is the same to rounding."""

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.width

    def with_values(self, values: Tensor) -> Self:
        """The same positions with other values."""
        return dataclasses.replace(self, values=values, positions_of=self.positions_of or self)

    @functools.cached_property
    def by_column(self) -> ByColumn:
        """Computed once for all that have these positions."""
        if self.positions_of is not None:
            return self.positions_of.by_column
        device = self.columns.device
        row = torch.repeat_interleave(
            torch.arange(len(self), device=device), self.indptr.diff(), output_size=len(self.values)
        )
        columns, place = self.columns.long().sort(stable=True)
        first = torch.searchsorted(columns, torch.arange(self.width + 1, device=device))
        return ByColumn(first, row[place], place)

    @functools.cached_property
    def dense_places(self) -> Tensor:
        """int64 [nonzeros]: each value's place in the dense rows. Computed once, as `by_column`."""
        if self.positions_of is not None:
            return self.positions_of.dense_places
        rows = torch.arange(len(self), device=self.columns.device)
        row = torch.repeat_interleave(rows, self.indptr.diff(), output_size=len(self.values))
        return row * self.width + self.columns

    def written_out(self) -> Tensor:
        """The dense rows; torch's conversion would wait for a GPU."""
        out = self.values.new_zeros(len(self) * self.width)
        return out.index_copy_(0, self.dense_places, self.values).view(self.shape)

    def to(self, device: torch.device | str) -> Self:
        parts = ("indptr", "columns", "values", "entries")
        moved = {name: getattr(self, name).to(device) for name in parts}
        return dataclasses.replace(self, **moved, positions_of=None)

    def to_csr(self) -> Tensor:
        return torch.sparse_csr_tensor(
            self.indptr, self.columns, self.values, self.shape, check_invariants=False
        )

    def to_dense(self) -> Tensor:
        return self.to_csr().to_dense()


@dataclass(frozen=True)
class IndexedRows:
    """Some rows of all features by their numbers: a first layer may read them where they lie.

    Row k is row `nodes[k]` of `features` [nodes, F]; `nodes` is int64 [rows]. No gradient. Features
    may be stored in half precision: they are computed with in single.
    """

    features: Tensor
    nodes: Tensor

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.features.shape[1]

    def to(self, device: torch.device | str) -> Self:
        return type(self)(self.features.to(device), self.nodes.to(device))

    def to_dense(self) -> Tensor:
        """A copy, [rows, F]."""
        return computed(self.features.index_select(0, self.nodes))


Rows = Tensor | SparseRows | IndexedRows
AnyRows = TypeVar("AnyRows")


def dense_if_asked(x: AnyRows) -> AnyRows | Tensor:
    """Stored rows that are `dense` written out; all others as they are."""
    return x.written_out() if isinstance(x, SparseRows) and x.dense else x


def take_rows(x: Rows, places: Tensor) -> Rows:
    """The rows of `x` at `places`, int64 [n], each from 0 on."""
    if isinstance(x, Tensor):
        return x.index_select(0, places)
    if isinstance(x, IndexedRows):
        return IndexedRows(x.features, x.nodes[places])
    entries, lengths = segments(x.indptr.numpy(), places.numpy())
    at = torch.from_numpy(entries)
    indptr = torch.from_numpy(offsets(lengths))
    parts = (indptr, x.columns[at], x.values[at], x.entries[at], x.width)
    return SparseRows(*parts, dense=x.dense)


def feature_rows(features: Tensor, nodes: Tensor, dtype: torch.dtype) -> Tensor | SparseRows:
    """The rows of `nodes` (int64 [n], zeros where -1) of a graph's features [nodes, F].

    Dense if the features are dense, else `SparseRows`.
    """
    ids = nodes.numpy()
    real = torch.from_numpy(np.flatnonzero(ids >= 0))
    width = features.shape[1]
    if features.layout != torch.sparse_csr:
        if len(real) == len(ids):
            return features.index_select(0, nodes).to(dtype)
        dense = torch.zeros(len(ids), width, dtype=dtype)
        dense[real] = features[nodes[real]].to(dtype)
        return dense
    places, lengths = segments(features.crow_indices().numpy(), ids[real.numpy()])
    counts = np.zeros(len(ids), dtype=np.int64)
    counts[real.numpy()] = lengths
    entries = torch.from_numpy(places)
    return SparseRows(
        indptr=torch.from_numpy(offsets(counts)),
        columns=features.col_indices()[entries].to(torch.int64),
        values=features.values()[entries].to(dtype),
        entries=entries,
        width=width,
    )


def sparse_tensor(indptr: Ids, columns: Ids, values: np.ndarray, shape: tuple[int, int]) -> Tensor:
    """A torch CSR matrix over these arrays (int64, int64, float32), without copying them."""
    with warnings.catch_warnings():
        # A container and one product are all that is used of CSR; torch calls all of it beta.
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            torch.from_numpy(indptr),
            torch.from_numpy(columns),
            torch.from_numpy(values),
            shape,
            check_invariants=True,
        )
