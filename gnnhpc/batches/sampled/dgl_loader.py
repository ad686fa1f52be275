"""Samples mini-batches by DGL's DataLoader and NeighborSampler, with its worker processes.

Each layer samples anew. A step has the same sample where one thread samples, as in each worker, and
with `fused=False`; DGL's fused sampler numbers nodes by which of its threads comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from gnnhpc.batches.sampled.library_loader_base import (
    LibraryBlock,
    LibraryLoader,
    loader_options,
    random_seed,
)
from gnnhpc.experiment.sampling import Sampling
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.graph import Graph
from gnnhpc.models.libraries import SAMPLER_KEY, dgl_has_cuda, import_dgl


class DglLoader(LibraryLoader):
    """Raises InputError where DGL cannot be imported."""

    library = "DGL"

    def __init__(self, graph: Graph, sampling: Sampling, seed: int) -> None:
        self._dgl = import_dgl(*SAMPLER_KEY)
        super().__init__(graph, sampling, seed)
        # DGL seeds a thread when it first needs a random number.
        self._dgl.random.choice(1, 1)
        numbers = torch.empty(0, dtype=torch.int64)
        columns = ("csc", (self.indptr, graph.edges[0].contiguous(), numbers))
        # Loaders with workers make all formats that a graph allows; sampling needs this one.
        self._graph = self._dgl.graph(columns, num_nodes=graph.nodes).formats(["csc"])
        self._sampler = self._dgl.dataloading.NeighborSampler(
            list(sampling.fanouts)[::-1], fused=sampling.fused
        )

    def loader(self, seeds: Sequence[Tensor], first_step: int) -> DataLoader[Any]:
        loader: DataLoader[Any] = self._dgl.dataloading.DataLoader(
            self._graph,
            _Seeds(seeds, first_step),
            _Repeating(self._dgl, self._sampler, self.seed),
            **loader_options(self.sampling.workers),
        )
        return loader

    def chunk_of(self, sampled: tuple[Tensor, Tensor, list[Any]]) -> GraphChunk:
        nodes, seeds, graphs = sampled
        blocks = [
            DglBlock(nodes[: each.num_dst_nodes()], each.num_src_nodes(), self.graph, graph=each)
            for each in graphs
        ]
        return self.chunk(nodes, len(seeds), blocks)


class DglBlock(LibraryBlock):
    """A message flow graph of DGL, which its layers without self-loops take as it is.

    A GPU gets the edges alone where DGL has no CUDA: for layers that are not DGL's.
    """

    graph: Any

    def to(self, device: torch.device | str) -> LibraryBlock:
        if torch.device(device).type == "cpu" or dgl_has_cuda():
            return super().to(device)
        edges = {"neighbours": self.neighbours, "numbers": self.numbers}
        return LibraryBlock(self._nodes, self.rows_in, self._whole, **edges).to(device)

    @property
    def neighbour_count(self) -> int:
        return int(self.graph.num_edges())

    @cached_property
    def neighbours(self) -> Tensor:
        return torch.stack(self.graph.edges(order="eid"))

    @cached_property
    def numbers(self) -> Tensor:  # type: ignore[override]
        found: Tensor = self.graph.edata["_ID"]
        return found

    @cached_property
    def kept(self) -> dict[str, Any]:
        from gnnhpc.models.layers.dgl_layers import WITHOUT_LOOPS

        return {WITHOUT_LOOPS: self.graph}


class _Seeds:
    """The mini-batches as a data set of DGL's loader, which gives them in order to its workers.

    DGL would cut a tensor of all nodes between the workers, in an order that depends on them.
    """

    device = torch.device("cpu")

    def __init__(self, seeds: Sequence[Tensor], first_step: int) -> None:
        self._seeds, self._first = seeds, first_step

    def __len__(self) -> int:
        return len(self._seeds)

    def __getitem__(self, number: int) -> tuple[int, Tensor]:
        """The number of a step, and its nodes."""
        return self._first + number, self._seeds[number]


@dataclass(frozen=True)
class _Repeating:
    """DGL's sampler, seeded for each step.

    Else all workers of all epochs would begin with the same random numbers: they are forked from
    one process, whose generator does not move.
    """

    dgl: Any
    sampler: Any
    seed: int

    def sample(self, graph: Any, batch: tuple[int, Tensor]) -> Any:
        step, seeds = batch
        self.dgl.seed(random_seed(self.seed, step, int(seeds[0])))
        # A worker sends them too, which moves their memory.
        return self.sampler.sample(graph, seeds.clone())
