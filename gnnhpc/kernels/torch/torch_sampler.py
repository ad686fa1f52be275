"""The sampler of neighbours in torch, on any device: the same bits as the compiled one.

Numbers of a counter and picks of neighbours are what `picks.h` computes, all in int64: a product of
two 32-bit numbers wraps there to the same 64 bits, of which the upper half is read by a shift and a
mask.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from gnnhpc.kernels.dispatch import Backend
from gnnhpc.kernels.sample_neighbors import FRESH, Drawn, Layer, Memory, index_type

_LOW = 0xFFFFFFFF
_BEYOND = 1 << 62
"""A number after all numbers that are picked."""


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

    def another(self) -> Self:
        """One that draws the same, at the same time; the graph is shared."""
        return type(self)(self.indptr, self.columns)

    def begin(self, seeds: Tensor, without: Tensor | None = None) -> None:
        """Like that of `Sampler`; these may be on the host."""
        device = self.indptr.device
        self._row.index_fill_(0, self.nodes, -1)
        self.nodes = seeds.to(device)
        self._row[self.nodes] = torch.arange(len(seeds), dtype=torch.int32, device=device)
        self._left = self._left_key = self.indptr.new_empty(0)
        if without is not None:
            self._leave_out(without.to(device))

    def _leave_out(self, left: Tensor) -> None:
        """Draw as though the graph had no edges of these numbers."""
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
        drawing = (degree > layer.fanout).nonzero().flatten()
        if len(drawing):
            own = ends[drawing][:, None] + torch.arange(layer.fanout, device=nodes.device)
            place[own] = pick(layer, nodes[drawing], degree[drawing])
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
            memory.empty(edges, index).copy_(row),
            memory.empty(edges, index).copy_(number),
            len(self.nodes),
        )

    def _edges_of(self, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For each node its first edge, its number of edges without those left out, and how many
        are left out of the nodes before it."""
        first, end = self.indptr[nodes], self.indptr[nodes + 1]
        if not len(self._left):
            return first, end - first, torch.zeros_like(first)
        before, after = (torch.searchsorted(self._left, at) for at in (first, end))
        return first, end - first - (after - before), before

    def _number(self, reached: Tensor) -> None:
        """Nodes that are reached for the first time get the next rows, ascending."""
        new = reached[self._row[reached] < 0].unique()
        count = len(self.nodes)
        rows = torch.arange(count, count + len(new), device=new.device, dtype=torch.int32)
        self._row[new] = rows
        self.nodes = torch.cat((self.nodes, new))


def philox(layer: Layer, node: Tensor, block: Tensor) -> Tensor:
    """Philox 4x32-10, keyed by the seed, of counters (node, step, layer, block): [..., 4] of the
    shape of node and block."""
    node, block = torch.broadcast_tensors(node, block)
    a, b = node, torch.full_like(node, layer.step)
    c, d = torch.full_like(node, layer.layer), block
    key0, key1 = layer.seed & _LOW, layer.seed >> 32
    for _ in range(10):
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        # Those that are multiplied have 32 bits; the others may have more, which are masked then.
        a = (second >> 32 ^ b ^ key0) & _LOW
        c = (first >> 32 ^ d ^ key1) & _LOW
        b, d = second, first
        key0, key1 = (key0 + 0x9E3779B9) & _LOW, (key1 + 0xBB67AE85) & _LOW
    return torch.stack((a, b & _LOW, c, d & _LOW), -1)


def below(layer: Layer, node: Tensor, bound: Tensor) -> Tensor:
    """For each node [rows], numbers from 0 to less than `bound` [rows, draws], all equally likely
    (Lemire 2019, algorithm 5)."""
    rows, draws = bound.shape
    blocks = torch.arange(-(-draws // 4), device=node.device)
    numbers = philox(layer, node[:, None], blocks).view(rows, -1)[:, :draws]
    product = numbers * bound
    refused = ((product & _LOW) < (1 << 32) % bound).any(1).nonzero().flatten()
    drawn = product >> 32 & _LOW
    if len(refused):
        drawn[refused] = _one_by_one(layer, node[refused], bound[refused])
    return drawn


def _one_by_one(layer: Layer, node: Tensor, bound: Tensor) -> Tensor:
    """The same where a number may be refused, so that the next is taken: of few rows."""
    place = torch.zeros_like(node)
    drawn = torch.empty_like(bound)
    for draw, count in enumerate(bound.unbind(1)):
        least = (1 << 32) % count
        while True:
            number = philox(layer, node, place // 4).gather(1, (place % 4)[:, None]).flatten()
            product = number * count
            refused = (product & _LOW) < least
            if not refused.any():
                break
            place += refused
        drawn[:, draw] = product >> 32 & _LOW
        place += 1
    return drawn


def pick(layer: Layer, node: Tensor, n: Tensor) -> Tensor:
    """k of the numbers 0 to n - 1 for each node [rows], ascending [rows, k], where k is the
    layer's fan-out; n [rows] above k.

    Every set of k is as likely as any (R. W. Floyd, in Bentley 1987). Where k is most of n, those
    are drawn that stay out.
    """
    k = layer.fanout
    few = (n - k).clamp(max=k)
    chosen = _floyd(layer, node, n, few)
    others = _others(chosen, k)
    return others if chosen.shape[1] < k else torch.where((few < k)[:, None], others, chosen)


def _floyd(layer: Layer, node: Tensor, n: Tensor, k: Tensor) -> Tensor:
    """k [rows] of n [rows], ascending, and then numbers far beyond."""
    most = int(k.max()) if len(k) else 0
    draws = torch.arange(most, device=n.device)
    last = (n - k)[:, None] + draws
    beyond = draws >= k[:, None]
    drawn = below(layer, node, torch.where(beyond, 1, last + 1))
    picked = torch.where(beyond, _BEYOND + draws, drawn)
    for draw in range(1, most):
        taken = (picked[:, :draw] == picked[:, draw, None]).any(1)
        picked[:, draw] = torch.where(taken, last[:, draw], picked[:, draw])
    return picked.sort(1).values


def _others(chosen: Tensor, k: int) -> Tensor:
    """The first k numbers from 0 that are not among `chosen` [rows, some], ascending."""
    # The r-th number that is left has as many chosen ones before it as have at most r left ones.
    places = torch.arange(k, device=chosen.device)
    left_before = (chosen - torch.arange(chosen.shape[1], device=chosen.device)).contiguous()
    places = places.expand(len(chosen), k).contiguous()
    return places + torch.searchsorted(left_before, places, right=True)
