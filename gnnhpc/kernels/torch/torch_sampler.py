"""The sampler of neighbours in torch, on any device: the same bits as the compiled one."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from gnnhpc.kernels.dispatch import Backend
from gnnhpc.kernels.sample_neighbors import FRESH, Drawn, Layer, Memory, index_type
from gnnhpc.kernels.torch.torch_picks import Key, pick


class TorchSampler:
    """Draws as `kernels.sample_neighbors.Sampler` does, on the device that the graph is on."""

    code: Backend = "torch"

    def __init__(self, indptr: Tensor, columns: Tensor) -> None:
        self.indptr, self.columns = indptr, columns
        self.count = len(indptr) - 1
        self.nodes = indptr.new_empty(0)
        self._row = indptr.new_full((self.count,), -1, dtype=torch.int32)
        """Node -> its local row; -1 where it has none."""
        self._left = self._left_key = indptr.new_empty(0)

    def another(self) -> TorchSampler:
        """One that draws the same, at the same time; the graph is shared."""
        return TorchSampler(self.indptr, self.columns)

    def begin(self, seeds: Tensor, without: Tensor | None = None) -> None:
        """Like that of `Sampler`; these may be on the host."""
        self._row[self.nodes] = -1
        self.nodes = seeds.to(self.indptr.device).sort().values
        self._row[self.nodes] = torch.arange(
            len(seeds), dtype=torch.int32, device=self.indptr.device
        )
        left = self.indptr.new_empty(0) if without is None else without.to(self.indptr.device)
        # Of a node's edges left out, number k has as many kept ones before it, from the graph's
        # first edge on as though only this node's were left out, as its own number less k.
        into = torch.searchsorted(self.indptr, left, right=True) - 1
        first = torch.searchsorted(left, self.indptr[into])
        self._left = left
        self._left_key = left - torch.arange(len(left), device=left.device) + first

    def draw(self, layer: Layer, memory: Memory = FRESH) -> Drawn:
        """The edges into all rows of the layers before, in this memory."""
        rows, nodes = len(self.nodes), self.nodes
        first, degree, left_before = self._edges_of(nodes)
        most = degree.clamp(max=layer.fanout)
        ends = pad((most + 1).cumsum(0), (1, 0))
        edges, index = int(ends[-1]), index_type(self.columns, self.count)
        row = torch.repeat_interleave(most + 1, output_size=edges)
        place = torch.arange(edges, device=nodes.device) - ends[row]
        self._choose(layer, nodes, degree, ends, place)
        number = first[row] + place
        if len(self._left):
            skipped = torch.searchsorted(self._left_key, number, right=True)
            number += skipped - left_before[row]
        own = ends[1:] - 1
        # That of a node to itself may be no edge's number as yet.
        number[own] = 0
        node = self.columns[number].long() if len(self.columns) else number.clone()
        node[own] = nodes
        number[own] = nodes + len(self.columns)
        self._number(node)
        return Drawn(
            memory.empty(rows + 1, index).copy_(ends),
            memory.empty(edges, index).copy_(self._row[node]),
            memory.empty(edges, index).copy_(number),
            len(self.nodes),
        )

    def targets(self, drawn: Drawn, memory: Memory = FRESH) -> Tensor:
        """[edges], of the type of the others: of each edge, the row that it leads to."""
        edges = len(drawn.source)
        rows = torch.repeat_interleave(drawn.indptr.diff(), output_size=edges)
        return memory.empty(edges, drawn.source.dtype).copy_(rows)

    def _edges_of(self, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For each node its first edge, its number of edges without those left out, and how many
        are left out of the nodes before it."""
        first, end = self.indptr[nodes], self.indptr[nodes + 1]
        if not len(self._left):
            return first, end - first, torch.zeros_like(first)
        before, after = (torch.searchsorted(self._left, at) for at in (first, end))
        return first, end - first - (after - before), before

    def _choose(
        self, layer: Layer, nodes: Tensor, degree: Tensor, ends: Tensor, place: Tensor
    ) -> None:
        """Put which of its edges each node draws, from 0 on, into `place` [edges]; there are, row
        by row, all as yet."""
        drawing = (degree > layer.fanout).nonzero().flatten()
        if not len(drawing):
            return
        key, k = Key(layer.seed, layer.step, layer.layer), layer.fanout
        node, n = nodes[drawing], degree[drawing]
        place[ends[drawing][:, None] + torch.arange(k, device=node.device)] = pick(key, node, n, k)

    def _number(self, reached: Tensor) -> None:
        """Nodes that are reached for the first time get the next rows, ascending."""
        new = reached[self._row[reached] < 0].unique()
        count = len(self.nodes)
        rows = torch.arange(count, count + len(new), device=new.device, dtype=torch.int32)
        self._row[new] = rows
        self.nodes = torch.cat((self.nodes, new))
