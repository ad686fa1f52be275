"""Blocks of a chunk that are cut out of the whole graph again for each layer of each step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gnnhpc.graphs.blocks import Block, BlocksOnRequest

BlockBuilder = Callable[[Tensor], Block]
"""Cuts the block of a chunk's nodes, int64 [rows] with -1 for padding, out of a graph, on a CPU."""


class RebuiltBlocks(BlocksOnRequest):
    """The block of `nodes` for each of `count` layers, built whenever one asks for it, then moved.

    For chunks that no layer drops rows of: the edges are the same in every layer.
    """

    def __init__(
        self,
        build: BlockBuilder,
        nodes: Tensor,
        count: int,
        device: torch.device | str = "cpu",
        given: dict[int, Block] | None = None,
    ) -> None:
        self._build = build
        self._nodes = nodes
        self._count = count
        self._device = device
        self._given = {} if given is None else given
        """What each layer got last, wherever it is: the same dictionary on all devices."""

    def __len__(self) -> int:
        return self._count

    def at(self, index: int) -> Block:
        self._given[index] = self._build(self._nodes).to(self._device)
        return self._given[index]

    @property
    def present(self) -> list[Block]:
        """What each layer got last, built now for layers of other stages."""
        return [self._given.get(i) or self._build(self._nodes) for i in range(self._count)]

    def unasked(self) -> RebuiltBlocks:
        """The same blocks, of which no layer has been given one: what it is given is its own."""
        return RebuiltBlocks(self._build, self._nodes, self._count, self._device)

    def to(self, device: torch.device | str) -> RebuiltBlocks:
        return RebuiltBlocks(self._build, self._nodes, self._count, device, self._given)
