"""Mini-batches that DGL's own DataLoader and NeighborSampler draw, with its worker processes.

Each layer draws anew. A step's draws repeat where one thread draws, as in each worker, and with
`fused=False`; DGL's fused sampler with several threads numbers nodes by which thread comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gnnhpc.batches.sampled.libraries.library_blocks import LibraryBlock
from gnnhpc.batches.sampled.libraries.library_loader import (
    Chunks,
    loader_options,
    random_seed,
    running,
)
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.graph import Graph
from gnnhpc.models.libraries import SAMPLER_KEY, import_dgl


class DglSampler:
    """Raises InputError where DGL cannot be imported.

    `fanouts` are the most neighbours of a node, from the seeds outward; `workers` is the loader's
    `num_workers`, and `timeout_s` the seconds they may take for a mini-batch, 0 for any; `fused`
    is the sampler's own argument.
    """

    def __init__(
        self,
        graph: Graph,
        fanouts: Sequence[int],
        seed: int,
        *,
        workers: int = 0,
        replace: bool = False,
        timeout_s: float = 0.0,
        fused: bool = True,
    ) -> None:
        self._dgl = import_dgl(*SAMPLER_KEY)
        self._seed = seed
        self._options = loader_options(workers, timeout_s)
        self._chunks = Chunks(graph)
        # DGL numbers threads as they first draw, and their random numbers with them.
        self._dgl.random.choice(1, 1)
        numbers = torch.empty(0, dtype=torch.int64)
        columns = ("csc", (self._chunks.indptr, graph.edges[0].contiguous(), numbers))
        # Loaders with workers make all formats that a graph allows; sampling needs but this one.
        self._graph = self._dgl.graph(columns, num_nodes=graph.nodes).formats(["csc"])
        self._sampler = self._dgl.dataloading.NeighborSampler(
            list(fanouts)[::-1], replace=replace, fused=fused
        )

    @contextmanager
    def open(self, seeds: Sequence[Tensor], first_step: int) -> Iterator[Iterator[GraphChunk]]:
        """Mini-batches of these nodes, int64 [batch] each, none twice in one, in this order.

        Workers start at once, prefetch, and have ended when this is left.
        """
        loader = self._dgl.dataloading.DataLoader(
            self._graph,
            _Seeds(seeds, first_step),
            _Repeating(self._dgl, self._sampler, self._seed),
            **self._options,
        )
        with running(loader, "DGL") as batches:
            yield map(self._chunk, batches)

    def _chunk(self, drawn: tuple[Tensor, Tensor, list[Any]]) -> GraphChunk:
        nodes, seeds, graphs = drawn
        edges = self._chunks.graph.edges.shape[1]
        blocks = [DglBlock(graph, nodes[: graph.num_dst_nodes()], edges) for graph in graphs]
        return self._chunks.chunk(nodes, len(seeds), blocks)


class DglBlock(LibraryBlock):
    """A message flow graph of DGL's, which its layers without self-loops take as it is."""

    def __init__(self, graph: Any, nodes: Tensor, graph_edges: int) -> None:
        super().__init__(nodes, graph.num_src_nodes(), graph_edges)
        self.__dict__.update(graph=graph)

    graph: Any

    @property
    def neighbour_count(self) -> int:
        return int(self.graph.num_edges())

    @cached_property
    def neighbours(self) -> Tensor:
        return torch.stack(self.ends)

    @property
    def ends(self) -> tuple[Tensor, Tensor]:
        source, target = self.graph.edges(order="eid")
        return source, target

    @property
    def first_neighbours(self) -> Tensor:
        indptr: Tensor = self.graph.adj_tensors("csc")[0]
        return indptr

    @cached_property
    def numbers(self) -> Tensor:
        found: Tensor = self.graph.edata["_ID"]
        return found

    @cached_property
    def kept(self) -> dict[str, Any]:
        from gnnhpc.models.layers.dgl_layers import WITHOUT_LOOPS

        return {WITHOUT_LOOPS: self.graph}

    def to(self, device: torch.device | str) -> DglBlock:
        if torch.device(device) == self._nodes.device:
            return self
        return DglBlock(self.graph.to(device), self._nodes.to(device), self._graph_edges)


@dataclass(frozen=True)
class _Batch:
    """Of one step. No tensor, which DGL would take for the nodes of all steps."""

    step: int
    seeds: Tensor


class _Seeds:
    """The mini-batches as a data set of DGL's loader, which gives them in order to its workers.

    A tensor of all nodes would be cut between the workers, in another order than one has.
    """

    device = torch.device("cpu")

    def __init__(self, seeds: Sequence[Tensor], first_step: int) -> None:
        self._seeds, self._first = seeds, first_step

    def __len__(self) -> int:
        return len(self._seeds)

    def __getitem__(self, number: int) -> _Batch:
        return _Batch(self._first + number, self._seeds[number])


@dataclass(frozen=True)
class _Repeating:
    """DGL's sampler with random numbers that are a step's own.

    Without, all workers of all epochs would begin with the same: they are forked from one process,
    whose generator stands still.
    """

    dgl: Any
    sampler: Any
    seed: int

    def sample(self, graph: Any, batch: _Batch) -> Any:
        self.dgl.seed(random_seed(self.seed, batch.step, int(batch.seeds[0])))
        # A worker sends them too, which moves their memory while the next may be drawn from it.
        return self.sampler.sample(graph, batch.seeds.clone())
