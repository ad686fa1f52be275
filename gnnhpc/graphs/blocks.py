"""One chunk of a graph as layers use it: its nodes, and a block of edges for each layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from gnnhpc.graphs.csr import pieces
from gnnhpc.graphs.device_copies import moved


class SegmentedRows:
    """Entries row after row; those of row k begin at `indptr[k]`, `indptr` [rows + 1]."""

    indptr: Tensor

    def pieces(self, most: int) -> list[tuple[slice, slice]]:
        """Groups of consecutive rows with at most `most` entries, and the places of these."""
        if most not in self._known_pieces:
            self._known_pieces[most] = pieces(self.indptr.long().cpu().numpy(), most)
        return self._known_pieces[most]

    @cached_property
    def _known_pieces(self) -> dict[int, list[tuple[slice, slice]]]:
        """Kept by the most entries of a piece: reading `indptr` from a GPU takes time."""
        return {}


@dataclass(frozen=True)
class Transpose(SegmentedRows):
    """A block's edges sorted by source, for backward passes.

    `indptr` is [rows_in + 1]; `edge` [edges] are places among the block's edges, and `target`
    [edges] their local rows of the output. All have the type of the block's.
    """

    indptr: Tensor
    edge: Tensor
    target: Tensor


@dataclass(frozen=True)
class Block(SegmentedRows):
    """The edges of one layer within a chunk, by target, one self-loop a real row.

    `indptr` [rows_out + 1]; `source` and `target` [edges], local rows of the layer's input and
    output; `edge` [edges], ids in the full graph: an edge's number, or E + n for the self-loop of
    node n. Padding rows have no edges. `rows_in` is the rows of the input. `edge_weight` float32
    [edges] are the weights of the same edges, 1 for a self-loop; None for a graph without weights.

    The four index tensors have one type: int32 in blocks of the neighbour sampler, unless the graph
    has 2^31 edges and self-loops or the block could have so many; int64 in all other blocks.
    """

    indptr: Tensor
    source: Tensor
    target: Tensor
    edge: Tensor
    rows_in: int
    edge_weight: Tensor | None = None

    @property
    def rows_out(self) -> int:
        return len(self.indptr) - 1

    @property
    def neighbour_count(self) -> int:
        """The number of edges without self-loops, in a block without padding."""
        return len(self.source) - self.rows_out

    @cached_property
    def edge_index(self) -> Tensor:
        """int64 [2, edges] as PyG takes it: rows of the input, then rows of the output."""
        both = self.source.new_empty((2, len(self.source)), dtype=torch.int64)
        both[0], both[1] = self.source, self.target
        return both

    @cached_property
    def neighbours(self) -> Tensor:
        """`edge_index` without the self-loops."""
        return self.edge_index[:, self.source != self.target]

    @cached_property
    def neighbour_weight(self) -> Tensor | None:
        """`edge_weight` without the self-loops, in the order of `neighbours`."""
        return None if self.edge_weight is None else self.edge_weight[self.source != self.target]

    @cached_property
    def kept(self) -> dict[str, Any]:
        """What layers of PyG and DGL make of these edges once and use in every step."""
        return {}

    @cached_property
    def transpose(self) -> Transpose:
        """The same edges by source, sorted once."""
        return sorted_by_source(self)

    def to(self, device: torch.device | str) -> Block:
        return dataclasses.replace(self, **_moved(self, device))


def sorted_by_source(block: Block) -> Transpose:
    """A block's edges sorted in torch, on any device."""
    source, order = block.source.sort(stable=True)
    rows = torch.arange(block.rows_in + 1, dtype=source.dtype, device=source.device)
    # A search, as a count of each source would have a GPU waited for.
    indptr = torch.searchsorted(source, rows, out_int32=source.dtype == torch.int32)
    return Transpose(indptr, order.to(source.dtype), block.target[order])


class RowBlocks(Protocol):
    """Computes a layer in blocks of rows; evaluations of sampled runs have the implementation."""

    def through(self, layer: Callable[[Any, GraphChunk], Tensor], x: Any, hop: int) -> Tensor: ...


