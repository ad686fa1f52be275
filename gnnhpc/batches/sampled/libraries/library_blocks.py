"""Blocks as a library drew them, and in our form once that is asked for.

The library's own layers take what its loader made; our layers, and audits, take a block with the
edge of each row to itself, which the library does not draw.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from gnnhpc.batches.sampled.graph_sampler import SampledBlock


class LibraryBlock(SampledBlock):
    """`indptr`, `source`, `target` and `edge` are made once they are asked for, all together.

    `nodes` int64 [rows_out] are global ids of the rows of the output, `graph_edges` the edges of
    the full graph. A library's form gives `neighbours` and `numbers`.
    """

    def __init__(self, nodes: Tensor, rows_in: int, graph_edges: int) -> None:
        # Set where no frozen field is in the way.
        self.__dict__.update(_nodes=nodes, rows_in=rows_in, _graph_edges=graph_edges)

    _nodes: Tensor
    _graph_edges: int

    @cached_property
    def neighbours(self) -> Tensor:
        """int64 [2, edges without self-loops], rows of the output ascending."""
        raise NotImplementedError

    @cached_property
    def numbers(self) -> Tensor:
        """int64 [edges without self-loops], their numbers in the full graph."""
        raise NotImplementedError

    @property
    def neighbour_count(self) -> int:
        return self.neighbours.shape[1]

    @property
    def rows_out(self) -> int:
        return len(self._nodes)

    @property
    def ends(self) -> tuple[Tensor, Tensor]:
        """The rows of `neighbours`, int64 [edges without self-loops] each."""
        source, target = self.neighbours
        return source, target

    @property
    def first_neighbours(self) -> Tensor:
        """int64 [rows_out + 1]: where each row's neighbours begin."""
        target = self.ends[1]
        return torch.searchsorted(target, torch.arange(self.rows_out + 1, device=target.device))

    @cached_property
    def indptr(self) -> Tensor:  # type: ignore[override]
        first = self.first_neighbours
        return first + torch.arange(len(first), device=first.device)

    @cached_property
    def source(self) -> Tensor:
        return self._with_loops(self.ends[0], torch.arange(self.rows_out))

    @cached_property
    def target(self) -> Tensor:
        rows = torch.arange(self.rows_out, device=self.indptr.device)
        return torch.repeat_interleave(rows, self.indptr.diff())

    @cached_property
    def edge(self) -> Tensor:
        return self._with_loops(self.numbers, self._nodes + self._graph_edges)

    def _with_loops(self, neighbours: Tensor, loops: Tensor) -> Tensor:
        """Of each row what its neighbours have, then what its edge to itself has."""
        out = neighbours.new_empty(len(neighbours) + len(loops))
        out[self._places] = neighbours
        out[self.indptr[1:] - 1] = loops.to(out.device)
        return out

    @cached_property
    def _places(self) -> Tensor:
        """Of each neighbour its place among all edges: every row before its own has a loop."""
        target = self.ends[1]
        return torch.arange(len(target), device=target.device) + target
