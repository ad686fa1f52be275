"""Samples mini-batches by PyG's NeighborLoader, with its worker processes.

A node is expanded once, when it is first reached, and has the same neighbours in all layers. A
step has the same sample whatever the workers are. torch-sparse's samples are slightly biased: its
Floyd steps never take the last of their candidates (issue 385 of torch-sparse).
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch_geometric.typing as pyg_has
from torch import Tensor
from torch.utils.data import DataLoader
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.sampler import NeighborSampler

from gnnhpc.batches.sampled.library_loader_base import (
    LibraryBlock,
    LibraryLoader,
    loader_options,
    random_seed,
)
from gnnhpc.experiment.sampling import Sampling
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.graph import Graph
from gnnhpc.models.libraries import check_sampler_is_here, pyg_sampler_missing


class PygLoader(LibraryLoader):
    """Raises InputError where neither torch-sparse nor pyg-lib can be imported.

    A layer's block has the edges into the rows that the next layer needs, as after
    PyG's `trim_to_layer`.
    """

    library = "PyG"

    def __init__(self, graph: Graph, sampling: Sampling, seed: int) -> None:
        check_sampler_is_here("pyg")
        if not (pyg_has.WITH_PYG_LIB or pyg_has.WITH_TORCH_SPARSE):
            raise pyg_sampler_missing("cannot be imported")
        super().__init__(graph, sampling, seed)
        self._fanouts = list(sampling.fanouts)
        self._data = Data(edge_index=graph.edges, num_nodes=graph.nodes)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*without a 'pyg-lib' installation")
            self._sampler = _Repeating(self._data, self._fanouts, is_sorted=True)
        self._sampler.seed = seed

    def loader(self, seeds: Sequence[Tensor], first_step: int) -> DataLoader[Any]:
        sizes = [len(batch) for batch in seeds]
        ends = list(itertools.accumulate(sizes, initial=0))
        steps = torch.arange(first_step, first_step + len(sizes))
        loader: DataLoader[Any] = NeighborLoader(
            self._data,
            self._fanouts,
            input_nodes=torch.cat([torch.empty(0, dtype=torch.int64), *seeds]),
            input_id=torch.repeat_interleave(steps, torch.tensor(sizes, dtype=torch.int64)),
            neighbor_sampler=self._sampler,
            batch_sampler=list(itertools.starmap(range, itertools.pairwise(ends))),
            **loader_options(self.sampling.workers),
        )
        return loader

    def chunk_of(self, sampled: Any) -> GraphChunk:
        data, seeds = sampled, sampled.batch_size

        def block(rows_out: int, rows_in: int, edges: int) -> LibraryBlock:
            parts = {"neighbours": data.edge_index[:, :edges], "numbers": data.e_id[:edges]}
            return LibraryBlock(data.n_id[:rows_out], rows_in, self.graph, **parts)

        hops = sampled_hops(data.edge_index, seeds, len(self._fanouts))
        return self.chunk(data.n_id, seeds, [block(*hop) for hop in hops[::-1]])


def sampled_hops(edge_index: Tensor, seeds: int, count: int) -> list[tuple[int, int, int]]:
    """The rows before and after each hop, and the edges until its end.

    PyG numbers nodes as it reaches them and expands them in that order, but torch-sparse does not
    say how many each hop has. Raises ValueError where edges are in another order.
    """
    source, target = edge_index
    if not bool((target.diff() >= 0).all()):
        raise ValueError("NeighborLoader's edges are not ordered by the node they lead to")
    hops, rows = [], seeds
    for _ in range(count):
        edges = int(torch.searchsorted(target, rows))
        reached = max(rows, int(source[:edges].max()) + 1 if edges else 0)
        hops.append((rows, reached, edges))
        rows = reached
    return hops


class _Repeating(NeighborSampler):  # type: ignore[misc]
    """PyG's sampler, seeded for each step, whose number comes as the ids of its nodes."""

    seed = 0

    def sample_from_nodes(self, inputs: Any) -> Any:
        seed = random_seed(self.seed, int(inputs.input_id[0]), int(inputs.node[0]))
        with torch.random.fork_rng(devices=[]):
            # `torch.manual_seed` takes half a millisecond more, which PyG's time would include.
            torch.default_generator.manual_seed(seed)
            return super().sample_from_nodes(inputs)