@dataclass(frozen=True)
class GraphChunk:
    """One micro-batch of a graph."""

    nodes: Tensor
    """int64 [rows[0]], global ids; -1 for padding."""
    rows: tuple[int, ...]
    """The rows that enter each layer that uses neighbours or pools, then those of the output."""
    blocks: Sequence[Block]
    """One for each layer that uses neighbours."""
    degree: Tensor
    """int64 [rows[0]], the edges into each node of the graph as it is cut, self-loop included; 1
    for padding, so that a mean over no neighbours is not NaN."""
    targets: dict[str, Tensor]
    """The labels of each split, int64 [rows[-1]]; -100 where the node or graph is not this chunk's
    or not in the split."""
    own: int
    """The number of nodes that this chunk owns; they are the first rows."""
    sampled: bool = False
    """Whether edges are sampled from those in the graph, which `degree` counts."""
    row_blocks: RowBlocks | None = None
    """Computes each layer in blocks of rows, where there are no `blocks`."""
    graphs: Tensor | None = None
    """int64 [rows[-1]]: the numbers of the small graphs in this chunk."""
    pooling: Block | None = None
    """Edges from each node to its graph, where nodes become graphs."""
    weighted_degree: Tensor | None = None
    """float64 [rows[0]]: as `degree`, the sum of the edges' weights, where a self-loop counts 1.
    None for a graph without weights."""

    @property
    def pooling_block(self) -> Block:
        """`pooling`; raises ValueError for a chunk of one graph."""
        if self.pooling is None:
            raise ValueError("pooling needs a chunk of many graphs")
        return self.pooling

    @property
    def present_blocks(self) -> Sequence[Block]:
        """The blocks that layers got, without moving any."""
        return self.blocks.present if isinstance(self.blocks, BlocksOnRequest) else self.blocks

    def to(self, device: torch.device | str) -> GraphChunk:
        """The chunk on another device; a block moves there when a layer asks for it."""
        known = self.blocks if isinstance(self.blocks, BlocksOnRequest) else None
        return dataclasses.replace(
            self,
            blocks=known.to(device) if known else BlocksOnRequest(device, self.blocks),
            targets={split: moved(labels, device) for split, labels in self.targets.items()},
            pooling=None if self.pooling is None else self.pooling.to(device),
            **_moved(self, device),
        )


class BlocksOnRequest(Sequence[Block]):
    """One block for each layer, which moves to a device when the layer asks for it, once.

    The layers of a stage use few blocks, and each block of a large graph takes gigabytes.
    """

    def __init__(self, device: torch.device | str, blocks: Sequence[Block]) -> None:
        self.device, self.blocks = device, blocks
        self._moved: dict[int, Block] = {}
        """Keyed by the block's identity: layers may share a block."""

    def __len__(self) -> int:
        return len(self.blocks)

    def at(self, index: int) -> Block:
        """The block of layer `index`, counted from 0."""
        block = self.blocks[index]
        if id(block) not in self._moved:
            self._moved[id(block)] = block.to(self.device)
        return self._moved[id(block)]

    @property
    def present(self) -> Sequence[Block]:
        """All blocks: those that layers asked for as they got them, else the originals."""
        return [self._moved.get(id(block), block) for block in self.blocks]

    def to(self, device: torch.device | str) -> BlocksOnRequest:
        """The same blocks for layers on another device."""
        return BlocksOnRequest(device, self.blocks)

    def __getitem__(self, index: Any) -> Any:
        places = range(len(self))[index]
        return self.at(places) if isinstance(places, int) else tuple(map(self.at, places))


def _moved(holder: Block | GraphChunk, device: torch.device | str) -> dict[str, Any]:
    fields = {field.name: getattr(holder, field.name) for field in dataclasses.fields(holder)}
    return {name: moved(x, device) for name, x in fields.items() if isinstance(x, Tensor)}
